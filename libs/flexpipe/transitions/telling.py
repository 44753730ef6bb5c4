"""What is said about a shift: its events, and its trace when the record closes.

Every fact is said after it was persisted, and said again when the shift is taken up by a restarted executor: the same
body, hence the same id. Only the last ones go out just before the record closes, since nobody takes up a closed one.
"""

from __future__ import annotations

from flexpipe.events.shift import (
    PlanRetired,
    ShiftAbandoned,
    ShiftCompleted,
    ShiftOrdered,
    ShiftPhaseChanged,
    ShiftRolledBack,
)
from flexpipe.kernel.ids import span_id, traceparent
from flexpipe.kernel.machine import Measure, Span
from flexpipe.model.gear import Gear, PlanShare
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.shift import Outcome, Phase, ShiftRecord
from flexpipe.transitions.outbox import Outbox
from flexpipe.transitions.progress import Flight

_NEVER_ACCEPTED = (Phase.RESERVING, Phase.UNDOING, Phase.UNWINDING, Phase.CLOSED)
_CLEANING = (Phase.RETIRING, Phase.RELEASING, Phase.UNWINDING, Phase.CLOSED)


def tell(out: Outbox, before: ShiftRecord | None, flight: Flight, entry: RouteEntry | None) -> None:
    """Say what changed from `before` to the flight; None says everything that still holds (it was taken up)."""
    record = flight.record
    parent = phase_traceparent(record)
    if _accepted(record) and not (before is not None and _accepted(before)):
        ordered = ShiftOrdered(
            deployment=record.deployment,
            shift=record.shift,
            order_id=flight.progress.order_id,
            source_gear=record.source.id,
            target_gear=record.order.target.id,
            trigger=record.order.trigger,
        )
        out.say(ordered, parent)
    if before is None or before.phase is not record.phase:
        changed = ShiftPhaseChanged(
            deployment=record.deployment,
            shift=record.shift,
            phase=record.phase,
            previous=record.timings[-2].phase if len(record.timings) > 1 else None,
            at_s=record.timings[-1].start_s,
        )
        out.say(changed, parent)
    if record.outcome is not None and (before is None or before.outcome is None):
        out.say(_outcome(record, entry), parent)


def tell_retired(out: Outbox, flight: Flight) -> None:
    """Say of each plan that was cleaned up that nothing of it is left."""
    record = flight.record
    for plan in flight.progress.claims:
        retired = PlanRetired(deployment=record.deployment, shift=record.shift, plan=plan)
        out.say(retired, phase_traceparent(record))


def tell_trace(out: Outbox, record: ShiftRecord) -> None:
    """The closed shift as spans: the root and one child a phase."""
    trace, root = record.order.trace_id, _root_span(record)
    closed_at_s = record.closed_at_s or record.accepted_at_s
    failed = record.outcome is not Outcome.COMPLETED
    out.do(
        Span(
            trace_id=trace,
            span_id=root,
            parent_span_id=record.order.parent_span_id,
            name=f"shift {record.deployment} {record.shift}",
            start_s=record.order.ordered_at_s,
            end_s=closed_at_s,
            attributes={
                "flexpipe.deployment": record.deployment,
                "flexpipe.shift": record.shift,
                "flexpipe.source": record.source.label,
                "flexpipe.target": record.order.target.label,
                "flexpipe.trigger": record.order.trigger,
                "flexpipe.outcome": str(record.outcome),
                "flexpipe.start_class": str(record.start_class),
                "flexpipe.moved": len(record.moved),
            },
            error=record.reason if failed else None,
        )
    )
    for timing in record.timings:
        if timing.phase is Phase.CLOSED:
            continue
        out.do(
            Span(
                trace_id=trace,
                span_id=_phase_span(record, timing.phase),
                parent_span_id=root,
                name=str(timing.phase),
                start_s=timing.start_s,
                end_s=closed_at_s if timing.end_s is None else timing.end_s,
                attributes={
                    "flexpipe.deployment": record.deployment,
                    "flexpipe.shift": record.shift,
                },
            )
        )


def measure(out: Outbox, record: ShiftRecord) -> None:
    """The closed shift as readings for metrics."""
    whose = {"deployment": record.deployment, "start_class": str(record.start_class)}
    outcome = {**whose, "outcome": str(record.outcome)}
    out.do(Measure(name="flexpipe_executor_shifts_total", value=1.0, labels=outcome))
    for timing in record.timings:
        if timing.end_s is not None:
            labels = {**whose, "phase": str(timing.phase)}
            lasted_s = timing.end_s - timing.start_s
            out.do(Measure(name="flexpipe_executor_phase_seconds", value=lasted_s, labels=labels))


def phase_traceparent(record: ShiftRecord) -> str:
    """Under which span commands and events of the present phase belong."""
    if record.phase is Phase.CLOSED:
        return traceparent(record.order.trace_id, _root_span(record))
    return traceparent(record.order.trace_id, _phase_span(record, record.phase))


def gear_of(entry: RouteEntry | None) -> Gear:
    """The gear in force: the active plans with their shares as weights."""
    if entry is None:
        return Gear()
    active = entry.in_state(PlanState.ACTIVE)
    shares = [PlanShare(plan=r.plan, weight=r.admit) for r in active if r.admit > 0]
    return Gear(shares=tuple(sorted(shares, key=lambda share: share.plan.id)))


def _accepted(record: ShiftRecord) -> bool:
    """Whether its memory was ever reserved: it went somewhere from there but back."""
    return any(timing.phase not in _NEVER_ACCEPTED for timing in record.timings)


def _outcome(
    record: ShiftRecord, entry: RouteEntry | None
) -> ShiftCompleted | ShiftRolledBack | ShiftAbandoned:
    decided_at_s = next(t.start_s for t in record.timings if t.phase in _CLEANING)
    # A record that is taken up later may find later shifts in the entry; what it completed is its own target.
    completed = record.outcome is Outcome.COMPLETED
    gear = record.order.target if completed else gear_of(entry)
    facts = {
        "deployment": record.deployment,
        "shift": record.shift,
        "gear": gear.id,
        "duration_s": max(decided_at_s - record.order.ordered_at_s, 0.0),
        "moved": record.moved,
    }
    if completed:
        return ShiftCompleted.model_validate({**facts, "start_class": record.start_class})
    facts["reason"] = record.reason or "no reason was recorded"
    if record.outcome is Outcome.ABANDONED:
        return ShiftAbandoned.model_validate(facts)
    return ShiftRolledBack.model_validate(facts)


def _root_span(record: ShiftRecord) -> str:
    return span_id("shift", record.deployment, record.shift)


def _phase_span(record: ShiftRecord, phase: Phase) -> str:
    return span_id("phase", record.deployment, record.shift, phase)
