"""Chat streams for the demo: keeps a number of them in flight through the OpenAI endpoint and keeps what came back.

The client here is a stranger to the product: it knows the endpoint and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

SILENCE_LIMIT_S = 120.0
"""Longest wait for the next chunk of one stream: longer than any hand-over may take."""
SEQUENCE_HEADER = "x-flexpipe-sequence"


@dataclass(frozen=True, slots=True)
class Question:
    """What one stream asks for. Greedy, so that the answer is a function of the question."""

    text: str
    max_tokens: int

    def body(self, model: str) -> dict[str, Any]:
        """The request body."""
        return {
            "model": model,
            "messages": [{"role": "user", "content": self.text}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }


@dataclass(slots=True)
class Answer:
    """What one stream brought."""

    question: Question
    sequence: str = ""
    text: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, int] | None = None
    ids: set[str] = field(default_factory=set)
    error: str | None = None
    asked_s: float = 0.0  # epoch, as all times here
    first_s: float | None = None
    ended_s: float | None = None

    @property
    def ttft_ms(self) -> float | None:
        """From the request to its first token, real milliseconds; None where none came."""
        return None if self.first_s is None else (self.first_s - self.asked_s) * 1000

    @property
    def whole(self) -> bool:
        """Ended by itself, under one id, its usage counts exactly the tokens that came, and no sooner than it may."""
        counted = None if self.usage is None else self.usage.get("completion_tokens")
        return (
            self.error is None
            and self.finish in ("stop", "length")
            and len(self.ids) == 1
            and counted == len(self.token_ids)
            and (self.finish == "stop" or counted == self.question.max_tokens)
        )


async def ask(client: httpx.AsyncClient, model: str, question: Question) -> Answer:
    """One stream from its request to its end. Never raises for what the service did: the answer says it."""
    answer = Answer(question)
    await fill(answer, client, model)
    return answer


async def fill(answer: Answer, client: httpx.AsyncClient, model: str) -> None:
    """Ask the answer's question and fill it in as it comes."""
    body = answer.question.body(model)
    answer.asked_s = time.time()
    try:
        async with client.stream(
            "POST", "/v1/chat/completions", json=body, timeout=SILENCE_LIMIT_S
        ) as response:
            answer.sequence = response.headers.get(SEQUENCE_HEADER, "")
            if response.status_code != httpx.codes.OK:
                answer.error = (
                    f"HTTP {response.status_code}: {(await response.aread()).decode()[:300]}"
                )
                return
            async for line in _lines(response):
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                _take(answer, json.loads(line.removeprefix("data: ")))
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.ended_s = time.time()


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines end at newlines only; httpx also cuts at U+2028 and its like, which JSON may hold raw."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode()


def _take(answer: Answer, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        answer.error = str(chunk["error"].get("message"))
        return
    answer.ids.add(chunk["id"])
    answer.usage = chunk.get("usage") or answer.usage
    answer.prompt_ids = chunk.get("prompt_token_ids") or answer.prompt_ids
    for choice in chunk["choices"]:
        answer.text += choice["delta"].get("content") or ""
        answer.token_ids.extend(choice.get("token_ids") or ())
        if answer.first_s is None and answer.token_ids:
            answer.first_s = time.time()
        answer.finish = choice.get("finish_reason") or answer.finish


class Traffic:
    """Keeps `width` streams in flight until told to stop; then lets the last ones end."""

    def __init__(
        self, base_url: str, model: str, questions: Sequence[Question], width: int
    ) -> None:
        self._client = httpx.AsyncClient(base_url=base_url, trust_env=False)
        self._model = model
        self._questions = questions
        self._width = width
        self._lanes: list[asyncio.Task[None]] = []
        self._stopping = False
        self._open: dict[int, Answer] = {}
        self.answers: list[Answer] = []

    @property
    def in_flight(self) -> int:
        """Streams that are open."""
        return len(self._open)

    @property
    def flowing(self) -> int:
        """Open streams that have brought tokens."""
        return sum(1 for answer in self._open.values() if answer.text)

    async def start(self) -> None:
        """Open the streams; every lane starts with a question of its own."""
        self._lanes = [asyncio.create_task(self._lane(index)) for index in range(self._width)]

    async def finish(self, limit_s: float) -> list[Answer]:
        """Ask nothing new, wait for what is running, at most `limit_s`. Raises TimeoutError after it."""
        self._stopping = True
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*self._lanes)
        await self._client.aclose()
        return self.answers

    async def abort(self) -> None:
        """Drop everything at once."""
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)
        await self._client.aclose()

    async def _lane(self, index: int) -> None:
        turn = index
        while not self._stopping:
            question = self._questions[turn % len(self._questions)]
            turn += self._width
            answer = self._open[index] = Answer(question)
            try:
                await fill(answer, self._client, self._model)
            finally:
                del self._open[index]
            self.answers.append(answer)
            if answer.error is not None:
                await asyncio.sleep(1.0)  # a service that refuses is not helped by a hot loop
