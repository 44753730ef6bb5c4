"""What targets report becomes progress of the flight it belongs to. Reports of earlier steps change nothing."""

from __future__ import annotations

from flexpipe.events.message import Message
from flexpipe.events.plan import (
    EngineReady,
    PlanDrained,
    PlanGated,
    PlanReport,
    PlanStopped,
    PlanStuck,
    PlanWarmed,
)
from flexpipe.events.route import BatchHandedOver, CanaryObserved
from flexpipe.model.fence import Fence
from flexpipe.model.sequence import MovedSequence
from flexpipe.model.shift import Phase, StartClass
from flexpipe.transitions.progress import MOVED_KEPT, CanaryCount, Flight, Stage

_GATED: dict[Stage, bool] = {Stage.OPEN: True, Stage.FREEZE: False, Stage.REOPEN: True}
"""Steps that wait for gates, and the state they want."""


def absorb(flight: Flight, message: Message) -> Flight:
    """The flight with what the message says of it."""
    match message:
        case CanaryObserved():
            return _observed(flight, message)
        case BatchHandedOver():
            return _handed_over(flight, message)
        case PlanReport():
            if not _is_current(flight, message.fence):
                return flight
            return _reported(flight, message)
        case _:
            return flight


def _reported(flight: Flight, report: PlanReport) -> Flight:
    progress, stage = flight.progress, flight.progress.stage
    name = f"{report.plan}@{report.node}"
    match report:
        case EngineReady() if stage is Stage.START:
            flight = flight.with_record(start_class=_slowest(flight, report.start_class))
            return flight.model_copy(update={"progress": progress.with_answer(name)})
        case PlanGated() if stage in _GATED and report.admitting == _GATED[stage]:
            return flight.model_copy(update={"progress": progress.with_answer(name)})
        case PlanDrained() if stage is Stage.DRAIN:
            return flight.model_copy(update={"progress": progress.with_answer(name)})
        case PlanStopped() if stage is Stage.STOP:
            return flight.model_copy(update={"progress": progress.with_answer(name)})
        case PlanWarmed() if stage is Stage.FILL:
            return _warmed(flight, report)
        case PlanStuck():
            drain = {name} if report.what == "drain" else set()
            stuck = tuple(sorted({*progress.stuck, *drain}))
            sentence = f"{report.node} could not {report.what} {report.plan}: {report.reason}"
            return flight.with_progress(stuck=stuck).noted(sentence)
        case _:
            return flight


def _warmed(flight: Flight, report: PlanWarmed) -> Flight:
    if report.errors:
        seen = CanaryCount(
            router=report.node,
            plan=report.plan,
            requests=report.requests,
            errors=report.errors,
            reason=report.reason,
        )
        return _counted(flight, seen)
    warmed = dict(flight.progress.warmed)
    warmed[report.plan] = warmed.get(report.plan, 0) + report.requests
    return flight.with_progress(warmed=tuple(sorted(warmed.items())))


def _observed(flight: Flight, seen: CanaryObserved) -> Flight:
    ours = seen.deployment == flight.record.deployment and seen.shift == flight.record.shift
    if not ours or flight.progress.seat(seen.plan) is None:
        return flight
    if flight.record.phase is not Phase.CANARY:
        return flight
    count = CanaryCount(
        router=seen.router,
        plan=seen.plan,
        requests=seen.requests,
        errors=seen.errors,
        reason=seen.reason,
        ttft_p50_ms=seen.ttft_p50_ms,
        itl_p50_ms=seen.itl_p50_ms,
    )
    return _counted(flight, count)


def _counted(flight: Flight, count: CanaryCount) -> Flight:
    """Counts are cumulative: the newest of a router replaces what it said before."""
    key = (count.router, count.plan)
    others = [each for each in flight.progress.canary if (each.router, each.plan) != key]
    canary = sorted((*others, count), key=lambda each: (each.router, each.plan))
    return flight.with_progress(canary=tuple(canary))


def _handed_over(flight: Flight, batch: BatchHandedOver) -> Flight:
    fence = batch.fence
    if (fence.deployment, fence.shift) != (flight.record.deployment, flight.record.shift):
        return flight
    flight = flight.with_record(moved=_merged(flight.record.moved, batch.moved))
    told = batch.router in flight.progress.told
    if told and batch.remaining == 0 and _is_current(flight, fence):
        progress = flight.progress.with_answer(batch.router)
        return flight.model_copy(update={"progress": progress})
    return flight


def _merged(
    known: tuple[MovedSequence, ...], news: tuple[MovedSequence, ...]
) -> tuple[MovedSequence, ...]:
    """A sequence reported again (its pause is known now, say) replaces what was said of it under that epoch."""
    by_key = {(each.sequence, each.epoch): each for each in known}
    for each in news:
        key = (each.sequence, each.epoch)
        if key in by_key or len(by_key) < MOVED_KEPT:
            by_key[key] = each
    return tuple(by_key[key] for key in sorted(by_key))


def _is_current(flight: Flight, fence: Fence) -> bool:
    record = flight.record
    mine = (fence.deployment, fence.shift) == (record.deployment, record.shift)
    return mine and fence.step >= flight.progress.first_step


def _slowest(flight: Flight, class_: StartClass) -> StartClass:
    """A shift is as cold as the coldest of its starts."""
    order = (StartClass.WARM, StartClass.STAGED, StartClass.COLD)
    if not flight.progress.answers:
        return class_
    return max(flight.record.start_class, class_, key=order.index)
