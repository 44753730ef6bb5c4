"""The demo's client reads any stream that the protocol allows, however its bytes are cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from flexpipe.cli.traffic import Answer, Question, ask

LINE_BREAKS = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""What `str.splitlines` cuts at and server-sent events do not. Models of broken text say them."""


def chunk(text: str, token: int) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, "token_ids": [token]}
    body = {"id": "chatcmpl-1", "choices": [choice]}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def last(tokens: int, reason: str = "stop") -> bytes:
    finish = {"index": 0, "delta": {}, "finish_reason": reason}
    body = {"id": "chatcmpl-1", "choices": [finish], "usage": {"completion_tokens": tokens}}
    return b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"


async def read(stream: bytes, piece_bytes: int) -> Answer:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(stream), piece_bytes):
            yield stream[start : start + piece_bytes]

    def serve(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=pieces())

    transport = httpx.MockTransport(serve)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        return await ask(client, "toy", Question("hello", 8))


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64, 100_000])
async def test_text_arrives_whole_however_the_stream_is_cut(piece_bytes: int) -> None:
    texts = [f"a{mark}b" for mark in LINE_BREAKS] + ["日本語", "\ufffd", "🙂", "\x00"]
    stream = b": ping\n\n" + b"".join(chunk(text, index) for index, text in enumerate(texts))
    answer = await read(stream + last(len(texts)), piece_bytes)
    assert answer.error is None
    assert answer.text == "".join(texts)
    assert answer.token_ids == list(range(len(texts)))
    assert answer.whole


async def test_a_stream_that_counts_other_tokens_than_it_brought_is_not_whole() -> None:
    answer = await read(chunk("a", 1) + last(2), 64)
    assert answer.error is None
    assert not answer.whole


async def test_a_stream_that_breaks_off_is_not_whole() -> None:
    assert not (await read(chunk("a", 1), 64)).whole


async def test_a_stream_that_ends_at_its_limit_before_its_limit_is_not_whole() -> None:
    tokens = [chunk("a", token) for token in range(8)]
    assert (await read(b"".join(tokens) + last(8, "length"), 64)).whole
    assert not (await read(b"".join(tokens[:7]) + last(7, "length"), 64)).whole


@pytest.mark.parametrize("said", [b"[]", b"{}", b'{"id": "x"}', b'{"error": "oh"}', b"7", b"{"])
async def test_a_strange_chunk_is_an_error_of_its_stream(said: bytes) -> None:
    answer = await read(b"data: " + said + b"\n\n", 64)
    assert answer.error
