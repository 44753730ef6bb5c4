import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flexpipe.routing.openai.errors import RequestRefused, model_not_found
from flexpipe.routing.openai.paths import Relayed, RelayReason, Resumable, Sampling, classify
from flexpipe.routing.openai.prompts import check_length, prompt_ids
from flexpipe.routing.openai.reading import read_chat, read_completion
from flexpipe.routing.openai.requests import ChatRequest, CompletionRequest
from flexpipe.routing.text.tokenizer import SamplingDefaults, TextTokenizer
from unit.routing.tiny_model import write_model_folder

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DEFAULTS = SamplingDefaults(temperature=0.7)
USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def chat(**fields: object) -> ChatRequest:
    return read_chat(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def completion(**fields: object) -> CompletionRequest:
    return read_completion(json.dumps({"model": "m", "prompt": "hi", **fields}).encode())


def refusal_of_chat(**fields: object) -> RequestRefused:
    with pytest.raises(RequestRefused) as refusal:
        chat(**fields)
    assert refusal.value.status == 400
    assert "\n" not in refusal.value.detail.message
    return refusal.value


WRONG_CHAT_FIELDS = [
    ({"temperature": "hot"}, "temperature", 'must be a number, got "hot"', "invalid_type"),
    ({"temperature": 2.5}, "temperature", "must be at most 2, got 2.5", "invalid_value"),
    ({"max_tokens": 1.5}, "max_tokens", "must be an integer, got 1.5", "invalid_type"),
    ({"max_tokens": True}, "max_tokens", "must be an integer, got true", "invalid_type"),
    ({"max_tokens": 0}, "max_tokens", "must be at least 1, got 0", "invalid_value"),
    ({"stream": "yes"}, "stream", 'must be true or false, got "yes"', "invalid_type"),
    ({"stop": 3}, "stop", "must be a string or an array, got 3", "invalid_type"),
    ({"stop": ["a", 3]}, "stop.1", "must be a string, got 3", "invalid_type"),
    ({"stop": ""}, "stop", 'must be at least 1 characters long or an array, got ""', "invalid_value"),
    ({"messages": []}, "messages", "must be at least 1 items long, got []", "invalid_value"),
    ({"messages": "hi"}, "messages", 'must be an array, got "hi"', "invalid_type"),
    ({"model": None}, "model", "must be a string, got null", "invalid_type"),
    ({"temprature": 1}, "temprature", "did you mean temperature?", "unknown_parameter"),
    ({"zzz": 1}, "zzz", "unknown field zzz: remove it", "unknown_parameter"),
    ({"stream_options": {"usage": True}, "stream": True}, "stream_options.usage", "unknown field",
     "unknown_parameter"),
    ({"stream_options": {}}, "stream_options", "for streams only", "invalid_value"),
    ({"top_k": 0}, "top_k", "-1 for all tokens", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "set logprobs to true", "invalid_value"),
    ({"logit_bias": {"fox": 1}}, "logit_bias", "keys must be token ids", "invalid_value"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "leave it out", "invalid_value"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", '"robot"',
     "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages.0.content", "role user needs it", "invalid_value"),
    ({"messages": [USER, {"content": "x"}]}, "messages.1.role", "missing",
     "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
     "messages.0.content.0.text", "missing", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
     "messages.0.content.0", "type is one of", "invalid_value"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content",
     "must be a string or an array, got 7", "invalid_type"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "message", "code"), WRONG_CHAT_FIELDS)
def test_a_wrong_field_is_refused_with_its_path_value_and_fix(
    fields: dict[str, object], param: str, message: str, code: str
) -> None:
    refusal = refusal_of_chat(**fields)
    assert (refusal.detail.param, refusal.detail.code) == (param, code)
    assert message in refusal.detail.message
    assert param in refusal.detail.message


def test_a_refusal_has_openais_shape() -> None:
    assert json.loads(refusal_of_chat(n=0).body.model_dump_json()) == {
        "error": {
            "message": "n: must be at least 1, got 0",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }


@pytest.mark.parametrize(
    ("raw", "message", "param"),
    [
        (b"", "the body is not JSON", None),
        (b"{", "the body is not JSON", None),
        (b'{"model": NaN}', "model: must be a string", "model"),
        (b"[]", "the body: must be an object, got []", None),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "model: missing", "model"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', "not JSON", None),
        (b"\xff\xfe", "the body is not JSON", None),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(raw: bytes, message: str, param: str | None) -> None:
    with pytest.raises(RequestRefused, match=re.escape(message)) as refusal:
        read_chat(raw)
    assert refusal.value.detail.param == param


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (3, "prompt: must be text, an array of texts, or an array of token ids, got 3"),
        (["a", 3], "prompt.1: must be a string, got 3"),
        ([1, "a"], 'prompt.1: must be an integer, got "a"'),
        ([1, -1], "prompt.1: must be at least 0, got -1"),
        ([[1, 2.5]], "prompt.0.1: must be an integer, got 2.5"),
        ([], "prompt: must not be empty: give text or token ids"),
    ],
)
def test_a_wrong_prompt_is_judged_by_the_kind_it_was_meant_to_be(
    prompt: object, message: str
) -> None:
    with pytest.raises(RequestRefused) as refusal:
        completion(prompt=prompt)
    assert refusal.value.detail.message == message


def test_long_values_are_not_echoed_whole() -> None:
    assert len(refusal_of_chat(temperature="x" * 5000).detail.message) < 120


def test_null_is_the_same_as_absent() -> None:
    nothing = dict.fromkeys(set(ChatRequest.model_fields) - {"model", "messages"})
    assert classify(chat(**nothing), DEFAULTS) == classify(chat(), DEFAULTS)


def test_a_plain_request_is_resumable_with_the_models_defaults() -> None:
    request = chat(stop="END", max_completion_tokens=9, min_tokens=2, top_p=0.5, priority=3)
    assert classify(request, DEFAULTS) == Resumable(
        sampling=Sampling(0.7, 0.5, -1, 0.0, None, {}),
        max_tokens=9,
        min_tokens=2,
        stops=("END",),
        stop_token_ids=frozenset(),
        ignore_eos=False,
        priority=3,
    )


def test_a_completion_makes_sixteen_tokens_unless_told() -> None:
    assert isinstance(resumable := classify(completion(), DEFAULTS), Resumable)
    assert resumable.max_tokens == 16
    assert chat().limit is None


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0, "seed": 4, "top_k": 5, "min_p": 0.1},
        {"logit_bias": {"12": -100}},
        {"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1},
        {"response_format": {"type": "text"}, "tool_choice": "none", "tools": []},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "logprobs": False},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"messages": [{"role": "assistant", "content": None}, USER]},
        {"stop_token_ids": [7], "ignore_eos": True, "stop": ["a", "b"]},
    ],
)
def test_what_a_hand_over_carries_is_resumed(fields: dict[str, object]) -> None:
    assert isinstance(classify(chat(**fields), DEFAULTS), Resumable)


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": [TOOL]}, RelayReason.TOOLS),
        ({"tool_choice": "required"}, RelayReason.TOOLS),
        ({"messages": [USER, {"role": "tool", "content": "4", "tool_call_id": "c"}]},
         RelayReason.TOOLS),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [TOOL]}, USER]},
         RelayReason.TOOLS),
        ({"response_format": {"type": "json_object"}}, RelayReason.CONSTRAINED_OUTPUT),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}},
         RelayReason.CONSTRAINED_OUTPUT),
        ({"regex": "a+"}, RelayReason.CONSTRAINED_OUTPUT),
        ({"ebnf": 'root ::= "a"'}, RelayReason.CONSTRAINED_OUTPUT),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, RelayReason.MEDIA),
        ({"n": 2}, RelayReason.SEVERAL_CHOICES),
        ({"logprobs": True}, RelayReason.LOGPROBS),
        ({"frequency_penalty": 0.1}, RelayReason.PENALTIES),
        ({"presence_penalty": -1}, RelayReason.PENALTIES),
        ({"repetition_penalty": 1.1}, RelayReason.PENALTIES),
        ({"reasoning_effort": "low"}, RelayReason.REASONING),
        ({"chat_template_kwargs": {"thinking": False}}, RelayReason.TEMPLATE_ARGUMENTS),
    ],
)  # fmt: skip
def test_what_a_hand_over_does_not_carry_is_relayed(
    fields: dict[str, object], reason: RelayReason
) -> None:
    assert classify(chat(**fields), DEFAULTS) == Relayed(reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"best_of": 2}, RelayReason.SEVERAL_CHOICES),
        ({"echo": True}, RelayReason.ECHO),
        ({"suffix": "end"}, RelayReason.SUFFIX),
        ({"logprobs": 0}, RelayReason.LOGPROBS),
        ({"prompt": ["a", "b"]}, RelayReason.SEVERAL_PROMPTS),
        ({"prompt": [[1], [2]]}, RelayReason.SEVERAL_PROMPTS),
        ({"json_schema": "{}"}, RelayReason.CONSTRAINED_OUTPUT),
    ],
)
def test_a_completion_that_cannot_move_is_relayed(
    fields: dict[str, object], reason: RelayReason
) -> None:
    assert classify(completion(**fields), DEFAULTS) == Relayed(reason)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder: Path = tmp_path_factory.mktemp("model")
    return TextTokenizer.load(write_model_folder(folder))


@pytest.mark.parametrize("prompt", ["the fox", ["the fox"], None])
def test_one_prompt_gives_the_same_ids_however_it_is_written(
    text: TextTokenizer, prompt: object
) -> None:
    expected = tuple(text.encode("the fox"))
    for written in (prompt, list(expected), [list(expected)]):
        request = completion(prompt=written or list(expected))
        assert prompt_ids(request, text, now=NOW) == expected


def test_an_id_outside_the_vocabulary_is_refused(text: TextTokenizer) -> None:
    with pytest.raises(RequestRefused, match="token id 99999 is not in the vocabulary"):
        prompt_ids(completion(prompt=[1, 99999]), text, now=NOW)


@pytest.mark.parametrize("prompt", [[], [[]], ""])
def test_an_empty_prompt_is_refused(text: TextTokenizer, prompt: object) -> None:
    with pytest.raises(RequestRefused, match="prompt"):
        prompt_ids(completion(prompt=prompt), text, now=NOW)


def test_a_chat_is_encoded_with_the_models_template(text: TextTokenizer) -> None:
    parts = [{"type": "text", "text": "hi"}]
    as_parts = chat(messages=[{"role": "user", "content": parts}])
    assert prompt_ids(as_parts, text, now=NOW) == prompt_ids(chat(), text, now=NOW)


def test_a_conversation_the_template_refuses_is_a_400(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, chat_template="{{ raise_exception('no system') }}")
    with pytest.raises(RequestRefused, match="no system") as refusal:
        prompt_ids(chat(), TextTokenizer.load(folder), now=NOW)
    assert (refusal.value.status, refusal.value.detail.param) == (400, "messages")


def test_the_context_is_shared_by_prompt_and_answer() -> None:
    assert check_length(90, 10, 100) == 10
    assert check_length(90, None, 100) == 10


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "numbers"),
    [
        (91, 10, "91 tokens and asks for 10 more, but this model's context holds 100"),
        (100, None, "100 tokens, but this model's context holds 100"),
        (120, 1, "120 tokens and asks for 1 more"),
    ],
)
def test_too_long_a_prompt_is_refused_with_the_numbers(
    prompt_tokens: int, max_tokens: int | None, numbers: str
) -> None:
    with pytest.raises(RequestRefused, match=numbers) as refusal:
        check_length(prompt_tokens, max_tokens, 100)
    assert refusal.value.status == 400
    assert refusal.value.detail.code == "context_length_exceeded"


def test_an_unknown_model_is_a_404_that_names_what_is_served() -> None:
    refusal = model_not_found("gpt-5", ("smol", "toy"))
    assert refusal.status == 404
    assert refusal.detail.message == "model: 'gpt-5' is not served here; served: smol, toy"
