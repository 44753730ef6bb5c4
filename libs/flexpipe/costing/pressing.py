"""Whether a deployment is in need: what lifts the cooldown, and what load is then believed.

Called by the estimator before it prices a proposal. Need never lifts the price.
"""

from __future__ import annotations

from typing import Final

from flexpipe.costing.desk import Desk
from flexpipe.events.planning import CandidatesProposed
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.deployment import Deployment, Slo
from flexpipe.model.outlook import Load

MISSED_MARGIN: Final = 1.1
"""An SLO counts as missed where a tenth more comes than the gear in force can carry: a roofline errs by that."""
NOMINAL_LOAD: Final = Load(
    data="busy", window_s=0.0, arrived_per_s=1.0, prompt_tokens=512.0, output_tokens=256.0
)
"""What a gear is judged by where no load was ever seen: a chat turn a second. Only differences between gears matter."""


class Pressing(Frozen):
    """A need. `forces`: what serves is gone or going, so that even without a load something must be done."""

    says: str
    forces: bool


def pressing(
    proposal: CandidatesProposed, desk: Desk, deployment: Deployment, now_s: float
) -> Pressing | None:
    """The most pressing need, or None."""
    current = proposal.current
    alive = {plan.plan for plan in current.outlook.plans}
    if not alive:
        return Pressing(says=f"nothing serves {proposal.deployment}", forces=True)
    # The planner sees devices go before the executor has taken their plan out of the route entry.
    dead = [plan.id for plan in current.gear.plans if plan.id not in alive]
    lost = sorted({*desk.lost, *dead})
    if lost:
        return Pressing(says=f"{len(lost)} plan(s) were lost: {', '.join(lost)}", forces=True)
    policy = deployment.policy
    if current.stays_s < policy.horizon_s:
        says = f"the gear in force goes in {max(current.stays_s, 0.0):.0f} s"
        return Pressing(says=says, forces=True)
    # Before a whole window shows nothing but the new load, a gear for it would be made too small, and be changed again.
    if desk.over_s(now_s) < policy.load_window_s:
        return None
    return _missing(proposal, desk, deployment.slo)


def _missing(proposal: CandidatesProposed, desk: Desk, slo: Slo) -> Pressing | None:
    """The SLO is certain to be missed, and not by a passing peak: far more comes than is carried, in both windows, or
    whoever joins the queue waits longer than the SLO allows, and the queue grows."""
    load, long = proposal.load, proposal.long_load
    holds = proposal.current.outlook.good_requests_per_s
    both = min(load.arrived_per_s, long.arrived_per_s)
    over_both = long.data == "busy" and both > holds * MISSED_MARGIN
    waits_too_long = load.queued * 1000 > holds * slo.ttft_ms
    grows = 0 < desk.queued < load.queued
    if over_both:
        why = f"{long.arrived_per_s:.2f} over {long.window_s:g} s"
    elif waits_too_long and grows:
        why = f"the queue grew from {desk.queued} to {load.queued}"
    else:
        return None
    says = f"{load.arrived_per_s:.2f} requests/s come, {why}, and the SLO holds up to {holds:.2f}"
    return Pressing(says=says, forces=False)


def loads_to_judge_by(
    proposal: CandidatesProposed, desk: Desk, need: Pressing | None
) -> tuple[Load, ...]:
    """Windows of load in each of which a change must pay; the first is what is expected to come.

    Both windows, and not the short one alone: a load that swings around the point where one more plan pays is over it
    half of the time, and each swing would be a shift. In need the newest is believed at once. Where a gear is gone and
    no request is seen, because none gets through or none came, the last load that was one stands for those to come.
    """
    load, long = proposal.load, proposal.long_load
    if load.data == "busy" and load.arrived_per_s > 0:
        if need is None and long.data == "busy" and long.arrived_per_s > 0:
            return (load, long)
        return (load,)
    if need is not None and need.forces:
        return (desk.busy_load or NOMINAL_LOAD,)
    return (load,)
