"""The bodies of SGLang's HTTP as the emulated engine reads and writes them.

What is refused and how follows SGLang 0.5.23 (`entrypoints/http_server.py`,
`managers/tokenizer_manager.py`): a body of the wrong shape is 400 in the "Bad Request" form, a value
that the engine refuses is 400 ``{"error": {"message"}}``; once a stream was asked for, the second
kind comes as an event inside a 200.
"""

import json
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flexpipe.engines.emulated.sequences import Limits, LogProbRequest, Sequence

VERSION = "0.5.23+emulated"
WEIGHT_VERSION = "default"
DEFAULT_MAX_NEW_TOKENS = 128
UNBOUNDED_NEW_TOKENS = 1 << 30
MAX_BODY_BYTES = 16 << 20
MAX_TOP_LOGPROBS = 64

Body = TypeVar("Body", bound=BaseModel)

WholeNotNegative = Annotated[int, Field(ge=0)]


class Malformed(Exception):
    """A body of the wrong shape; ``str(error)`` is one line."""


class Unsupported(ValueError):
    """Understood, but not something the emulated engine does."""


class SamplingParams(BaseModel):
    """SGLang's sampling parameters. Sampling itself has no meaning here: the oracle decides."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    max_new_tokens: WholeNotNegative | None = DEFAULT_MAX_NEW_TOKENS  # None: while there is room
    min_new_tokens: WholeNotNegative = 0
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: int = -1
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    n: int = 1
    sampling_seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None

    def limits(self) -> Limits:
        """Raises Unsupported for what only a real engine can do, ValueError for a contradiction."""
        if self.stop:
            raise Unsupported("stop strings are not emulated in /generate: stop in the router")
        if self.n != 1:
            raise Unsupported("n must be 1 in /generate of the emulated engine")
        if self.json_schema or self.regex or self.ebnf:
            raise Unsupported("constrained decoding is not emulated")
        longest = UNBOUNDED_NEW_TOKENS if self.max_new_tokens is None else self.max_new_tokens
        if self.min_new_tokens > longest:
            raise Unsupported(
                f"min_new_tokens must be in [0, max_new_tokens({longest})], got "
                f"{self.min_new_tokens}."
            )
        return Limits(
            max_new_tokens=longest,
            min_new_tokens=self.min_new_tokens,
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
        )

    def check_total(self, prompt_tokens: int, context_tokens: int) -> None:
        """Raises Unsupported where prompt + the tokens *named* do not fit; a default is cut."""
        wanted = self.max_new_tokens if "max_new_tokens" in self.model_fields_set else None
        if wanted is not None and prompt_tokens + wanted > context_tokens:
            raise Unsupported(
                "Requested token count exceeds the model's maximum context length of "
                f"{context_tokens} tokens. You requested a total of {prompt_tokens + wanted} "
                f"tokens: {prompt_tokens} tokens from the input messages and {wanted} tokens for "
                "the completion."
            )


class GenerateRequest(BaseModel):
    """``POST /generate``. Fields of SGLang's that are not named here are taken and ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    input_ids: list[int] | None = None
    text: str | list[str] | None = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    rid: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    priority: int | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0

    def prompt(self) -> list[int]:
        """The prompt's ids. Raises Unsupported when there are none."""
        if self.text is not None:
            raise Unsupported("text is not emulated in /generate: send input_ids")
        if self.input_ids is None:
            raise Unsupported("Either text, input_ids or input_embeds should be provided.")
        return self.input_ids

    def logprobs(self, prompt_tokens: int) -> LogProbRequest | None:
        if not self.return_logprob:
            return None
        if self.logprob_start_len >= prompt_tokens:
            raise Unsupported(
                f"logprob_start_len {self.logprob_start_len} is higher than the number of input "
                f"tokens {prompt_tokens}. Please use a smaller logprob_start_len."
            )
        return LogProbRequest(start=self.logprob_start_len, top=self.top_logprobs_num)


class AbortRequest(BaseModel):
    """``POST /abort_request``."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    rid: str = ""
    abort_all: bool = False


def read_json(body: bytes) -> object:
    """Raises Malformed when the body is not JSON."""
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        raise Malformed("the body is not JSON") from None
    return value


def read_body(kind: type[Body], body: bytes) -> Body:
    """Validate a JSON body. Raises Malformed, one line, naming the field."""
    try:
        return kind.model_validate(read_json(body))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise Malformed(f"{where}: {first['msg']}") from None


def bad_request_body(
    message: str, status: int = 400, kind: str = "Bad Request"
) -> dict[str, object]:
    """SGLang's ErrorResponse."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def stream_error_body(message: str) -> dict[str, object]:
    """How a refused stream says so inside its 200."""
    kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "code": 400, "retryable": False}}


def output_body(sequence: Sequence) -> dict[str, object]:
    """What ``/generate`` answers: everything generated so far, in each chunk too."""
    return {
        "text": "",
        "output_ids": sequence.output,
        "meta_info": _meta_info(sequence),
    }


class OutputChunks:
    """The same, chunk by chunk, as JSON: each token is written once, although every chunk repeats all before it."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._ids = ""
        self._written = 0

    def next(self) -> str:
        """Everything generated so far."""
        output = self._sequence.output
        fresh = ",".join(map(str, output[self._written :]))
        self._ids += f",{fresh}" if self._written and fresh else fresh
        self._written = len(output)
        meta = json.dumps(_meta_info(self._sequence), separators=(",", ":"))
        return f'{{"text":"","output_ids":[{self._ids}],"meta_info":{meta}}}'


def _meta_info(sequence: Sequence) -> dict[str, object]:
    finish = sequence.finish
    meta: dict[str, object] = {
        "id": sequence.rid,
        "finish_reason": None if finish is None else finish.body(),
        "weight_version": WEIGHT_VERSION,
        "completion_tokens": len(sequence.output),
    }
    if finish is not None:
        written = {"version": WEIGHT_VERSION, "start": 0, "end": len(sequence.output)}
        meta["weight_versions"] = [written]
        meta["e2e_latency"] = sequence.ended_s - sequence.arrived_s
    if finish is None or finish.started:
        meta |= {
            "prompt_tokens": len(sequence.prompt),
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "cached_tokens": 0,
            "cached_tokens_details": None,
            "dp_rank": None,
        }
    if sequence.logprobs is not None:
        meta |= sequence.logprobs.meta_info()
    return meta
