"""What the route entry must say at each step of a shift. Pure functions of the case; nothing here writes it."""

from __future__ import annotations

from typing import Final

from flexpipe.model.route import PlanState, RoutedPlan, RouteEntry
from flexpipe.transitions.case import Case
from flexpipe.transitions.progress import Seat

SHARE_DIGITS: Final = 6
"""Shares are written with so many decimals: finer ones mean nothing and read badly."""


def holding(case: Case) -> RouteEntry | None:
    """Before the switch: nothing that traffic sees changes, but the shift holds the slot. Lost plans are out."""
    entry = _base(case)
    if entry is None:
        return None
    return _with(entry, tuple(r for r in entry.plans if r.plan.id not in case.progress.lost))


def canary(case: Case) -> RouteEntry | None:
    """New plans take the canary's share of new requests between them; the others keep theirs."""
    entry = holding(case)
    if entry is None:
        return None
    serving = sum(routed.admit for routed in entry.in_state(PlanState.ACTIVE))
    share = case.policy.canary_share
    total = serving * share / (1 - share)
    weights = sum(case.target.weight(plan) for plan in case.new)
    plans = {routed.plan.id: routed for routed in entry.plans}
    for seat in case.seats:
        weight = case.target.weight(seat.plan)
        # Where the last plan beside them was just lost, new plans take everything.
        admit = round(total * weight / weights, SHARE_DIGITS) if serving else weight
        plans[seat.plan] = _seated(case, seat, plans.get(seat.plan), admit, PlanState.CANARY)
    return _with(entry, tuple(plans.values()))


def frozen(case: Case) -> RouteEntry | None:
    """Old plans take nothing more; kept and new ones take all, by the new gear's weights."""
    return _switched(case, old=PlanState.FROZEN, new=PlanState.CANARY)


def committed(case: Case) -> RouteEntry | None:
    """The new gear is in force and the slot is free."""
    entry = _switched(case, old=PlanState.RETIRING, new=PlanState.ACTIVE)
    return None if entry is None else entry.model_copy(update={"in_flight": None})


def restored(case: Case) -> RouteEntry | None:
    """The old gear is in force again, as far as it lives; new plans that had traffic retire; the slot is free."""
    entry = _base(case)
    if entry is None:
        return None
    plans = []
    for routed in entry.plans:
        plan = routed.plan.id
        if plan in case.progress.lost:
            continue
        weight = case.source.weight(plan)
        if weight > 0:
            plans.append(_as(routed, weight, PlanState.ACTIVE))
        elif plan in case.new:
            plans.append(_as(routed, 0.0, PlanState.RETIRING))
        else:
            plans.append(routed)
    changes = {"in_flight": None, "stopped": case.progress.was_stopped}
    return _with(entry, tuple(plans)).model_copy(update=changes)


def without_lost(case: Case) -> RouteEntry | None:
    """After the switch: the entry belongs to others now; only what died of ours leaves it."""
    return _without(case.entry, tuple(p for p in case.progress.claims if p in case.progress.lost))


def without_claims(case: Case) -> RouteEntry | None:
    """The plans that this shift stopped leave the entry."""
    return _without(case.entry, case.progress.claims)


def _switched(case: Case, *, old: PlanState, new: PlanState) -> RouteEntry | None:
    entry = _base(case)
    if entry is None:
        return None
    plans = {routed.plan.id: routed for routed in entry.plans}
    for plan in case.old:
        if plan in plans:
            plans[plan] = _as(plans[plan], 0.0, old)
    for plan in case.kept:
        if plan in plans:
            plans[plan] = _as(plans[plan], case.target.weight(plan), PlanState.ACTIVE)
    for seat in case.seats:
        weight = case.target.weight(seat.plan)
        plans[seat.plan] = _seated(case, seat, plans.get(seat.plan), weight, new)
    for plan in case.progress.lost:
        plans.pop(plan, None)
    stopped = entry.stopped if case.progress.imposed else not case.target.shares
    return _with(entry, tuple(plans.values())).model_copy(update={"stopped": stopped})


def _base(case: Case) -> RouteEntry | None:
    """The present entry with this shift in the slot; None where there is neither an entry nor a deployment."""
    declared, entry, shift = case.deployment, case.entry, case.record.shift
    if entry is None:
        if declared is None:
            return None
        return RouteEntry(
            deployment=case.name,
            model=declared.model,
            policy=declared.policy,
            term=case.record.term,
            shift=shift,
            in_flight=shift,
        )
    changes: dict[str, object] = {"shift": max(entry.shift, shift), "in_flight": shift}
    if declared is not None:
        changes |= {"model": declared.model, "policy": declared.policy}
    return entry.model_copy(update=changes)


def _seated(
    case: Case, seat: Seat, routed: RoutedPlan | None, admit: float, state: PlanState
) -> RoutedPlan:
    if routed is not None:
        return _as(routed, admit, state)
    return RoutedPlan(
        plan=case.plan(seat.plan),
        front=seat.front,
        admit=admit,
        state=state,
        fence=seat.fence or case.fence,
    )


def _as(routed: RoutedPlan, admit: float, state: PlanState) -> RoutedPlan:
    return routed.model_copy(update={"admit": admit, "state": state})


def _with(entry: RouteEntry, plans: tuple[RoutedPlan, ...]) -> RouteEntry:
    return entry.model_copy(
        update={"plans": tuple(sorted(plans, key=lambda routed: routed.plan.id))}
    )


def _without(entry: RouteEntry | None, gone: tuple[str, ...]) -> RouteEntry | None:
    if entry is None:
        return None
    return _with(entry, tuple(r for r in entry.plans if r.plan.id not in gone))
