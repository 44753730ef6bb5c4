"""Cases R3, R4 and R9: what is on the wire, in which order, and how often."""

import json
from collections.abc import Callable

import pytest

from flexpipe.routing.openai.errors import engine_failed
from flexpipe.routing.openai.frames import DONE, PING, FrameWriter
from flexpipe.routing.openai.responses import Answer, Endpoint, models, whole
from flexpipe.routing.stream import FinishReason, Usage

USAGE = Usage(prompt_tokens=3, completion_tokens=2)
USAGE_BODY = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def answer(endpoint: Endpoint = Endpoint.CHAT) -> Answer:
    return Answer(endpoint=endpoint, id="chatcmpl-1", created=1_700_000_000, model="smol")


def writer(endpoint: Endpoint = Endpoint.CHAT, *, include_usage: bool = False) -> FrameWriter:
    return FrameWriter(answer(endpoint), include_usage=include_usage)


def events(raw: bytes) -> list[dict[str, object]]:
    frames = raw.decode().split("\n\n")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    assert all("\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames if frame[0] != ":"]


def test_a_chat_stream_is_role_text_finish_done() -> None:
    frames = writer()
    raw = frames.text("Hé\nl") + frames.text("lo") + frames.finish(FinishReason.STOP, USAGE)
    chunks = events(raw)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        for delta, finish in (
            ({"role": "assistant", "content": ""}, None),
            ({"content": "Hé\nl"}, None),
            ({"content": "lo"}, None),
            ({}, "stop"),
        )
    ]
    for chunk in chunks:
        assert {key: chunk[key] for key in chunk if key != "choices"} == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "smol",
        }


def test_a_completion_stream_has_text_and_no_role() -> None:
    frames = writer(Endpoint.COMPLETION)
    chunks = events(frames.text("Hi") + frames.finish(FinishReason.LENGTH, USAGE))
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]
        for text, finish in (("Hi", None), ("", "length"))
    ]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


@pytest.mark.parametrize("endpoint", list(Endpoint))
@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("pieces", [(), ("Hel",), ("Hel", "", "lo")])
def test_one_usage_chunk_without_choices_comes_last_and_only_if_asked_for(
    endpoint: Endpoint, include_usage: bool, pieces: tuple[str, ...]
) -> None:
    frames = writer(endpoint, include_usage=include_usage)
    raw = b"".join(map(frames.text, pieces)) + frames.finish(FinishReason.STOP, USAGE)
    chunks = events(raw)
    empty = [chunk for chunk in chunks if not chunk["choices"]]
    if include_usage:
        assert empty == [chunks[-1]]
        assert chunks[-1]["usage"] == USAGE_BODY
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert empty == []
        assert not any("usage" in chunk for chunk in chunks)


def test_the_status_stays_open_until_there_is_something_to_say() -> None:
    frames = writer()
    assert frames.text("") == b""
    assert not frames.committed
    frames.text("x")
    assert frames.committed


def test_a_failure_after_content_is_an_error_event_and_no_finish() -> None:
    frames = writer()
    raw = frames.text("Hel") + frames.fail(engine_failed("plan p-1 was lost").body)
    *chunks, error = events(raw)
    assert error == {
        "error": {
            "message": "plan p-1 was lost",
            "type": "server_error",
            "param": None,
            "code": "engine_failed",
        }
    }
    assert len(chunks) == 2
    assert raw.endswith(DONE)


def test_a_ping_is_a_comment_that_commits_the_status_and_is_no_content() -> None:
    frames = writer()
    assert frames.ping() == PING == b": ping\n\n"
    assert frames.committed
    raw = PING + frames.text("x") + PING + frames.finish(FinishReason.STOP, USAGE)
    assert len(events(raw)) == 3


@pytest.mark.parametrize("second", ["finish", "fail", "ping", "text"])
@pytest.mark.parametrize("first", ["finish", "fail"])
def test_nothing_follows_the_end(first: str, second: str) -> None:
    frames = writer()
    ends: dict[str, Callable[[], bytes]] = {
        "finish": lambda: frames.finish(FinishReason.STOP, USAGE),
        "fail": lambda: frames.fail(engine_failed("lost").body),
        "ping": frames.ping,
        "text": lambda: frames.text("x"),
    }
    ends[first]()
    assert frames.closed
    with pytest.raises(RuntimeError, match="closed"):
        ends[second]()


def test_a_whole_chat_answer_has_openais_shape() -> None:
    body = json.loads(whole(answer(), "Hello", FinishReason.STOP, USAGE).json_bytes())
    assert body == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "smol",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE_BODY,
    }


def test_a_whole_completion_has_openais_shape() -> None:
    answered = whole(answer(Endpoint.COMPLETION), "Hello", FinishReason.LENGTH, USAGE)
    body = json.loads(answered.json_bytes())
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}
    ]
    assert body["usage"] == USAGE_BODY


def test_models_are_listed_by_name() -> None:
    body = json.loads(models(("toy", "smol"), created=5).json_bytes())
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["smol", "toy"]


def test_a_client_that_splits_at_every_line_end_of_unicode_still_reads_the_text() -> None:
    text = "one\x85two\u2028three\u2029four\nfive"
    frames = writer().text(text).decode()
    lines = [line.removeprefix("data: ") for line in frames.splitlines() if line]
    said = "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines)
    assert said == text
