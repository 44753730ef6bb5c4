"""The engine client against a front that answers as SGLang does, and as it should not."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from flexpipe.engines.client import (
    EngineBroke,
    EngineClient,
    EngineRefused,
    EngineUnreachable,
    GateClosed,
)
from flexpipe.engines.generation import Chunk, GatePass, SamplingParams

PASS = GatePass(plan="p-1", fence="3.2.0")
SAMPLING = SamplingParams(max_new_tokens=3, temperature=0.0)
Handler = Callable[[httpx.Request], httpx.Response]


class Body(httpx.AsyncByteStream):
    """A streamed body in given parts; may break off, and notes that it was closed."""

    def __init__(self, *parts: bytes, breaks: bool = False) -> None:
        self.parts = parts
        self.breaks = breaks
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part
        if self.breaks:
            raise httpx.ReadError("connection reset")

    async def aclose(self) -> None:
        self.closed = True


def event(ids: list[int], finish: dict[str, Any] | None = None, **fields: Any) -> bytes:
    meta = {"id": "r", "finish_reason": finish, "prompt_tokens": 2, "cached_tokens": 1}
    body = {"text": "", "output_ids": ids, "meta_info": meta, **fields}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


LENGTH = {"type": "length", "length": 3}
DONE = b"data: [DONE]\n\n"


def client(handler: Handler) -> EngineClient:
    http = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return EngineClient(http, "http://engine")


def answering(status: int, body: Any = None, **fields: Any) -> EngineClient:
    if isinstance(body, httpx.AsyncByteStream):
        return client(lambda _: httpx.Response(status, stream=body))
    return client(lambda _: httpx.Response(status, json=body, **fields))


async def generate(engine: EngineClient) -> list[Chunk]:
    stream = engine.generate_stream("r", (5, 6), SAMPLING, PASS, priority=1, traceparent="00-a")
    async with aclosing(stream) as chunks:
        return [chunk async for chunk in chunks]


async def test_chunks_are_cumulative_and_the_last_one_says_why_it_ended() -> None:
    chunks = await generate(answering(200, Body(event([7]), event([7, 8, 9], LENGTH), DONE)))
    assert [chunk.output_ids for chunk in chunks] == [(7,), (7, 8, 9)]
    assert chunks[0].finish is None
    assert chunks[1].finish is not None
    assert (chunks[1].finish.type, chunks[1].prompt_tokens, chunks[1].cached_tokens) == (
        "length",
        2,
        1,
    )


async def test_a_request_carries_plan_fence_and_trace() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, stream=Body(event([7, 8, 9], LENGTH)))

    await generate(client(handler))
    headers = seen[0].headers
    assert (headers["x-flexpipe-plan"], headers["x-flexpipe-fence"]) == ("p-1", "3.2.0")
    assert headers["traceparent"] == "00-a"
    assert "x-flexpipe-purpose" not in headers
    assert json.loads(seen[0].content) == {
        "rid": "r",
        "input_ids": [5, 6],
        "sampling_params": {
            "max_new_tokens": 3,
            "min_new_tokens": 0,
            "temperature": 0.0,
            "ignore_eos": False,
        },
        "stream": True,
        "priority": 1,
    }


async def test_an_event_may_arrive_in_pieces_and_hold_a_line_separator() -> None:
    whole = event([7], text="a\u2028b") + event([7, 8, 9], LENGTH, text="a\u2028b\u0085") + DONE
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    assert (await generate(answering(200, Body(*pieces))))[-1].output_ids == (7, 8, 9)


async def test_an_abort_that_was_asked_for_comes_with_the_tokens_so_far() -> None:
    cut = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    (chunk,) = await generate(answering(200, Body(event([7, 8], cut), DONE)))
    assert chunk.output_ids == (7, 8)
    assert chunk.finish is not None
    assert chunk.finish.type == "abort"


@pytest.mark.parametrize("body", [Body(event([7])), Body(event([7]), breaks=True), Body()])
async def test_a_stream_that_ends_without_a_finish_is_broken(body: Body) -> None:
    with pytest.raises(EngineBroke):
        await generate(answering(200, body))
    assert body.closed


@pytest.mark.parametrize("text", [b"data: {\n\n", b"data: {}\n\n", b"data: 7\n\n"])
async def test_an_event_that_is_not_sglangs_is_broken(text: bytes) -> None:
    with pytest.raises(EngineBroke, match="cannot be read"):
        await generate(answering(200, Body(text)))


async def test_an_engine_error_inside_a_stream_is_an_error() -> None:
    died = {"type": "abort", "message": "a rank is gone", "status_code": 503, "err_type": None}
    with pytest.raises(EngineBroke, match="503: a rank is gone"):
        await generate(answering(200, Body(event([7], died))))
    refusal = {"error": {"message": "too long", "type": "invalid_request_error", "code": 400}}
    with pytest.raises(EngineRefused, match="too long"):
        await generate(answering(200, Body(b"data: " + json.dumps(refusal).encode() + b"\n\n")))


async def test_a_closed_gate_gives_the_newest_route_entry() -> None:
    body = {
        "error": {"type": "gate_closed", "message": "plan 'p-1' admits no requests now"},
        "route_entry": {"deployment": "chat", "term": 4},
        "fence": [4, 2, 1],
    }
    with pytest.raises(GateClosed) as refused:
        await generate(answering(409, body))
    assert refused.value.kind == "gate_closed"
    assert json.loads(refused.value.route_entry or "") == {"deployment": "chat", "term": 4}


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": {"message": "bad ids"}}, "bad ids"),
        (400, {"object": "error", "message": "rid: too long", "code": 400}, "rid: too long"),
        (422, {"detail": "no such field"}, "no such field"),
        (409, {"error": {"type": "superseded", "message": "fence is old"}}, "fence is old"),
    ],
)
async def test_what_an_engine_refuses_comes_with_its_own_words(
    status: int, body: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineRefused) as refused:
        await generate(answering(status, body))
    assert not isinstance(refused.value, GateClosed)
    assert (refused.value.status, refused.value.message) == (status, message)


async def test_an_answer_of_5xx_is_a_broken_engine_and_none_an_unreachable_one() -> None:
    with pytest.raises(EngineBroke, match="500"):
        await generate(client(lambda _: httpx.Response(500, text="Internal Server Error")))

    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    with pytest.raises(EngineUnreachable, match="connection refused"):
        await generate(client(refuse))
    assert not await client(refuse).ready()


async def test_closing_the_iterator_closes_the_connection() -> None:
    body = Body(event([7]), event([7, 8, 9], LENGTH))
    stream = answering(200, body).generate_stream("r", (5,), SAMPLING, PASS)
    async with aclosing(stream) as chunks:
        await anext(chunks)
        assert not body.closed
    assert body.closed


async def test_loads_are_summed_over_ranks_and_empty_means_no_kv_either() -> None:
    def rank(running: int, used: int) -> dict[str, int]:
        return {
            "num_running_reqs": running,
            "num_waiting_reqs": 1,
            "num_used_tokens": used,
            "max_total_num_tokens": 100,
        }

    load = await answering(200, {"loads": [rank(2, 30), rank(0, 0)]}).loads()
    assert (load.running, load.waiting, load.used_tokens, load.total_tokens) == (2, 2, 30, 200)
    assert not load.is_empty
    with pytest.raises(EngineBroke, match="cannot be read"):
        await answering(200, {"loads": []}).loads()


async def test_relay_hands_bytes_through_and_leaves_hop_by_hop_headers_out() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        headers = {"content-type": "text/event-stream", "connection": "close", "x-own": "1"}
        return httpx.Response(200, headers=headers, stream=Body(b"data: 1\n\n", b"data: 2\n\n"))

    sent = {"Authorization": "Bearer k", "Connection": "keep-alive", "X-FlexPipe-Plan": "forged"}
    async with client(handler).relay("/v1/chat/completions", b"{}", sent, PASS) as answer:
        assert b"".join([part async for part in answer.body]) == b"data: 1\n\ndata: 2\n\n"
        assert dict(answer.headers) == {"content-type": "text/event-stream", "x-own": "1"}
    assert seen[0].headers["authorization"] == "Bearer k"
    assert seen[0].headers.get_list("x-flexpipe-plan") == ["p-1"]


async def test_relay_passes_an_engines_own_refusal_but_not_the_gates() -> None:
    own = {"object": "error", "message": "no such tool", "code": 409}
    async with answering(409, own).relay("/v1/x", b"{}", {}, PASS) as answer:
        assert answer.status == 409
        assert json.loads(b"".join([part async for part in answer.body])) == own
    gate = {"error": {"type": "stale_fence", "message": "old"}, "route_entry": None}
    with pytest.raises(GateClosed) as refused:
        async with answering(409, gate).relay("/v1/x", b"{}", {}, PASS):
            pass
    assert refused.value.route_entry is None


async def test_the_gate_is_read_and_set() -> None:
    held = {
        "plan": "p-1",
        "admitting": True,
        "fence": [1, 2, 3],
        "route_entry": {"deployment": "chat"},
        "admitted": 5,
        "refused": 1,
    }
    report = await answering(200, held).gate()
    assert (report.fence, json.loads(report.route_entry or "")) == (
        (1, 2, 3),
        {"deployment": "chat"},
    )
    with pytest.raises(EngineRefused, match="superseded"):
        await answering(409, {"error": {"type": "superseded", "message": "superseded"}}).set_gate(
            "p-1", (1, 2, 2), admitting=False, route_entry="{}"
        )
