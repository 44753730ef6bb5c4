"""Engines that died or did not start: whose shift that concerns, and the one-step shift where it concerns none."""

from __future__ import annotations

from collections.abc import Mapping

from flexpipe.events.shift import OrderShift
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.ids import derived_id, trace_id
from flexpipe.model.fence import Fence
from flexpipe.model.gear import Gear, PlanShare
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.shift import Phase, ShiftOrder, ShiftRecord
from flexpipe.transitions.books import Books
from flexpipe.transitions.case import Case
from flexpipe.transitions.orders import STOPPABLE, next_shift
from flexpipe.transitions.progress import (
    LOG_TAIL_CHARS,
    UNDOABLE_PHASES,
    Flight,
    Progress,
    Stage,
)
from flexpipe.transitions.telling import gear_of


class Loss(Frozen):
    """A report of `EngineLost`, or of `EngineFailed` where `started` is false.

    `left`: nobody reported it; the fleet lost one of its devices, so that its worker may be gone as well.
    """

    plan: str
    node: str
    fence: Fence
    reason: str
    log_tail: str
    started: bool
    left: bool = False

    @property
    def sentence(self) -> str:
        """For people."""
        if self.left:
            return f"plan {self.plan} was lost: {self.reason}"
        what = "was lost" if self.started else "failed to start"
        return f"engine of {self.plan} on {self.node} {what}: {self.reason}"


def stranded(books: Books) -> tuple[Loss, ...]:
    """Plans of route entries that have a device which is not in the fleet any more, by deployment and plan."""
    found = []
    for entry in books.routes():
        for routed in sorted(entry.plans, key=lambda each: each.plan.id):
            reasons = ((ref, books.left(ref)) for ref in routed.plan.devices)
            gone = next(((ref, why) for ref, why in reasons if why is not None), None)
            if gone is not None:
                loss = Loss(
                    plan=routed.plan.id,
                    node=gone[0].node,
                    fence=routed.fence,
                    reason=gone[1],
                    log_tail="",
                    started=True,
                    left=True,
                )
                found.append(loss)
    return tuple(found)


def concerned(loss: Loss, cases: Mapping[tuple[str, int], Case]) -> Case | None:
    """The open flight whose business the plan is: the one that holds the slot, or the one that cleans it up."""
    mine = [case for key, case in sorted(cases.items()) if key[0] == loss.fence.deployment]
    for case in mine:
        claims = case.record.phase not in UNDOABLE_PHASES and loss.plan in case.progress.claims
        if claims and loss.fence.shift <= case.record.shift:
            return case
    for case in mine:
        if not case.flight.holds_slot:
            continue
        if loss.plan in case.new and loss.fence.shift == _start_of(case, loss.plan):
            return case
        if case.source.weight(loss.plan) > 0 and _is_of_present_engine(loss, case.books):
            return case
    return None


def is_undoing(loss: Loss, case: Case) -> bool:
    """Whether the loss turns the shift back: a new plan, before the point of no return."""
    return loss.plan in case.new and case.record.phase in UNDOABLE_PHASES


def outside(loss: Loss, now_s: float, books: Books) -> Flight | None:
    """The one-step shift to what survives; None where the plan does not serve (an old report, say)."""
    name = loss.fence.deployment
    entry = books.route(name)
    routed = None if entry is None else entry.plan(loss.plan)
    if (
        entry is None
        or routed is None
        or routed.state is not PlanState.ACTIVE
        or not _is_of_present_engine(loss, books)
    ):
        return None
    source = gear_of(entry)
    survivors = Gear(shares=tuple(s for s in source.shares if s.plan.id != loss.plan))
    shift = next_shift(name, books)
    order = ShiftOrder(
        deployment=name,
        target=survivors,
        trigger=loss.sentence,
        by="executor",
        ordered_at_s=now_s,
        trace_id=trace_id("shift", name, shift),
    )
    record = ShiftRecord(
        deployment=name,
        shift=shift,
        term=entry.term,
        step=0,
        phase=Phase.COMMITTING,
        order=order,
        source=source,
        forward_only=True,
        reason=loss.sentence,
        log_tail=loss.log_tail[-LOG_TAIL_CHARS:],
        accepted_at_s=now_s,
    )
    progress = Progress(
        order_id=derived_id("lost", name, shift, loss.plan),
        stage=Stage.COMMIT,
        lost=(loss.plan,),
        imposed=True,
        was_stopped=entry.stopped,
    )
    return Flight(record=record, progress=progress)


def rescue(
    entry: RouteEntry, now_s: float, books: Books, cases: Mapping[tuple[str, int], Case]
) -> OrderShift | None:
    """The order that lets retiring plans in again where nothing else is left of a gear; None where there is no need.

    Derived from what is persisted alone, so a restarted executor comes to the same order; its id is that of the
    engine start, so each engine is let in again once at most.
    """
    name = entry.deployment
    mine = [case for key, case in sorted(cases.items()) if key[0] == name]
    serves = any(each.state is not PlanState.RETIRING for each in entry.plans)
    if serves or entry.stopped or entry.pin is not None or any(c.flight.holds_slot for c in mine):
        return None
    left = [
        routed
        for routed in entry.plans
        for case in mine
        if routed.plan.id in case.progress.claims
        and routed.plan.id not in case.progress.lost
        and case.progress.stage in STOPPABLE
    ]
    if not left:
        return None
    shift = next_shift(name, books)
    plans = sorted(left, key=lambda routed: routed.plan.id)
    order = ShiftOrder(
        deployment=name,
        target=Gear(shares=tuple(PlanShare(plan=routed.plan) for routed in plans)),
        trigger="nothing else serves: what was retiring is let in again",
        by="executor",
        ordered_at_s=now_s,
        trace_id=trace_id("shift", name, shift),
    )
    starts = [f"{routed.plan.id}:{routed.fence}" for routed in plans]
    return OrderShift(order_id=derived_id("rescue", name, *starts), order=order)


def _start_of(case: Case, plan: str) -> int:
    """The shift that started the engine a seat stands for."""
    seat = case.progress.seat(plan)
    thawed = seat is not None and seat.thawed and seat.fence is not None
    return seat.fence.shift if thawed and seat and seat.fence else case.record.shift


def _is_of_present_engine(loss: Loss, books: Books) -> bool:
    """A plan can be started again by a later shift; what an earlier engine of it reported is past."""
    entry = books.route(loss.fence.deployment)
    routed = None if entry is None else entry.plan(loss.plan)
    return routed is not None and loss.fence.shift >= routed.fence.shift
