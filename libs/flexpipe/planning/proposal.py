"""One look at one deployment: what it has, what it could have, and why not more. Called by the planner's machine.

A function of what the buckets and the load say at one moment; it keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.gear import Gear, PlanShare
from flexpipe.model.outlook import Candidate, GearOutlook, Load, Rejected
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.shift import DeviceReservations
from flexpipe.performance.outlook import balanced_gear, gear_outlook, plan_outlook
from flexpipe.planning.ground import Ground, survey
from flexpipe.planning.layouts import Choices, Drawings, Option, choices_on
from flexpipe.planning.mixing import Draft, Present, drafts
from flexpipe.planning.ranking import Ranked, best_of, stays_s
from flexpipe.planning.spots import place
from flexpipe.planning.wanted import Wanted, wanted

REJECTED_LIMIT: Final = 24
"""Lines of what is not possible: enough for each reason of a fleet of some racks, and the message stays small."""

_SERVING: Final = (PlanState.ACTIVE, PlanState.FROZEN)


class View(Frozen):
    """What a look rests on."""

    now_s: float
    deployment: Deployment
    entry: RouteEntry
    fleet: Fleet
    short: Load
    long: Load


class _Table(NamedTuple):
    """What all drafts of one look are worked out on."""

    ground: Ground
    drawings: Drawings
    asked: Wanted


class Look(Frozen):
    """What a look finds. `nowhere`: the constraint that fails where nothing serves and nothing can be started."""

    current: Candidate
    candidates: tuple[Candidate, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    nowhere: str | None = None
    falls_short: bool = False  # the present gear does not carry what is asked for


def look(
    view: View,
    held: Mapping[DeviceRef, DeviceReservations],
    avoid: frozenset[DeviceRef] = frozenset(),
    drawings: Drawings | None = None,
) -> Look:
    """Gears for one deployment on the fleet as it is now. `avoid`: devices that others need more.

    `drawings` of this very deployment and fleet save laying every plan again.
    """
    deployment, fleet = view.deployment, view.fleet
    drawings = drawings or Drawings(deployment, fleet)
    gear = gear_in_force(view.entry)
    alive = tuple(plan for plan in gear.plans if is_alive(plan, fleet))
    ground = survey(deployment, fleet, held, avoid)
    try:
        asked = _wanted(view, alive)
        current = _current(view, gear, alive, asked.basis)
        present = tuple(_present(plan, view, asked.need) for plan in alive)
    except InvalidInput as fault:
        nothing = Candidate(gear=gear, outlook=GearOutlook(), stays_s=_stays(gear, view))
        why = Rejected(what="every gear", reason=f"{fault.field}: {fault.fix}")
        return Look(current=nothing, rejected=(why,), nowhere=None if alive else why.reason)
    choices = choices_on(drawings, ground, asked.need)
    found, left_out = _worthwhile(view, _Table(ground, drawings, asked), choices.options, present)
    nowhere = None if alive or found else _nowhere(ground, choices)
    said = () if nowhere is None else (Rejected(what="every gear", reason=nowhere),)
    carried = sum(each.outlook.good_requests_per_s for each in present)
    return Look(
        current=current,
        candidates=tuple(_candidate(each, view, asked.basis) for each in best_of(found)),
        rejected=(*said, *left_out, *ground.obstacles, *choices.rejected)[:REJECTED_LIMIT],
        nowhere=nowhere,
        falls_short=not alive or carried < asked.requests_per_s or len(alive) < len(gear.plans),
    )


def gear_in_force(entry: RouteEntry) -> Gear:
    """The plans that serve, with their shares; frozen ones serve until their shift has moved what they have."""
    serving = [
        routed
        for routed in entry.in_state(*_SERVING)
        if routed.admit > 0 or routed.state is PlanState.FROZEN
    ]
    shares = (PlanShare(plan=routed.plan, weight=routed.admit or 1.0) for routed in serving)
    return Gear(shares=tuple(sorted(shares, key=lambda share: share.plan.id)))


def is_alive(plan: Plan, fleet: Fleet) -> bool:
    """Whether every device of a plan is there."""
    return all(fleet.device(ref) is not None for ref in plan.devices)


def _wanted(view: View, alive: Sequence[Plan]) -> Wanted:
    shape = wanted(view.short, view.long, 0.0).basis
    rates = [plan_outlook(plan, view.deployment, shape).good_requests_per_s for plan in alive]
    return wanted(view.short, view.long, sum(rates))


def _current(view: View, gear: Gear, alive: Sequence[Plan], basis: Load) -> Candidate:
    """The gear in force; its outlook counts only what is alive of it."""
    ids = {plan.id for plan in alive}
    living = Gear(shares=tuple(share for share in gear.shares if share.plan.id in ids))
    return Candidate(
        gear=gear,
        outlook=gear_outlook(living, view.deployment, basis),
        stays_s=_stays(living, view) if alive else 0.0,
    )


def _present(plan: Plan, view: View, need: Load) -> Present:
    stays = _stays(Gear(shares=(PlanShare(plan=plan),)), view)
    return Present(
        plan=plan,
        outlook=plan_outlook(plan, view.deployment, need),
        leaves=stays < view.deployment.policy.horizon_s,
    )


def _worthwhile(
    view: View, table: _Table, choices: Sequence[Option], present: Sequence[Present]
) -> tuple[list[Ranked], tuple[Rejected, ...]]:
    """Gears that are better than the one in force in what counts, and what is left out of the others."""
    now = Draft(kept=tuple(present), added=(), mask=0)
    bar = _ranked(now, view, table) if present else None
    may_give_up = table.asked.may_shrink or any(each.leaves for each in present)
    found: list[Ranked] = []
    others = 0
    for draft in drafts(table.ground, choices, present, table.asked.requests_per_s):
        if draft.rate < now.rate and not may_give_up:
            continue
        ranked = _ranked(draft, view, table)
        if bar is None or ranked.worth < bar.worth:
            found.append(ranked)
        else:
            others += 1
    left_out = []
    if present and not may_give_up:
        why = f"no router was heard for {view.short.window_s:g} s, and silence is not idleness"
        left_out.append(Rejected(what="gears that carry less", reason=why))
    if others:
        why = "they carry no more of the demand, stay no longer and free no device"
        left_out.append(Rejected(what=f"{others} other gears", reason=why))
    return found, tuple(left_out)


def _ranked(draft: Draft, view: View, table: _Table) -> Ranked:
    deployment, need = view.deployment, table.asked.need
    added: list[Plan] = []
    used = 0
    for option in draft.added:
        spots = place(table.ground.spots, option.layout.kinds, used) or ()
        for spot in spots:
            used |= spot.mask
        added.append(table.drawings.plan(option.layout, spots))
    kept = [each.plan for each in draft.kept]
    gear = balanced_gear([*kept, *added], deployment, need)
    return Ranked(
        gear=gear,
        starts=tuple(sorted(plan.id for plan in added)),
        keeps=tuple(sorted(plan.id for plan in kept)),
        devices=draft.devices,
        stays_s=_stays(gear, view),
        horizon_s=deployment.policy.horizon_s,
        under_need=gear_outlook(gear, deployment, need),
        wanted_tokens_per_s=need.arrived_per_s * need.output_tokens,
    )


def _candidate(ranked: Ranked, view: View, basis: Load) -> Candidate:
    return Candidate(
        gear=ranked.gear,
        outlook=gear_outlook(ranked.gear, view.deployment, basis),
        starts=ranked.starts,
        stays_s=ranked.stays_s,
    )


def _stays(gear: Gear, view: View) -> float:
    return stays_s(gear, view.fleet, view.now_s, view.deployment.policy.horizon_s)


def _nowhere(ground: Ground, choices: Choices) -> str:
    """The constraint that fails, in one sentence."""
    if not ground.free:
        taken = "; ".join(f"{each.what}: {each.reason}" for each in ground.obstacles[:3])
        return f"no block is free ({taken})" if taken else "no block is free: the fleet is empty"
    failing = choices.nearest or next(iter((*choices.rejected, *ground.obstacles)), None)
    if failing is None:
        return f"none of the {ground.free} free devices lies in a block that carries a layout"
    return f"{failing.what}: {failing.reason}"
