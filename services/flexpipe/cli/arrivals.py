"""Requests that arrive at a rate, whatever the service does with them: open-loop traffic for the fleet story.

Like `traffic`, a stranger to the product: it knows the endpoint and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import httpx

from flexpipe.cli.traffic import Answer, Question, fill

OPEN_LIMIT = 400
"""Requests open at once: beyond this the service is stuck, and more of them would only hide it."""


class Arrivals:
    """Asks its questions in turn, evenly spaced at `rate_per_s`, until told to finish."""

    def __init__(
        self, base_url: str, model: str, questions: Sequence[Question], rate_per_s: float
    ) -> None:
        limits = httpx.Limits(max_connections=OPEN_LIMIT, max_keepalive_connections=OPEN_LIMIT)
        self._client = httpx.AsyncClient(base_url=base_url, trust_env=False, limits=limits)
        self._model = model
        self._questions = questions
        self.rate_per_s = rate_per_s
        self._clock: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.answers: list[Answer] = []

    @property
    def in_flight(self) -> int:
        """Requests that are open."""
        return len(self._open)

    def start(self) -> None:
        """Begin to ask."""
        self._clock = asyncio.create_task(self._arrive())

    async def finish(self, limit_s: float) -> list[Answer]:
        """Ask nothing new, wait for what is open, at most `limit_s`. Raises TimeoutError after it."""
        await self._stop_asking()
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*self._open)
        await self._client.aclose()
        return self.answers

    async def abort(self) -> None:
        """Drop everything at once."""
        await self._stop_asking()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._client.aclose()

    async def _stop_asking(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.wait({self._clock})

    async def _arrive(self) -> None:
        due_s = time.monotonic()
        turn = 0
        while True:
            due_s = max(due_s + 1.0 / self.rate_per_s, time.monotonic() - 1.0)
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            if len(self._open) >= OPEN_LIMIT:
                continue
            answer = Answer(self._questions[turn % len(self._questions)])
            turn += 1
            self.answers.append(answer)
            task = asyncio.create_task(fill(answer, self._client, self._model))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
