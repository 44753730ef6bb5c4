"""One request inside the emulated engine, and the ways it can end (SGLang's finish reasons)."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from flexpipe.engines.emulated.oracle import CERTAIN, UNLIKELY, Oracle, TokenChain

# (log-probability, token id, text): the text is never filled in, as SGLang does unless asked.
LogProb = tuple[float | None, int, None]


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended. ``started`` is False for one that was cut while it waited."""

    type: Literal["length", "stop", "abort"]
    fields: tuple[tuple[str, object], ...]
    started: bool = True

    @classmethod
    def by_length(cls, length: int) -> "Finish":
        return cls("length", (("length", length),))

    @classmethod
    def by_stop(cls, token: int) -> "Finish":
        return cls("stop", (("matched", token),))

    @classmethod
    def by_abort(
        cls, message: str = "Aborted", status_code: int | None = None, err_type: str | None = None
    ) -> "Finish":
        return cls(
            "abort", (("message", message), ("status_code", status_code), ("err_type", err_type))
        )

    @classmethod
    def while_waiting(
        cls, message: str = "Abort in waiting queue", status_code: int | None = None
    ) -> "Finish":
        code = () if status_code is None else (("status_code", status_code),)
        return cls("abort", (*code, ("message", message)), started=False)

    @property
    def status_code(self) -> int | None:
        """The HTTP status a non-streaming caller gets; None: 200 with the tokens there are."""
        code = dict(self.fields).get("status_code")
        return code if isinstance(code, int) else None

    @property
    def message(self) -> str:
        return str(dict(self.fields).get("message", ""))

    def body(self) -> dict[str, object]:
        return {"type": self.type, **dict(self.fields)}


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one sequence: token counts, and the ids that end it."""

    max_new_tokens: int
    min_new_tokens: int
    stop_token_ids: frozenset[int]
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class LogProbRequest:
    """Which log-probabilities are wanted: prompt positions from ``start``, ``top`` choices each."""

    start: int
    top: int


@dataclass(slots=True, eq=False)
class Sequence:
    """A request from its arrival to its end; only the scheduler changes it.

    ``changed`` is set at every new token and at the end. ``cut`` asks for the end after the step
    that runs, as SGLang's abort does.
    """

    rid: str
    prompt: list[int]
    limits: Limits
    priority: int
    chain: TokenChain
    arrived_s: float
    logprobs: "LogProbs | None" = None
    output: list[int] = field(default_factory=list)
    finish: Finish | None = None
    ended_s: float = 0.0
    cut: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def reserved_tokens(self) -> int:
        return len(self.prompt) + self.limits.max_new_tokens

    @property
    def used_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    def step(self, eos_id: int) -> Finish | None:
        """Emit one token; answers why the sequence ends with it, or None."""
        limits = self.limits
        if limits.max_new_tokens == 0:
            return Finish.by_length(0)
        ends_forbidden = limits.ignore_eos or len(self.output) < limits.min_new_tokens
        token = self.chain.peek_without_end() if ends_forbidden else self.chain.peek()
        if self.logprobs is not None:
            self.logprobs.add_output(token)
        self.chain.push(token)
        self.output.append(token)
        if self.cut:
            return Finish.by_abort()
        if not ends_forbidden and (token == eos_id or token in limits.stop_token_ids):
            return Finish.by_stop(token)
        if len(self.output) >= limits.max_new_tokens:
            return Finish.by_length(limits.max_new_tokens)
        return None


class LogProbs:
    """Log-probabilities under the emulated model: its own choice is near certain, all else is not.

    Teacher forcing shows a wrong token at once: the top choice at its position is another id.
    """

    def __init__(self, oracle: Oracle, prompt: list[int], wanted: LogProbRequest) -> None:
        self._oracle = oracle
        self._top = wanted.top
        self.output: list[LogProb] = []
        self.output_top: list[list[LogProb] | None] = []
        self.prompt: list[LogProb] = []
        self.prompt_top: list[list[LogProb] | None] = []
        start = len(prompt) if wanted.start < 0 else wanted.start
        chain = TokenChain(oracle, prompt[:start])
        for position, token in enumerate(prompt[start:]):
            best = chain.peek()
            # SGLang pads the first position of the window with None.
            self.prompt.append((None if position == 0 else _of(token, best), token, None))
            self.prompt_top.append(None if position == 0 else self._ranked(best))
            chain.push(token)

    def add_output(self, token: int) -> None:
        """Record a token the engine itself chose."""
        self.output.append((CERTAIN, token, None))
        self.output_top.append(self._ranked(token))

    def meta_info(self) -> dict[str, object]:
        found: dict[str, object] = {
            "input_token_logprobs": self.prompt,
            "output_token_logprobs": self.output,
            "output_token_logprobs_length": len(self.output),
        }
        if self._top > 0:
            found["input_top_logprobs"] = self.prompt_top
            found["output_top_logprobs"] = self.output_top
        return found

    def _ranked(self, best: int) -> list[LogProb]:
        others = (i for i in range(self._oracle.vocab_size) if i != best)
        tail: list[LogProb] = [
            (UNLIKELY - rank, token, None)
            for rank, token in zip(range(self._top - 1), others, strict=False)
        ]
        return [(CERTAIN, best, None), *tail]


def _of(token: int, best: int) -> float:
    return CERTAIN if token == best else UNLIKELY
