"""The event log while it is being written: for stories and tests that wait for what the system does by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from flexpipe.bus.connection import Bus
from flexpipe.cli import looking, ordering
from flexpipe.events import catalog
from flexpipe.events.message import Message

M = TypeVar("M", bound=Message)


class Chronicle:
    """Everything said on the event log since it was opened, in order. Made by `chronicling`."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Message]] = []  # (when it was heard, epoch; what)
        self._news = asyncio.Event()

    def add(self, message: Message) -> None:
        """One more."""
        self.events.append((time.time(), message))
        self._news.set()

    @property
    def mark(self) -> int:
        """A place in the log: now."""
        return len(self.events)

    def since(self, mark: int, cls: type[M]) -> list[M]:
        """Messages of a class after a place."""
        return [message for _, message in self.events[mark:] if isinstance(message, cls)]

    async def until(
        self,
        cls: type[M],
        holds: Callable[[M], bool],
        what: str,
        *,
        limit_s: float,
        since: int = 0,
    ) -> M:
        """The first message of a class after `since` that `holds`. Raises Unavailable(what) at the limit."""

        async def read() -> M:
            while True:
                self._news.clear()
                for message in self.since(since, cls):
                    if holds(message):
                        return message
                await self._news.wait()

        return await ordering.within(read(), limit_s, f"not within {limit_s:g} s: {what}")


@asynccontextmanager
async def chronicling(bus: Bus) -> AsyncIterator[Chronicle]:
    """Listen to the event log until the block ends."""
    chronicle = Chronicle()
    async with bus.listen(looking.logged_events()) as deliveries:

        async def read() -> None:
            async for delivered in deliveries:
                chronicle.add(catalog.parse(delivered.type, delivered.message))

        reading = asyncio.create_task(read())
        try:
            yield chronicle
        finally:
            reading.cancel()
            await asyncio.wait({reading})
