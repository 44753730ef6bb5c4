"""The sequence ledger: which token came from which plan under which epoch, and that none is twice.

Called by the router, one ledger a sequence; it is the only judge of what a client may be sent.
An engine numbers the tokens of the request it was given, so after a move its token 0 is the first
after prompt + generated: the ledger adds the epoch's base. A chunk of another plan or epoch is
dropped, a repeat is dropped, a gap is an error. It never waits, sends or reads a clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from flexpipe.kernel.errors import FlexPipeError

# A client sees at most this many pauses that were ours to choose (shift.md: moves are limited).
MOVES_MAX = 4


class DropReason(StrEnum):
    """Why tokens of an engine were not taken."""

    OTHER_PLAN = "other_plan"
    STALE_EPOCH = "stale_epoch"
    REPEATED = "repeated"
    CLOSED = "closed"


class MoveCause(StrEnum):
    """Why a sequence moves. Only a chosen move counts against the limit."""

    CHOSEN = "chosen"
    LOST_PLAN = "lost_plan"
    UNDO = "undo"
    DEADLINE = "deadline"

    @property
    def forced(self) -> bool:
        return self is not MoveCause.CHOSEN


class LedgerError(FlexPipeError):
    """A sequence can no longer be trusted; it ends with an error.

    LedgerError
    ├── LedgerGap       tokens are missing
    └── LedgerConflict  a token was sent again with another value
    """


class LedgerGap(LedgerError):
    """Tokens between those held and those sent never came."""


class LedgerConflict(LedgerError):
    """An engine sent a token again and it was another one."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """New tokens of the sequence, in order; the first has index `start` (0 = first generated)."""

    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing was taken; `tokens` is how many were thrown away."""

    reason: DropReason
    tokens: int


@dataclass(frozen=True, slots=True)
class Moved:
    """The sequence now belongs to `plan` under `epoch`."""

    plan: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MoveRefused:
    """The sequence stays where it is; one line why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Segment:
    """Generated tokens [start, end) came from `plan` under `epoch`."""

    epoch: int
    plan: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the ledger holds of one sequence, as a value: to report, to check, to keep."""

    sequence: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    segments: tuple[Segment, ...]
    plan: str
    epoch: int
    moves: int


@dataclass(slots=True)
class SequenceLedger:
    """The ledger of one sequence. Epochs start at 1; `base` is the index its token 0 stands for."""

    sequence: str
    prompt: tuple[int, ...]
    plan: str
    moves_max: int = MOVES_MAX
    epoch: int = field(default=1, init=False)
    base: int = field(default=0, init=False)
    moves: int = field(default=0, init=False)
    closed: bool = field(default=False, init=False)
    _tokens: list[int] = field(default_factory=list, init=False)
    _segments: list[Segment] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        """Tokens generated so far."""
        return len(self._tokens)

    def accept(
        self, plan: str, epoch: int, first_index: int, tokens: Sequence[int]
    ) -> Accepted | Dropped:
        """Take what an engine sent; `first_index` counts from this epoch's own first token.

        Chunks may be cumulative: what is already held is left out of the answer. Raises
        `LedgerGap` if tokens are missing before these, `LedgerConflict` if a repeat differs.
        """
        if reason := self._foreign(plan, epoch):
            return Dropped(reason, len(tokens))
        start = self.base + first_index
        held = len(self._tokens)
        if start > held:
            raise LedgerGap(
                f"sequence {self.sequence}: plan {plan} epoch {epoch} sent tokens from {start}, "
                f"but only {held} are held: {start - held} missing"
            )
        if start < self.base:
            raise LedgerGap(
                f"sequence {self.sequence}: plan {plan} epoch {epoch} sent token {first_index}; "
                "its first is 0"
            )
        repeated = tokens[: held - start]
        if list(repeated) != self._tokens[start : start + len(repeated)]:
            raise LedgerConflict(
                f"sequence {self.sequence}: plan {plan} epoch {epoch} sent tokens "
                f"[{start}, {start + len(repeated)}) again with other values"
            )
        fresh = tuple(tokens[held - start :])
        if not fresh:
            return Dropped(DropReason.REPEATED, len(tokens))
        self._tokens.extend(fresh)
        self._extend_segment(held, held + len(fresh))
        return Accepted(held, fresh)

    def move(self, plan: str, cause: MoveCause) -> Moved | MoveRefused:
        """Give the sequence to `plan` under the next epoch (`plan` may be the same: a retry).

        Forced moves are never refused. Nor does a move count before the first token: nobody
        was reading yet.
        """
        if self.closed:
            return MoveRefused(f"sequence {self.sequence} has ended")
        counts = not cause.forced and bool(self._tokens)
        if counts and self.moves >= self.moves_max:
            return MoveRefused(
                f"sequence {self.sequence} moved {self.moves} times, its limit is {self.moves_max}"
            )
        self.moves += counts
        self.epoch += 1
        self.plan = plan
        self.base = len(self._tokens)
        return Moved(plan, self.epoch)

    def continuation(self) -> tuple[int, ...]:
        """What the current plan is to be prompted with: the prompt and all generated tokens."""
        return (*self.prompt, *self._tokens)

    def close(self, kept: int) -> None:
        """End the sequence after `kept` tokens: those past a stop string were never sent.

        Every later chunk is dropped as `CLOSED`.
        """
        if not 0 <= kept <= len(self._tokens):
            raise ValueError(f"sequence {self.sequence} holds {len(self._tokens)}, not {kept}")
        del self._tokens[kept:]
        self._segments = [
            Segment(part.epoch, part.plan, part.start, min(part.end, kept))
            for part in self._segments
            if part.start < kept
        ]
        self.closed = True

    def entry(self) -> LedgerEntry:
        """The ledger as a value."""
        return LedgerEntry(
            sequence=self.sequence,
            prompt=self.prompt,
            tokens=tuple(self._tokens),
            segments=tuple(self._segments),
            plan=self.plan,
            epoch=self.epoch,
            moves=self.moves,
        )

    def _foreign(self, plan: str, epoch: int) -> DropReason | None:
        if self.closed:
            return DropReason.CLOSED
        if epoch != self.epoch:
            return DropReason.STALE_EPOCH
        if plan != self.plan:
            return DropReason.OTHER_PLAN
        return None

    def _extend_segment(self, start: int, end: int) -> None:
        if self._segments and self._segments[-1].epoch == self.epoch:
            start = self._segments.pop().start
        self._segments.append(Segment(self.epoch, self.plan, start, end))


def broken_laws(entry: LedgerEntry) -> tuple[str, ...]:
    """The ledger law, one line a breach; empty when it holds.

    Emitted ranges are contiguous from 0, disjoint, each under one epoch, epochs grow, and they
    cover exactly the tokens held.
    """
    faults = []
    reached = 0
    for part in entry.segments:
        name = f"{entry.sequence}: [{part.start}, {part.end}) of epoch {part.epoch}"
        if part.end <= part.start:
            faults.append(f"{name} is empty")
        if part.start > reached:
            faults.append(f"{name} leaves out {part.start - reached} tokens before it")
        if part.start < reached:
            faults.append(f"{name} repeats {reached - part.start} tokens")
        reached = part.end
    for earlier, later in pairwise(entry.segments):
        if later.epoch <= earlier.epoch:
            faults.append(f"{entry.sequence}: epoch {later.epoch} follows epoch {earlier.epoch}")
    if entry.segments and entry.segments[-1].epoch > entry.epoch:
        faults.append(f"{entry.sequence}: tokens under an epoch later than its own {entry.epoch}")
    if reached != len(entry.tokens):
        faults.append(f"{entry.sequence}: ranges end at {reached}, tokens at {len(entry.tokens)}")
    return tuple(faults)
