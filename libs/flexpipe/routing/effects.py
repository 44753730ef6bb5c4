"""What the routing machine asks of the router service, beyond the bus. Performed in order, none may block."""

from __future__ import annotations

from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Effect
from flexpipe.model.deployment import ModelRef
from flexpipe.model.names import Name
from flexpipe.routing.ledger import MoveCause


class Dispatch(Effect):
    """Send a sequence to a plan under an epoch; whatever ran for it before is closed first.

    Epoch 1 opens its ledger; each later one is one `move` of the ledger with this cause.
    """

    sequence: str
    plan: str
    front: str  # base URL
    epoch: int
    fence: str  # header value of the route entry acted on
    cause: MoveCause = MoveCause.CHOSEN
    moves_limit: int = 4


class Cut(Effect):
    """Abort a sequence at its engine. Answered by `SequenceCut`, or by its end if that was quicker."""

    sequence: str
    plan: str
    epoch: int


class Refuse(Effect):
    """Answer a request that has no content yet with an HTTP error. Answered by `SequenceEnded`."""

    sequence: str
    status: int
    code: str
    message: str
    retry_after_s: int | None = None


class EndWithError(Effect):
    """End a sequence with one clear error, as an event where content was sent. Answered by `SequenceEnded`."""

    sequence: str
    message: str


class CountTokens(Effect):
    """Say how far these sequences have come. Answered by `TokensCounted`."""

    sequences: tuple[str, ...]


class Probe(Effect):
    """Ask a plan's front whether it is ready. Answered by `ProbeAnswered`."""

    plan: str
    front: str


class ServedModel(Frozen):
    """One deployment as clients may name it."""

    deployment: Name
    model: ModelRef
    serves: bool  # its route entry lets requests in, now or soon
    context_tokens: int | None = None  # prompt + output of one sequence


class ServeModels(Effect):
    """The deployments known now, by name: whose tokenizers to load, what `/v1/models` lists."""

    models: tuple[ServedModel, ...]


class RereadRoutes(Effect):
    """Read every route entry anew and feed it as `Watched`: this router had been struck off."""
