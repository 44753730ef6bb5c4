"""All candidates of a proposal with their prices, best first. Called by the estimator; the gate decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexpipe.costing.pricing import net_tokens, outlook_under, price
from flexpipe.events.planning import CandidatesProposed
from flexpipe.model.deployment import Deployment
from flexpipe.model.outlook import Candidate, GearOutlook, Load, Price

MANY: Final = 1_000_000
"""More devices than any gear has: what comes after all that are alike."""
ALIKE: Final = 0.05
"""Half of what a roofline errs by: gears whose worth differs by less are not told apart by it."""


@dataclass(frozen=True)
class Weighed:
    """One candidate. `load` is the window under which it pays least: `price` and `candidate.outlook` are for it."""

    candidate: Candidate
    current: Candidate  # the gear in force, under the same load
    load: Load
    price: Price
    expected: GearOutlook  # under the load that is expected to come
    worth_tokens: float  # what is left of the gain there when the cost is taken `hysteresis` times


def weigh(
    proposal: CandidatesProposed, deployment: Deployment, loads: tuple[Load, ...]
) -> tuple[Weighed, ...]:
    """Prices under each load (the first is what is expected to come), and the order in which the gate is asked.

    Ordered by worth under the expected load: a load that has grown for good shows in the long window late, and the
    gear that answers it should be the one for all of it. Of those that are worth about as much as the best, the one on
    the fewest devices comes first, since others can use the rest, then the one of the fewest plans. Ties by gear id.
    Raises InvalidInput where a plan cannot be predicted.
    """
    factor = deployment.policy.hysteresis
    currents = [_under(proposal.current, proposal, deployment, load) for load in loads]
    weighed = []
    for proposed in proposal.candidates:
        candidates = [_under(proposed, proposal, deployment, load) for load in loads]
        prices = [
            price(deployment, load, current, candidate)
            for load, current, candidate in zip(loads, currents, candidates, strict=True)
        ]
        worths = [net_tokens(each, factor) for each in prices]
        least = worths.index(min(worths))
        weighed.append(
            Weighed(
                candidate=candidates[least],
                current=currents[least],
                load=loads[least],
                price=prices[least],
                expected=candidates[0].outlook,
                worth_tokens=worths[0],
            )
        )
    return _in_order(weighed)


def _in_order(weighed: list[Weighed]) -> tuple[Weighed, ...]:
    best = max((each.worth_tokens for each in weighed), default=0.0)
    floor = best - abs(best) * ALIKE

    def place(each: Weighed) -> tuple[int, int, float, str]:
        plans = each.candidate.gear.plans
        size = (sum(len(plan.devices) for plan in plans), len(plans))
        is_alike = each.worth_tokens >= floor
        return (*(size if is_alike else (MANY, MANY)), -each.worth_tokens, each.candidate.gear.id)

    return tuple(sorted(weighed, key=place))


def _under(
    candidate: Candidate, proposal: CandidatesProposed, deployment: Deployment, load: Load
) -> Candidate:
    """The planner's own outlook where the load is the one that it proposed for (without traffic it assumes another)."""
    is_its_own = load == proposal.load and load.data == "busy"
    return candidate if is_its_own else outlook_under(candidate, deployment, load)
