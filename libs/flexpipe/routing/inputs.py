"""What the router's HTTP side tells the routing machine. Counts only: no token, no text ever enters a journal.

Fed by the router service, one value for each thing that happened to a sequence, a plan or the process.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Input
from flexpipe.model.names import Name

Count = Annotated[int, Field(ge=0)]
Segments = tuple[tuple[int, str, int, int], ...]
"""A sequence's ledger: (epoch, plan, first token, end token)."""


class RequestArrived(Input):
    """A request was read and found well-formed. `reason` says why it cannot be resumed elsewhere, where that is so."""

    sequence: Annotated[str, Field(min_length=1, max_length=128)]
    deployment: Name
    prompt_tokens: Count
    max_tokens: Annotated[int, Field(ge=1)]
    resumable: bool
    reason: str | None = None
    priority: int = 0  # higher goes first


class FirstToken(Input):
    """The first token under an epoch came. `pause_ms`: since the last token of the epoch before, if there was one."""

    sequence: str
    epoch: int
    tokens: Count  # of the whole sequence, this one included
    pause_ms: Annotated[float, Field(ge=0)] | None = None


class TokenCount(Frozen):
    """How many tokens a sequence has generated so far."""

    sequence: str
    tokens: Count


class TokensCounted(Input):
    """The answer to `CountTokens`; sequences that have ended are left out."""

    counts: tuple[TokenCount, ...]


class SequenceCut(Input):
    """The engine has let go of a sequence that the machine wanted cut; nothing more comes under this epoch."""

    sequence: str
    epoch: int
    tokens: Count


class FailureKind(StrEnum):
    """What went wrong with an attempt, by whom it counts against."""

    CLIENT = "client"  # 4xx: the request's own fault; counts against nobody
    GATE = "gate"  # 409 of the gate: the plan admits nothing now
    BUSY = "busy"  # 429 and 503: neutral
    SERVER = "server"  # another 5xx: counts against the plan, several make it dead
    UNREACHABLE = "unreachable"  # nobody answered: the plan is dead until it is seen alive
    BROKE = "broke"  # it broke off in the middle: likewise, and the request may be to blame


class AttemptFailed(Input):
    """An attempt ended without finishing the sequence. `tokens` are those held, whatever epoch they came under."""

    sequence: str
    epoch: int
    kind: FailureKind
    tokens: Count
    reason: str
    status: int | None = None


class SequenceEnded(Input):
    """A sequence is over for its client, however it ended. The one way, besides `ClientGone`, to leave the machine."""

    sequence: str
    epoch: Count
    finish: str
    tokens: Count
    segments: Segments = ()


class ClientGone(Input):
    """The client hung up. Whatever ran for it was closed by the service already."""

    sequence: str
    tokens: Count
    segments: Segments = ()


class RouteLearned(Input):
    """A gate refused a request and showed the newest route entry it was given (JSON text, no revision)."""

    entry: str


class ProbeAnswered(Input):
    """Whether a plan that was taken for dead answers again."""

    plan: str
    alive: bool


class ReportsPaced(Input):
    """How often load is to be told from now on: the router's setting, told at each start."""

    load_every_s: Annotated[float, Field(ge=0.5, le=60)]


class RouterStopping(Input):
    """The process was told to stop: nothing new is taken, what runs may finish."""
