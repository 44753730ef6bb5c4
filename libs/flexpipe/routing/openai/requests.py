"""The bodies of `/v1/chat/completions` and `/v1/completions`, as frozen values.

Built by `reading` from JSON only (types are strict as JSON has them). A field that is not listed
here is refused, so nothing a client asks for is dropped without a word. Fields that no engine
needs (`user`, `metadata`, `store`, …) are read and have no effect. `null` is the same as absent.

Engine extensions beyond OpenAI: `top_k`, `min_p`, `min_tokens`, `repetition_penalty`,
`stop_token_ids`, `ignore_eos`, `return_token_ids`, `priority`, `regex`, `ebnf`, `json_schema`, `chat_template_kwargs`.
"""

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

# More than OpenAI's four; each token is compared with all of them.
STOPS_MAX = 16
STOP_CHARS_MAX = 512

StopString = Annotated[str, StringConstraints(min_length=1, max_length=STOP_CHARS_MAX)]
TokenId = Annotated[int, Field(ge=0)]
Object = dict[str, JsonValue]


def _at_odds(param: str, problem: str) -> PydanticCustomError:
    """A fault that lies between fields, named by the one to mend."""
    return PydanticCustomError("at_odds", "{problem}", {"param": param, "problem": problem})


class Body(BaseModel):
    """Strict, closed, frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TextPart(Body):
    type: Literal["text"]
    text: str


class ImageUrl(Body):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageUrl


class AudioPart(Body):
    type: Literal["input_audio"]
    input_audio: Object


class FilePart(Body):
    type: Literal["file"]
    file: Object


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str


ContentPart = Annotated[
    TextPart | ImagePart | AudioPart | FilePart | RefusalPart, Field(discriminator="type")
]


class ChatMessage(Body):
    """One message of the conversation so far."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[Object, ...] | None = None
    tool_call_id: str | None = None
    function_call: Object | None = None

    @model_validator(mode="after")
    def _only_an_assistant_may_say_nothing(self) -> "ChatMessage":
        if self.content is None and self.role != "assistant":
            raise _at_odds("content", f"missing: a message of role {self.role} needs it")
        return self


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Object | None = None


class SampledRequest(Body):
    """What both endpoints share."""

    model: Annotated[str, StringConstraints(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: StopString | Annotated[tuple[StopString, ...], Field(max_length=STOPS_MAX)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    user: str | None = None

    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    stop_token_ids: tuple[TokenId, ...] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    priority: int | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> "SampledRequest":
        if self.stream_options is not None and not self.stream:
            raise _at_odds("stream_options", "for streams only: leave it out or set stream")
        if self.top_k == 0:
            raise _at_odds("top_k", "must be 1 or more, or -1 for all tokens, got 0")
        for token in self.logit_bias or {}:
            if not token.isdecimal():
                raise _at_odds("logit_bias", f"keys must be token ids, got {token[:40]!r}")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple, whichever way they were written."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most; None for as many as the context holds."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(SampledRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: tuple[Object, ...] | None = None
    tool_choice: Literal["none", "auto", "required"] | Object | None = None
    parallel_tool_calls: bool | None = None
    functions: tuple[Object, ...] | None = None
    function_call: str | Object | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: Object | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _chat_fields_agree(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise _at_odds("top_logprobs", "needs logprobs: set logprobs to true")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise _at_odds("max_tokens", "given beside max_completion_tokens: leave it out")
        return self

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


# OpenAI's default for the older endpoint.
COMPLETION_TOKENS_DEFAULT = 16


def _shape_of_prompt(prompt: object) -> str | None:
    """Which of the four kinds of prompt is meant, so that a fault is named within that kind."""
    match prompt:
        case str():
            return "text"
        case [str(), *_] | (str(), *_):
            return "texts"
        case [list() | tuple(), *_] | (list() | tuple(), *_):
            return "prompts"
        case list() | tuple():
            return "ids"
        case _:
            return None


_Ids = tuple[TokenId, ...]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[tuple[str, ...], Tag("texts")]
    | Annotated[_Ids, Tag("ids")]
    | Annotated[tuple[_Ids, ...], Tag("prompts")],
    Discriminator(
        _shape_of_prompt,
        custom_error_type="prompt_shape",
        custom_error_message="text, an array of texts, or an array of token ids",
    ),
]


class CompletionRequest(SampledRequest):
    """`POST /v1/completions`. A prompt is text or token ids, alone or several of them."""

    prompt: Prompt
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=20)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @model_validator(mode="after")
    def _there_is_a_prompt(self) -> "CompletionRequest":
        if len(self.prompt) == 0:
            raise _at_odds("prompt", "must not be empty: give text or token ids")
        return self

    @property
    def limit(self) -> int:
        return self.max_tokens or COMPLETION_TOKENS_DEFAULT


Request = ChatRequest | CompletionRequest
