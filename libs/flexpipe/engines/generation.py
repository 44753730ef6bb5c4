"""What is said between a sender and an engine about one generation: values only, no HTTP.

The router and the worker build these; `client` turns them into SGLang's bodies and back.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from flexpipe.engines.gate import FENCE_HEADER, PLAN_HEADER, PURPOSE_HEADER
from flexpipe.kernel.frozen import Frozen


class SamplingParams(Frozen):
    """SGLang's sampling parameters under SGLang's names. None is "not given": the engine's default.

    Stop strings, `n` and penalties over several moves are the router's business, so they are not here.
    """

    max_new_tokens: Annotated[int, Field(ge=0)]
    min_new_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling_seed: int | None = None
    logit_bias: dict[str, float] | None = None  # by token id, as text: JSON's keys

    def body(self) -> dict[str, Any]:
        """The JSON object `sampling_params`; what was not given is left out."""
        values = self.model_dump(mode="json", exclude_none=True)
        if not self.stop_token_ids:
            del values["stop_token_ids"]
        return values


class GatePass(Frozen):
    """What a request shows at the gate: the plan its sender believes in and the fence it acts on."""

    plan: str
    fence: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]  # term.shift.step
    purpose: Literal["warm"] | None = None  # a synthetic prompt: let in although the gate is closed

    def headers(self) -> dict[str, str]:
        """As HTTP headers."""
        named = {PLAN_HEADER: self.plan, FENCE_HEADER: self.fence}
        return named if self.purpose is None else {**named, PURPOSE_HEADER: self.purpose}


class Finish(Frozen):
    """Why a generation ended. `abort` comes with the tokens made so far and is no error.

    `matched` is the token id that stopped it, where one did.
    """

    type: Literal["stop", "length", "abort"]
    message: str | None = None
    matched: int | None = None


class Chunk(Frozen):
    """What an engine has generated so far. Chunks are cumulative and may grow by several tokens."""

    output_ids: tuple[int, ...]
    finish: Finish | None = None  # set in the last chunk
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV the engine did not compute again


class EngineLoad(Frozen):
    """The engine's own count of requests and KV tokens, over its data-parallel ranks."""

    running: int
    waiting: int
    used_tokens: int
    total_tokens: int  # capacity

    @property
    def requests(self) -> int:
        """Requests that the engine counts. Under pipeline parallelism SGLang's `running` stays 0 while it decodes:
        whether anything is left says `is_empty`."""
        return self.running + self.waiting

    @property
    def is_empty(self) -> bool:
        """Nothing runs, nothing waits, and no request holds KV (cached prefixes do not count)."""
        return self.requests == 0 and self.used_tokens == 0


class GateReport(Frozen):
    """What a gate says of itself. `route_entry` is JSON text, None before one was given."""

    plan: str
    admitting: bool
    fence: tuple[int, int, int]
    route_entry: str | None
    admitted: int
    refused: int
