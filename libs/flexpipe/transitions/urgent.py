"""One urgent command, its answer and its pin. Called by `hatch`; nothing here decides."""

from __future__ import annotations

from typing import Final, Literal

from flexpipe.events.hatch import (
    CancelShift,
    DownshiftDeployment,
    UnpinDeployment,
    Urgent,
    UrgentAnswered,
)
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Delivered, Measure, Span
from flexpipe.model.names import Name
from flexpipe.model.route import Pin, RouteEntry
from flexpipe.transitions.board import Board
from flexpipe.transitions.outbox import Outbox
from flexpipe.transitions.progress import Flight
from flexpipe.transitions.wish import trace_of

Verb = Literal["downshift", "cancel", "unpin"]

_VERBS: Final[dict[type[Urgent], Verb]] = {
    DownshiftDeployment: "downshift",
    CancelShift: "cancel",
    UnpinDeployment: "unpin",
}


class Asked(Frozen):
    """One urgent command. `written`: its change of the route entry went out. `told`: it was said to be under way."""

    verb: Verb
    deployment: Name
    by: str
    reason: str
    message_id: str
    at_s: float
    age_s: float = 0.0
    written: bool = False
    told: bool = False


def asked_of(command: Urgent, delivered: Delivered, now_s: float) -> Asked:
    """What a delivered command asks for. Without the time of its sending it counts as said now."""
    sent_at_s = now_s if delivered.sent_at_s is None else delivered.sent_at_s
    return Asked(
        verb=_VERBS[type(command)],
        deployment=command.deployment,
        by=command.by,
        reason=command.reason,
        message_id=delivered.message_id,
        at_s=min(sent_at_s, now_s),
        age_s=max(now_s - sent_at_s, 0.0),
    )


def answer(
    asked: Asked,
    outcome: Literal["done", "under-way", "refused"],
    says: str,
    board: Board,
    out: Outbox,
) -> None:
    """Say what became of a command."""
    said = UrgentAnswered(
        deployment=asked.deployment,
        verb=asked.verb,
        message_id=asked.message_id,
        outcome=outcome,
        says=says,
    )
    out.say(said)
    known = board.books.deployment(asked.deployment) is not None
    if known:  # a name that somebody mistyped is no label
        labels = {"deployment": asked.deployment, "outcome": outcome}
        out.do(Measure(name="flexpipe_executor_urgent_total", value=1.0, labels=labels))


def pin_of(asked: Asked) -> Pin:
    """The pin that keeps a downshift's wish."""
    reason = asked.reason or "the hatch was pulled"
    return Pin(reason=reason, by=asked.by, at_s=asked.at_s, downshift=asked.message_id)


def of_pin(name: str, pin: Pin, message_id: str) -> Asked:
    """The downshift that a pin was written for."""
    return Asked(
        verb="downshift",
        deployment=name,
        by=pin.by,
        reason=pin.reason,
        message_id=message_id,
        at_s=pin.at_s,
    )


def new_entry(name: str, board: Board) -> RouteEntry:
    """The entry of a deployment that was never started: pinned before its baseline starts."""
    declared = board.books.deployment(name)
    if declared is None:
        raise BrokenInvariant(f"{name} is pinned and neither declared nor routed")
    terms = [record.term for record in board.books.records() if record.deployment == name]
    return RouteEntry(
        deployment=name,
        model=declared.model,
        policy=declared.policy,
        term=max([1, *terms]),
        shift=0,
    )


def undone_by(asked: Asked, board: Board) -> int | None:
    """The shift that this very message had undone."""
    flights = [case.flight for case in board.of(asked.deployment)]
    records = board.books.records()
    flights += [Flight.of(record) for record in records if record.deployment == asked.deployment]
    same = (f for f in flights if f.progress.cancelled_by == asked.message_id)
    return next((flight.record.shift for flight in same), None)


def span_of(asked: Asked, now_s: float) -> Span:
    """The first span of a downshift's trace: from the message to the pin."""
    trace, span = trace_of(asked.deployment, asked.message_id)
    return Span(
        trace_id=trace,
        span_id=span,
        name="downshift",
        start_s=asked.at_s,
        end_s=max(now_s, asked.at_s),
        attributes={"flexpipe.deployment": asked.deployment, "flexpipe.by": asked.by},
    )
