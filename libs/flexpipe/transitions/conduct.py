"""Carries out what a step decided: record first, then the route entry, then words and commands. Called by the machine.

Every write of a record or a route entry of a running shift is made here.
"""

from __future__ import annotations

from enum import StrEnum

from flexpipe.model.shift import Outcome, Phase, PhaseTiming, ShiftRecord
from flexpipe.transitions.case import Case
from flexpipe.transitions.moving import move_commands, serving
from flexpipe.transitions.outbox import Outbox
from flexpipe.transitions.progress import LOG_TAIL_CHARS, Flight, Stage
from flexpipe.transitions.step import Go, Step, Undo
from flexpipe.transitions.steps import STEPS
from flexpipe.transitions.telling import (
    measure,
    phase_traceparent,
    tell,
    tell_retired,
    tell_trace,
)


class How(StrEnum):
    """Why a step is entered."""

    FIRST = "first"
    AGAIN = "again"  # some did not answer in time
    RESUMED = "resumed"  # by a restarted executor, or after a write was refused: all is asked anew
    AMENDED = "amended"  # a plan was lost meanwhile: the route entry changes, answers stay


def begin(case: Case, out: Outbox) -> Flight:
    """Write a new record, which already stands in its first step."""
    flight = _amended(case.after(_renewed(case.flight, case.record.phase, case, How.FIRST)))
    _write(case.after(flight), out, None)
    return flight


def enter(case: Case, out: Outbox, go: Go, how: How = How.FIRST) -> Flight:
    """Enter a step: persist it, make the route entry say what it wants, say so, and send its commands."""
    flight = case.flight.noted(*go.notes)
    if go.outcome is not None:
        changes: dict[str, object] = {"outcome": go.outcome}
        if case.record.phase is Phase.COMMITTING:
            changes["committed_at_s"] = case.now_s
        flight = flight.with_record(**changes)
    if go.reason is not None:
        flight = flight.with_record(reason=go.reason)
    flight = _renewed(flight, go.phase, case, how, go.stage)
    flight = _amended(case.after(flight))
    before = None if how is How.RESUMED else case.record
    return _write(case.after(flight), out, before, how)


def undo(case: Case, out: Outbox, why: Undo) -> Flight:
    """Turn back."""
    lost = tuple(sorted({*case.progress.lost, *why.lost}))
    flight = case.flight.with_progress(lost=lost).with_record(
        reason=why.reason, log_tail=why.log_tail[-LOG_TAIL_CHARS:]
    )
    if case.record.phase is Phase.RESERVING:
        # Nothing was started, and the devices are somebody else's: only what runs already is ours to clean up.
        running = tuple(seat for seat in case.seats if seat.thawed)
        flight = flight.with_progress(seats=running)
    case = case.after(flight)
    closed_gates = case.progress.frozen and bool(case.alive(case.old))
    stage = Stage.REOPEN if closed_gates else Stage.RESTORE
    return enter(case, out, Go(Phase.UNDOING, stage))


def send(case: Case, out: Outbox) -> Flight:
    """Send the commands of a step whose route entry is written, now that its revision is known."""
    step = STEPS[case.progress.stage]
    flight = case.flight.with_record(step=case.record.step + 1)
    flight = _timed(case.after(flight.with_progress(unsent=False, told=_told(case, step))))
    case = case.after(flight)
    out.put("shifts", case.record.key, flight.stored())
    _command(case, out, step, None)
    return flight


def tell_lost(case: Case, out: Outbox) -> Flight:
    """Have the routers replay what ran on plans that were lost outside a hand-over."""
    owed = case.progress.owed
    flight = case.flight.with_record(step=case.record.step + 1).with_progress(owed=())
    answers = case.progress.answers
    case = case.after(flight.with_progress(answers=()))  # every router is told
    out.put("shifts", case.record.key, flight.stored())
    limit_s = case.policy.hand_over_limit_s
    for order in move_commands(case, plans=owed, to=serving(case), limit_s=limit_s, forced=True):
        out.say(order, phase_traceparent(case.record))
    return flight.with_progress(answers=answers)


def close(case: Case, out: Outbox, reason: str | None) -> None:
    """The end. A reason comes with an order that never found room."""
    record = _in_phase(case.record, Phase.CLOSED, case.now_s)
    changes: dict[str, object] = {"closed_at_s": case.now_s}
    if reason is not None:
        changes |= {"outcome": Outcome.ROLLED_BACK, "reason": reason}
    record = record.model_copy(update=changes)
    flight = Flight(record=record, progress=case.progress)
    tell_retired(out, flight)
    tell(out, case.record, flight, case.entry)
    tell_trace(out, record)
    measure(out, record)
    out.put("shifts", record.key, flight.stored())


def _write(case: Case, out: Outbox, before: ShiftRecord | None, how: How = How.FIRST) -> Flight:
    flight, step = case.flight, STEPS[case.progress.stage]
    entry = step.entry(case)
    text = None if entry is None else entry.canonical_json()
    # Routers that missed the freeze are shown it again: the same entry at a new revision.
    shown_again = how is How.AGAIN and case.progress.stage is Stage.FREEZE
    writes_entry = text is not None and (
        shown_again or text != case.books.text("routes", case.name)
    )
    waits = step.names_revision and writes_entry
    silent = how is How.AMENDED and not step.moves
    if waits:
        flight = flight.with_progress(unsent=True)
    elif step.moves:
        flight = flight.with_progress(told=_told(case, step))
    case = case.after(flight)
    out.put("shifts", case.record.key, flight.stored())
    if writes_entry and text is not None:
        out.put("routes", case.name, text)
    tell(out, before, flight, entry)
    if not waits and not silent:
        _command(case, out, step, text)
    return flight


def _command(case: Case, out: Outbox, step: Step, entry_text: str | None) -> None:
    for command in step.commands(case, entry_text):
        out.say(command, phase_traceparent(case.record))


def _renewed(
    flight: Flight, phase: Phase, case: Case, how: How, stage: Stage | None = None
) -> Flight:
    """Record and progress as they stand at the entrance of a step."""
    record = _in_phase(flight.record, phase, case.now_s)
    # A first start has no entry yet that the take-over could have put under a new term.
    unled = record.term + 1 if how is How.RESUMED else record.term
    term = case.entry.term if case.entry is not None else unled
    record = record.model_copy(update={"step": record.step + 1, "term": max(term, record.term)})
    flight = Flight(record=record, progress=flight.progress)
    forward_only = case.forward_only or case.after(flight).forward_only
    flight = flight.with_record(forward_only=forward_only)
    stage = stage or flight.progress.stage
    if how is How.AMENDED:
        moves = STEPS[stage].moves
        if not moves:
            return flight
        flight = flight.with_progress(answers=(), first_step=flight.record.step)
        return _timed(case.after(flight))
    changes: dict[str, object] = {"stage": stage, "unsent": False}
    if how is How.AGAIN:
        changes["tries"] = flight.progress.tries + 1
    else:
        changes |= {
            "tries": 0,
            "answers": (),
            "stuck": (),
            "told": (),
            "first_step": flight.record.step,
            "freeze_revision": 0,
        }
    return _timed(case.after(flight.with_progress(**changes)))


def _amended(case: Case) -> Flight:
    """Progress that follows from where the shift now stands."""
    flight, progress, phase = case.flight, case.progress, case.record.phase
    changes: dict[str, object] = {}
    if progress.stage is Stage.START:
        changes["seats"] = tuple(
            seat if seat.thawed else seat.model_copy(update={"fence": case.fence})
            for seat in progress.seats
        )
    if progress.stage is Stage.OBSERVE or phase is Phase.FREEZING:
        changes["exposed"] = progress.exposed or bool(progress.seats)
    if phase is Phase.FREEZING:
        changes["frozen"] = progress.frozen or bool(case.old)
    if phase is Phase.COMMITTING:
        dead = tuple(plan for plan in case.kept if plan in progress.lost)
        changes["claims"] = tuple(sorted({*case.old, *dead}))
    if phase is Phase.UNDOING:
        changes["claims"] = tuple(sorted({*case.new, *case.lost_source}))
    return flight.with_progress(**changes) if changes else flight


def _timed(case: Case) -> Flight:
    limit_s = STEPS[case.progress.stage].limit_s(case)
    deadline_s = None if limit_s is None else case.now_s + limit_s
    return case.flight.with_progress(since_s=case.now_s, deadline_s=deadline_s)


def _told(case: Case, step: Step) -> tuple[str, ...]:
    return case.books.roster() if step.moves else ()


def _in_phase(record: ShiftRecord, phase: Phase, now_s: float) -> ShiftRecord:
    if record.timings and record.phase is phase:
        return record
    ended = tuple(
        timing if timing.end_s is not None else timing.model_copy(update={"end_s": now_s})
        for timing in record.timings
    )
    end_s = now_s if phase is Phase.CLOSED else None
    timing = PhaseTiming(phase=phase, start_s=now_s, end_s=end_s)
    return record.model_copy(update={"phase": phase, "timings": (*ended, timing)})
