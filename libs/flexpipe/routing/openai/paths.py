"""Decides which path a request takes, resume or relay, and says what the resume path needs.

Called by the router once a request. On *resume* the router dispatches ids and keeps the ledger, so
the sequence can move; on *relay* the bytes go to the engine's own endpoint and the sequence ends
where it began. Relayed is whatever depends on engine state that a hand-over does not carry, or on
parsing that the engine does.

Sampling (temperature above 0) is resumable, but its random stream starts anew on the next plan:
the text after a move is drawn from the same distribution, not the same draw, `seed` or not.
`logit_bias` is resumable: it is added at every step whatever came before, so it is simply sent
along again. Penalties are not: engines count generated tokens, and after a move those are prompt.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from flexpipe.routing.openai.requests import ChatRequest, CompletionRequest, Request
from flexpipe.routing.text.tokenizer import SamplingDefaults


class RelayReason(StrEnum):
    """Why a request cannot be resumed elsewhere (also a metric's label)."""

    TOOLS = "tools"
    CONSTRAINED_OUTPUT = "constrained_output"
    MEDIA = "media"
    SEVERAL_CHOICES = "several_choices"
    LOGPROBS = "logprobs"
    PENALTIES = "penalties"
    REASONING = "reasoning"
    TEMPLATE_ARGUMENTS = "template_arguments"
    ECHO = "echo"
    SUFFIX = "suffix"
    SEVERAL_PROMPTS = "several_prompts"


@dataclass(frozen=True, slots=True)
class Relayed:
    """Bytes pass through to the engine; the first reason found."""

    reason: RelayReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """How each token is drawn; the same for every plan that serves the sequence."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    logit_bias: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Resumable:
    """All that the resume path has to know, the same for both endpoints.

    `max_tokens` None means as many as the context holds. `priority`: as the engine takes it.
    """

    sampling: Sampling
    max_tokens: int | None
    min_tokens: int
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    priority: int | None


def classify(request: Request, defaults: SamplingDefaults) -> Resumable | Relayed:
    """Resume if possible, else relay with the first reason. `defaults` are the model's."""
    for reason in _obstacles(request):
        return Relayed(reason)
    return Resumable(
        sampling=_sampling(request, defaults),
        max_tokens=request.limit,
        min_tokens=request.min_tokens or 0,
        stops=request.stops,
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        priority=request.priority,
    )


def _obstacles(request: Request) -> Iterator[RelayReason]:
    match request:
        case ChatRequest():
            yield from _chat_obstacles(request)
        case CompletionRequest():
            yield from _completion_obstacles(request)
        case _:
            assert_never(request)
    if request.response_format is not None and request.response_format.type != "text":
        yield RelayReason.CONSTRAINED_OUTPUT
    if any(grammar is not None for grammar in (request.regex, request.ebnf, request.json_schema)):
        yield RelayReason.CONSTRAINED_OUTPUT
    if (request.n or 1) > 1:
        yield RelayReason.SEVERAL_CHOICES
    if request.frequency_penalty or request.presence_penalty:
        yield RelayReason.PENALTIES
    if request.repetition_penalty not in (None, 1):
        yield RelayReason.PENALTIES


def _chat_obstacles(request: ChatRequest) -> Iterator[RelayReason]:
    if request.tools or request.functions or request.function_call is not None:
        yield RelayReason.TOOLS
    if request.tool_choice not in (None, "none", "auto"):
        yield RelayReason.TOOLS
    for message in request.messages:
        if message.role in ("tool", "function") or message.tool_calls or message.function_call:
            yield RelayReason.TOOLS
        if message.reasoning_content is not None:
            yield RelayReason.REASONING
        parts = () if isinstance(message.content, str) else message.content or ()
        if any(part.type != "text" for part in parts):
            yield RelayReason.MEDIA
    if request.logprobs:
        yield RelayReason.LOGPROBS
    if request.reasoning_effort is not None:
        yield RelayReason.REASONING
    if request.chat_template_kwargs:
        yield RelayReason.TEMPLATE_ARGUMENTS


def _completion_obstacles(request: CompletionRequest) -> Iterator[RelayReason]:
    several = not isinstance(request.prompt, str) and not isinstance(request.prompt[0], int)
    if several and len(request.prompt) > 1:
        yield RelayReason.SEVERAL_PROMPTS
    if (request.best_of or 1) > 1:
        yield RelayReason.SEVERAL_CHOICES
    if request.logprobs is not None:
        yield RelayReason.LOGPROBS
    if request.echo:
        yield RelayReason.ECHO
    if request.suffix:
        yield RelayReason.SUFFIX


def _sampling(request: Request, defaults: SamplingDefaults) -> Sampling:
    return Sampling(
        temperature=_given(request.temperature, defaults.temperature),
        top_p=_given(request.top_p, defaults.top_p),
        top_k=int(_given(request.top_k, defaults.top_k)),
        min_p=_given(request.min_p, defaults.min_p),
        seed=request.seed,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
