"""The gate: guards in the order in which they are asked. Each says yes or no in one sentence with its numbers.

The estimator asks them of one candidate after the other; the first no ends the asking. Guards look at what they are
given (`Asked`) and change nothing. To add one: a function, and its place in GUARDS with a line why it stands there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flexpipe.costing.desk import Desk
from flexpipe.costing.pressing import Pressing
from flexpipe.events.planning import CandidatesProposed
from flexpipe.model.deployment import Deployment
from flexpipe.model.outlook import Candidate, GuardVerdict, Load, Price
from flexpipe.model.route import PlanState, RouteEntry

STALE_CYCLES: Final = 2
STALE_FLOOR_S: Final = 10.0
"""A proposal of two cycles ago has a successor that is still to come or was lost; where cycles are short, ten seconds:
no bus is slower than that while it works."""
SHRINK_MARGIN: Final = 1.1
"""Survivors must carry a tenth more than what comes: a roofline errs by about that much, and what was given up is not
back at once."""
NOTICEABLE: Final = 0.05
"""Of what the gear in force delivers. Half of what a roofline errs by: both gears are predicted by the same one."""


@dataclass(frozen=True)
class Asked:
    """What a guard may look at: one candidate of one proposal at one time."""

    now_s: float
    deployment: Deployment
    proposal: CandidatesProposed
    route: RouteEntry | None
    route_revision: int
    fleet_revision: int  # of the newest proposal seen, of whatever deployment
    desk: Desk
    pressing: Pressing | None
    load: Load  # what the price is for
    current: Candidate  # the gear in force; both outlooks are those under `load`
    candidate: Candidate
    price: Price

    @property
    def name(self) -> str:
        """The deployment."""
        return self.deployment.name


Guard = Callable[[Asked], GuardVerdict]


def automatic(asked: Asked) -> GuardVerdict:
    """The user may have switched the loop off."""
    if not asked.deployment.policy.automatic:
        return _no("automatic", f"policy.automatic of {asked.name} is off")
    return _yes("automatic", f"policy.automatic of {asked.name} is on")


def unpinned(asked: Asked) -> GuardVerdict:
    """Somebody pulled the hatch, or the executor halted: automation is off until `flexpipe unpin`."""
    pin = None if asked.route is None else asked.route.pin
    if pin is not None:
        return _no("unpinned", f"{asked.name} is pinned by {pin.by}: {pin.reason}")
    return _yes("unpinned", f"{asked.name} is not pinned")


def running(asked: Asked) -> GuardVerdict:
    """Starting and stopping are the user's; the loop only changes what runs (or should)."""
    if asked.route is None:
        return _no("running", f"{asked.name} was not started yet: `flexpipe apply` orders that")
    if asked.route.stopped:
        return _no("running", f"{asked.name} was stopped by hand")
    return _yes("running", f"{asked.name} is to be served")


def free(asked: Asked) -> GuardVerdict:
    """A deployment has one slot, and an order that nobody has answered yet may be about to take it."""
    flying = None if asked.route is None else asked.route.in_flight
    if flying is not None:
        return _no("free", f"shift {flying} of {asked.name} is in flight")
    ordered = asked.desk.ordered
    if ordered is not None:
        ago_s = asked.now_s - ordered.at_s
        return _no("free", f"order {ordered.order_id} of {ago_s:.1f} s ago has not ended yet")
    return _yes("free", f"no shift of {asked.name} is in flight")


def fresh(asked: Asked) -> GuardVerdict:
    """A proposal speaks of a fleet and of a gear in force; where either has moved on, the next one knows better."""
    proposal = asked.proposal
    if proposal.fleet_revision < asked.fleet_revision:
        return _no(
            "fresh",
            f"it rests on fleet revision {proposal.fleet_revision}; {asked.fleet_revision} was seen since",
        )
    age_s = asked.now_s - proposal.at_s
    limit_s = max(STALE_CYCLES * asked.deployment.policy.cycle_s, STALE_FLOOR_S)
    if age_s > limit_s:
        return _no("fresh", f"it is {age_s:.1f} s old; {limit_s:.1f} s are the limit")
    moved = _moved_on(asked)
    if moved is not None:
        return _no("fresh", moved)
    return _yes(
        "fresh", f"it is {age_s:.1f} s old and rests on fleet revision {proposal.fleet_revision}"
    )


def known(asked: Asked) -> GuardVerdict:
    """Without data there is no prediction worth a shift, without traffic nothing to be gained, and the first seconds of
    traffic are no load yet; but what serves nobody, or soon will not, cannot wait for any of it."""
    load = asked.proposal.load
    says = f"{asked.load.arrived_per_s:.2f} requests/s are the load that it is judged by"
    if asked.pressing is not None and asked.pressing.forces:
        return _yes("known", says)
    if load.data == "no-data":
        return _no("known", f"no router was heard of {asked.name} within {load.window_s:g} s")
    if load.data == "idle":
        return _no("known", f"no request came to {asked.name} within {load.window_s:g} s")
    seen_s, window_s = asked.desk.seen_s(asked.now_s), asked.deployment.policy.load_window_s
    if seen_s < window_s:
        return _no(
            "known", f"load is known for {seen_s:.0f} s, less than a window of {window_s:g} s"
        )
    return _yes("known", says)


def other(asked: Asked) -> GuardVerdict:
    """Equal plans are the same gear: weights follow each load a little, and that is no reason for a shift."""
    now = {plan.id for plan in asked.proposal.current.gear.plans}
    if {plan.id for plan in asked.candidate.gear.plans} == now:
        return _no("other", f"{asked.name} is in this gear already ({asked.candidate.gear.label})")
    starts = len(asked.candidate.starts)
    return _yes(
        "other", f"{starts} of its {len(asked.candidate.gear.shares)} plans are to be started"
    )


def untried(asked: Asked) -> GuardVerdict:
    """What was refused or rolled back a moment ago would be again."""
    held = asked.desk.holding(asked.candidate.gear.id)
    if held is not None and held.holds(asked.now_s, asked.fleet_revision):
        left_s = held.until_s - asked.now_s
        return _no(
            "untried",
            f"gear {held.gear} failed {held.failures} time(s), held back for {left_s:.0f} s more: {held.reason}",
        )
    return _yes("untried", f"gear {asked.candidate.gear.id} is not held back")


def staying(asked: Asked) -> GuardVerdict:
    """A gear whose blocks go before it has paid is not worth its start: it must stay until the next shift may come.

    Where the gear in force goes, a short stay beats none: start and switch are asked for, the price sees to the rest.
    """
    forced = asked.pressing is not None and asked.pressing.forces
    policy = asked.deployment.policy
    stays_s = asked.candidate.stays_s
    if stays_s >= policy.horizon_s:  # nobody looks further than that
        return _yes("staying", f"its blocks stay for the horizon of {policy.horizon_s:.0f} s")
    patience_s = 0.0 if forced else policy.cooldown_s
    needed_s = asked.price.start_s + asked.price.switch_s + patience_s
    says = (
        f"its blocks stay {stays_s:.0f} s; start, switch and {patience_s:.0f} s of use take"
        f" {needed_s:.0f} s"
    )
    return _no("staying", says) if stays_s < needed_s else _yes("staying", says)


def carried(asked: Asked) -> GuardVerdict:
    """Shrinking asks who carries the load. With N plans of which K stay, each of these gets N/K of what it has now."""
    now = asked.proposal.current.gear.shares
    left = asked.candidate.gear.shares
    shrinks = not asked.candidate.starts and len(left) < len(now)
    if not shrinks:
        return _yes("carried", f"{len(left)} plans after {len(now)}: no load is left to fewer")
    if asked.pressing is not None and asked.pressing.forces:
        return _yes("carried", f"{len(left)} of {len(now)} plans stay in any case")
    loads = (asked.proposal.load, asked.proposal.long_load)
    arrived = max(load.arrived_per_s for load in loads) * SHRINK_MARGIN
    holds = asked.candidate.outlook.good_requests_per_s
    says = (
        f"at {len(now)}/{len(left)} of their load the survivors hold the SLO up to {holds:.2f} requests/s;"
        f" {arrived:.2f} are asked for"
    )
    return _yes("carried", says) if holds >= arrived else _no("carried", says)


def cooled(asked: Asked) -> GuardVerdict:
    """The least time between shifts. A lost plan or an SLO certain to be missed does not wait for it."""
    if asked.desk.ended_s is None:
        return _yes("cooled", f"no shift of {asked.name} is known")
    since_s = asked.now_s - asked.desk.ended_s
    cooldown_s = asked.deployment.policy.cooldown_s
    says = f"shift {asked.desk.ended_shift} ended {since_s:.1f} s ago; the cooldown is {cooldown_s:.1f} s"
    if since_s >= cooldown_s:
        return _yes("cooled", says)
    if asked.pressing is not None:
        return _yes("cooled", f"{says}, lifted: {asked.pressing.says}")
    return _no("cooled", says)


def paying(asked: Asked) -> GuardVerdict:
    """The price, asked of everybody and never lifted: a shift that costs more than it brings helps nobody in need."""
    factor = asked.deployment.policy.hysteresis
    gain, cost = asked.price.gain_tokens, asked.price.cost_tokens
    says = (
        f"it gains {gain:.0f} SLO-good tokens over {asked.price.horizon_s:.0f} s"
        f" and costs {cost:.0f}, counted {factor:g} times"
    )
    return _yes("paying", says) if gain > factor * cost else _no("paying", says)


def noticeable(asked: Asked) -> GuardVerdict:
    """A gain within what predictions err by is none, however little it costs: a load that grew for good would lead to a
    second shift for its last percent. What presses is seen, not only predicted, and need not show."""
    delivers = asked.current.outlook.good_tokens_per_s * asked.price.horizon_s
    share = asked.price.gain_tokens / delivers if delivers > 0 else 1.0
    says = f"the gain is {share:.1%} of what the gear in force delivers; {NOTICEABLE:.0%} shows"
    if share >= NOTICEABLE or asked.pressing is not None:
        return _yes("noticeable", says)
    return _no("noticeable", says)


GUARDS: Final[tuple[Guard, ...]] = (
    # What people decided comes first: no number argues with it.
    automatic,
    unpinned,
    running,
    # One shift at a time, before anything that a shift in flight would change.
    free,
    # Then whether the question still stands …
    fresh,
    known,
    other,
    # … and whether this candidate can come to anything, which costs nothing to ask.
    untried,
    staying,
    carried,
    # Patience, which need overrules.
    cooled,
    # The price, which nothing overrules …
    paying,
    # … and last the doubt in its figures, which what is seen overrules.
    noticeable,
)


def judge(asked: Asked, guards: tuple[Guard, ...] = GUARDS) -> tuple[GuardVerdict, ...]:
    """Verdicts in order, up to and with the first no."""
    verdicts: list[GuardVerdict] = []
    for guard in guards:
        verdicts.append(guard(asked))
        if not verdicts[-1].passed:
            break
    return tuple(verdicts)


def _moved_on(asked: Asked) -> str | None:
    """Whether the gear in force is no longer the one that the proposal starts from.

    Plans that were lost since are no reason to wait. A proposal may know of losses that the route entry does not show
    yet; then it has read this very entry.
    """
    if asked.route is None:
        return None
    active = {routed.plan.id for routed in asked.route.in_state(PlanState.ACTIVE)}
    current = {plan.id for plan in asked.proposal.current.gear.plans}
    read = next(
        (
            seen.revision
            for seen in asked.proposal.seen
            if (seen.bucket, seen.key) == ("routes", asked.name)
        ),
        0,
    )
    added = sorted(active - current)
    if added and read < asked.route_revision:
        return f"plan {added[0]} is in force since (route revision {asked.route_revision}, it read {read})"
    kept = {plan.id for plan in asked.candidate.gear.plans} - set(asked.candidate.starts)
    missing = sorted(kept - active)
    if missing:
        return f"plan {missing[0]}, which it keeps, is not in force any more"
    return None


def _yes(guard: str, says: str) -> GuardVerdict:
    return GuardVerdict(guard=guard, passed=True, says=says)


def _no(guard: str, says: str) -> GuardVerdict:
    return GuardVerdict(guard=guard, passed=False, says=says)
