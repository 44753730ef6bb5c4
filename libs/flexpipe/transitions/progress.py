"""A shift on its way: the record that everybody reads, and what only this package needs to go on with it.

`Progress` is what `ShiftRecord.progress` holds. Facts learned between two writes live in memory alone: after a restart
the running step is begun anew, and its targets answer again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.fence import Fence
from flexpipe.model.shift import Phase, ShiftRecord

NOTES_KEPT: Final = 50
"""Sentences in one record: enough for any post-mortem, and the record stays far below a message's limit."""
MOVED_KEPT: Final = 512
"""Sequences listed in one record (about 100 kB); the rest is in the events `BatchHandedOver`."""
LOG_TAIL_CHARS: Final = 8_000
"""Kept of a rank's log: a Python traceback and what led to it."""

SLOT_PHASES: Final = frozenset(
    {
        Phase.RESERVING,
        Phase.PREPARING,
        Phase.CANARY,
        Phase.FREEZING,
        Phase.HANDING_OVER,
        Phase.COMMITTING,
        Phase.UNDOING,
    }
)
"""Phases in which a shift holds its deployment's slot."""

UNDOABLE_PHASES: Final = frozenset(
    {Phase.PREPARING, Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER}
)
"""Phases in which a shift can still be undone; a reserving one has nothing to undo."""


class Stage(StrEnum):
    """The step within a phase; one file entry in `steps` each."""

    RESERVE = "reserve"
    START = "start"
    OPEN = "open"
    OBSERVE = "observe"
    FILL = "fill"
    FREEZE = "freeze"
    MOVE = "move"
    COMMIT = "commit"
    DRAIN = "drain"
    FORCE = "force"
    STOP = "stop"
    FREE = "free"
    STRIKE = "strike"
    REOPEN = "reopen"
    RESTORE = "restore"
    RETURN = "return"


class Seat(Frozen):
    """Where a new plan's engine is put: its ports are given once, at the order.

    `thawed`: it runs already, as a retiring plan of an earlier shift, and is only let in again.
    """

    plan: str
    front: str
    front_port: int
    rendezvous: str
    thawed: bool = False
    fence: Fence | None = None  # of the engine start


class CanaryCount(Frozen):
    """What one router has seen of one new plan so far."""

    router: str
    plan: str
    requests: int
    errors: int
    reason: str | None = None
    ttft_p50_ms: float | None = None
    itl_p50_ms: float | None = None


class Progress(Frozen):
    """The running details. Tuples of names are sorted."""

    order_id: str
    stage: Stage = Stage.RESERVE
    tries: int = 0  # repeats of this step so far
    first_step: int = 0  # answers to commands before this step do not count
    since_s: float = 0.0
    deadline_s: float | None = None
    unsent: bool = (
        False  # the route entry is written; the commands that name its revision are not sent
    )
    answers: tuple[str, ...] = ()  # who answered this step: routers, or `plan@node`
    stuck: tuple[str, ...] = ()  # like `answers`, of those that said they cannot
    told: tuple[str, ...] = ()  # routers that this step's MoveSequences went to
    seats: tuple[Seat, ...] = ()
    canary: tuple[CanaryCount, ...] = ()
    warmed: tuple[tuple[str, int], ...] = ()  # synthetic prompts that came through, by plan
    lost: tuple[str, ...] = ()  # plans of this shift whose engines died
    owed: tuple[str, ...] = ()  # lost plans whose sequences the routers were not yet told to replay
    claims: tuple[str, ...] = ()  # plans that this shift still has to stop and release
    exposed: bool = False  # new plans were in the route entry
    frozen: bool = False  # gates of old plans were told to close
    forced: bool = False  # by the hatch: its canary is synthetic prompts alone
    cancelled_by: str | None = None  # id of the message that had it undone
    imposed: bool = False  # nobody ordered it: the gear is cut down to what survived
    was_stopped: bool = False  # the deployment was stopped by hand before
    freeze_revision: int = 0  # of the route entry that routers must have applied; 0 = not known yet

    def seat(self, plan_id: str) -> Seat | None:
        """One new plan's seat."""
        return next((seat for seat in self.seats if seat.plan == plan_id), None)

    def with_answer(self, name: str) -> Progress:
        """With one more answer to the running step."""
        return self.model_copy(update={"answers": tuple(sorted({*self.answers, name}))})


class Flight(Frozen):
    """An open record with its progress read. What `record.progress` says is as old as the last write."""

    record: ShiftRecord
    progress: Progress

    @staticmethod
    def of(record: ShiftRecord) -> Flight:
        """The flight that a stored record describes."""
        return Flight(record=record, progress=Progress.model_validate_json(record.progress))

    @property
    def key(self) -> tuple[str, int]:
        """Flights are handled in this order."""
        return (self.record.deployment, self.record.shift)

    @property
    def holds_slot(self) -> bool:
        """Whether no other shift of the deployment may begin."""
        return self.record.phase in SLOT_PHASES

    def with_progress(self, **changes: object) -> Flight:
        """With other progress (in memory until the next write)."""
        return self.model_copy(update={"progress": self.progress.model_copy(update=changes)})

    def with_record(self, **changes: object) -> Flight:
        """With another record (in memory until the next write)."""
        return self.model_copy(update={"record": self.record.model_copy(update=changes)})

    def noted(self, *notes: str) -> Flight:
        """With sentences added to the record."""
        kept = (*self.record.notes, *notes)[-NOTES_KEPT:]
        return self.with_record(notes=kept) if notes else self

    def stored(self) -> str:
        """The record's text with the present progress in it."""
        record = self.record.model_copy(update={"progress": self.progress.canonical_json()})
        return record.canonical_json()
