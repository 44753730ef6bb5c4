"""What a hand-over says of itself: `BatchHandedOver` in bounded pieces, and a span a moved sequence.

Called by `moving`. A sequence may be told twice: first that it waits, cut, for a plan, then its pause.
"""

from __future__ import annotations

from typing import Final

from flexpipe.events.route import BatchHandedOver
from flexpipe.kernel.ids import parse_traceparent, span_id
from flexpipe.kernel.machine import Span
from flexpipe.model.sequence import MovedSequence
from flexpipe.routing.state import (
    DeploymentState,
    HandOver,
    HandOverPhase,
    Move,
    SequenceState,
    Turn,
)

REPORT_EVERY_S: Final = 0.25
"""Reports of a running hand-over are gathered this long: tens of sequences a message instead of one."""

REPORT_SEQUENCES: Final = 500
"""Sequences in one report: some 300 bytes each, so that it stays far below a message's limit of 1 MB."""


def handed_over(
    turn: Turn, sequence: SequenceState, move: Move, plan: str | None, pause_ms: float | None
) -> None:
    """Put a sequence down as handed over (or as staying, or ended); a later word of it replaces this one."""
    hand_over = turn.deployment(sequence.deployment).hand_over
    if hand_over is None:
        return
    hand_over.batch.pop(sequence.id, None)
    moved = MovedSequence(
        sequence=sequence.id,
        verdict=move.verdict,
        reason=move.reason,
        from_plan=move.from_plan,
        to_plan=plan,
        tokens=move.tokens,
        epoch=sequence.epoch,
        pause_ms=None if pause_ms is None else round(pause_ms, 3),
    )
    hand_over.unreported[sequence.id] = moved
    if hand_over.unreported_since_s is None:
        hand_over.unreported_since_s = turn.now_s


def report_if_due(
    turn: Turn, deployment: DeploymentState, hand_over: HandOver, remaining: int
) -> None:
    """Report at the end, and in between what has gathered for a while.

    `remaining`: sequences still to be handed over; all on the sources while nothing is judged yet.
    """
    since_s = hand_over.unreported_since_s
    if hand_over.phase is HandOverPhase.MOVING and remaining == 0:
        hand_over.phase = HandOverPhase.DONE
    elif since_s is None or turn.now_s < since_s + REPORT_EVERY_S:
        return
    moved = [hand_over.unreported[key] for key in sorted(hand_over.unreported)]
    hand_over.unreported = {}
    hand_over.unreported_since_s = None
    for start in range(0, max(1, len(moved)), REPORT_SEQUENCES):
        part = tuple(moved[start : start + REPORT_SEQUENCES])
        _report(turn, deployment, hand_over, part, remaining)


def _report(
    turn: Turn,
    deployment: DeploymentState,
    hand_over: HandOver,
    moved: tuple[MovedSequence, ...],
    remaining: int,
) -> None:
    hand_over.reports += 1
    handed = BatchHandedOver(
        router=turn.state.router,
        deployment=deployment.name,
        fence=hand_over.fence,
        batch=hand_over.reports,
        moved=moved,
        remaining=remaining,
        staying=len(hand_over.staying),
    )
    hand_over.answer = handed.canonical_json()
    turn.say(handed, str(hand_over.fence), hand_over.reports, traceparent=hand_over.traceparent)


def trace(
    turn: Turn, sequence: SequenceState, move: Move, plan: str, pause_ms: float | None
) -> None:
    """The span of one moved sequence, under the command's own; nothing without one."""
    parent = parse_traceparent(move.traceparent)
    if parent is None:
        return
    attributes: dict[str, str | int | float | bool] = {
        "sequence": sequence.id,
        "router": turn.state.router,
        "verdict": str(move.verdict),
        "reason": move.reason,
        "from_plan": move.from_plan,
        "to_plan": plan,
        "tokens": move.tokens,
        "epoch": sequence.epoch,
    }
    if pause_ms is not None:
        attributes["pause_ms"] = round(pause_ms, 3)
    turn.ask(
        Span(
            trace_id=parent[0],
            span_id=span_id("sequence", turn.state.router, sequence.id, sequence.epoch),
            parent_span_id=parent[1],
            name="hand-over of a sequence",
            start_s=move.asked_at_s,
            end_s=turn.now_s,
            attributes=attributes,
        )
    )
