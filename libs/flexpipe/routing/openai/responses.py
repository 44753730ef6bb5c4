"""The bodies of answers, whole or in chunks.

Called by `frames` (streams) and by the router (whole answers). `Answer` holds what stays the same
over a hand-over: one id, one `created`, one model name. Models are frozen and written with only the
fields that were set, so that a `null` is there when OpenAI has one and absent when it has none.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from flexpipe.routing.stream import FinishReason, Usage


class Endpoint(StrEnum):
    """Which of the two protocols a client speaks."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class Answer:
    """The identity of one response. `created` is Unix time in seconds, `id` as OpenAI writes it
    (`chatcmpl-…`, `cmpl-…`)."""

    endpoint: Endpoint
    id: str
    created: int
    model: str


class Written(BaseModel):
    """Writes itself as one line of JSON."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    def json_bytes(self) -> bytes:
        return self.model_dump_json(exclude_unset=True).encode()


class UsageBody(Written):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "UsageBody":
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
        )


class ChatAnswerMessage(Written):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Written):
    index: int
    message: ChatAnswerMessage
    logprobs: None
    finish_reason: FinishReason
    token_ids: tuple[int, ...] | None = None


class ChatDelta(Written):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Written):
    index: int
    delta: ChatDelta
    logprobs: None
    finish_reason: FinishReason | None
    token_ids: tuple[int, ...] | None = None


class TextChoice(Written):
    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None
    token_ids: tuple[int, ...] | None = None


class Response(Written):
    """Any answer or chunk. `choices` is empty in a usage chunk only."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk", "text_completion"]
    created: int
    model: str
    choices: tuple[ChatChoice | ChatChunkChoice | TextChoice, ...]
    usage: UsageBody | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class ModelCard(Written):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Written):
    """`GET /v1/models`."""

    object: Literal["list"]
    data: tuple[ModelCard, ...]


def whole(answer: Answer, text: str, finish: FinishReason, usage: Usage) -> Response:
    """A response that is not streamed."""
    choice: ChatChoice | TextChoice
    match answer.endpoint:
        case Endpoint.CHAT:
            message = ChatAnswerMessage(role="assistant", content=text, refusal=None)
            choice = ChatChoice(index=0, message=message, logprobs=None, finish_reason=finish)
        case Endpoint.COMPLETION:
            choice = TextChoice(index=0, text=text, logprobs=None, finish_reason=finish)
    return Response(
        id=answer.id,
        object="chat.completion" if answer.endpoint is Endpoint.CHAT else "text_completion",
        created=answer.created,
        model=answer.model,
        choices=(choice,),
        usage=UsageBody.of(usage),
    )


def role_choice() -> ChatChunkChoice:
    """The first choice of a chat stream."""
    return ChatChunkChoice(
        index=0, delta=ChatDelta(role="assistant", content=""), logprobs=None, finish_reason=None
    )


def text_choice(answer: Answer, text: str) -> ChatChunkChoice | TextChoice:
    """A piece of text."""
    match answer.endpoint:
        case Endpoint.CHAT:
            return ChatChunkChoice(
                index=0, delta=ChatDelta(content=text), logprobs=None, finish_reason=None
            )
        case Endpoint.COMPLETION:
            return TextChoice(index=0, text=text, logprobs=None, finish_reason=None)


def finish_choice(answer: Answer, finish: FinishReason) -> ChatChunkChoice | TextChoice:
    """The last choice of a stream: no text, the reason."""
    match answer.endpoint:
        case Endpoint.CHAT:
            return ChatChunkChoice(index=0, delta=ChatDelta(), logprobs=None, finish_reason=finish)
        case Endpoint.COMPLETION:
            return TextChoice(index=0, text="", logprobs=None, finish_reason=finish)


def with_token_ids(
    response: Response, prompt: tuple[int, ...], tokens: tuple[int, ...]
) -> Response:
    """A whole response that also tells its ids (the extension `return_token_ids`)."""
    choices = tuple(choice.model_copy(update={"token_ids": tokens}) for choice in response.choices)
    return response.model_copy(update={"choices": choices, "prompt_token_ids": prompt})


def models(names: tuple[str, ...], *, created: int) -> ModelList:
    """The deployments by name. `created`: Unix time in seconds."""
    cards = tuple(
        ModelCard(id=name, object="model", created=created, owned_by="flexpipe")
        for name in sorted(names)
    )
    return ModelList(object="list", data=cards)
