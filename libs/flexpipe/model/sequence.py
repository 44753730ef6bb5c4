"""A sequence: one client request being generated. It belongs to exactly one plan, under one epoch, at any moment."""

from __future__ import annotations

from enum import StrEnum

from flexpipe.kernel.frozen import Frozen


class Verdict(StrEnum):
    """What a hand-over does with one sequence."""

    REQUEUE = "requeue"  # no token yet: dispatched anew
    FINISH = "finish"  # ends on the old plan
    REPLAY = "replay"  # moves now; the new plan prefills prompt + generated
    MIGRATE = "migrate"  # moves now; the new plan reads the KV
    LAZY = "lazy"  # idle KV; moves when next asked for


class MovedSequence(Frozen):
    """How one sequence came through a hand-over. `pause_ms`: last token of the old epoch to first of the new."""

    sequence: str
    verdict: Verdict
    reason: str
    from_plan: str
    to_plan: str | None
    tokens: int  # emitted before the cut
    epoch: int
    pause_ms: float | None = None
