"""One sequence's generation as its client sees it: text, finish reason, usage.

Called by the router with the tokens that the ledger accepted. Decides when a sequence ends (end of
sequence token, stop string, limit), counts what is used and what is left for a continuation. It
does not know which plan the tokens came from, so a hand-over cannot show in it: the limit does not
start again and a stop string across the seam is found. Feeding the same tokens rebuilds the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from flexpipe.routing.text.detokenizer import Detokenizer
from flexpipe.routing.text.stops import StopMatcher


class FinishReason(StrEnum):
    """OpenAI's finish reasons, as far as the resume path has them."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Limits:
    """When a sequence ends.

    `max_tokens` ≥ 1 counts generated tokens, the ending one included. The first `min_tokens` end
    nothing, and their text is part of no stop string. `stop_tokens` are the model's end-of-sequence
    ids and the request's own stop ids; `ignore_eos` leaves both without effect, as engines do.
    """

    max_tokens: int
    min_tokens: int = 0
    stops: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, over all plans that served it."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class StreamStep:
    """What a batch of tokens came to: `text` to send, and how it ended if it did.

    `taken` tokens of the batch count; those after the end do not.
    """

    text: str
    taken: int
    finish: FinishReason | None = None


class GenerationStream:
    """Text, end and usage of one sequence."""

    def __init__(self, detokenizer: Detokenizer, *, prompt_tokens: int, limits: Limits) -> None:
        """`prompt_tokens` is the client's own prompt, never what a continuation was sent."""
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(limits.stops)
        self._limits = limits
        self._prompt_tokens = prompt_tokens
        self._generated = 0
        self.finish: FinishReason | None = None

    @property
    def remaining(self) -> int:
        """Tokens a continuation may still ask for; 0 once finished, so nothing is dispatched."""
        return 0 if self.finish else self._limits.max_tokens - self._generated

    @property
    def min_remaining(self) -> int:
        """Tokens a continuation has to make before it may end."""
        return max(0, self._limits.min_tokens - self._generated)

    @property
    def usage(self) -> Usage:
        """What was used so far."""
        return Usage(self._prompt_tokens, self._generated)

    def feed(self, tokens: Sequence[int]) -> StreamStep:
        """Take accepted tokens in order. After the end nothing is taken."""
        shown = []
        taken = 0
        for token in tokens:
            if self.finish:
                break
            shown.append(self._take(token))
            taken += 1
        return StreamStep("".join(shown), taken, self.finish)

    def end(self, reason: FinishReason) -> StreamStep:
        """The engine ended by itself (its own limit): show what was held back.

        Without effect when the stream has finished already.
        """
        if self.finish:
            return StreamStep("", 0, self.finish)
        return StreamStep(self._close(reason), 0, self.finish)

    def _take(self, token: int) -> str:
        free = self._generated < self._limits.min_tokens
        self._generated += 1
        ends = not self._limits.ignore_eos and token in self._limits.stop_tokens
        if ends and not free:
            return self._close(FinishReason.STOP)
        text = self._detokenizer.feed(token)
        if not free:
            text = self._match(text)
        if not self.finish and self._generated >= self._limits.max_tokens:
            text += self._close(FinishReason.LENGTH)
        return text

    def _match(self, text: str) -> str:
        step = self._matcher.feed(text)
        if step.matched is not None:
            self.finish = FinishReason.STOP
        return step.shown

    def _close(self, reason: FinishReason) -> str:
        """Finish; a stop string that the last half-character completes still counts."""
        text = self._match(self._detokenizer.flush())
        if self.finish:
            return text
        self.finish = reason
        return text + self._matcher.flush()
