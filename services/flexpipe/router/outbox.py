"""One response on its way to one client: bounded, in order, and open as to its status until something is said.

A running sequence writes, the HTTP front sends. Writing never waits, so that a cancelled writer leaves nothing half
said; `room` is where a writer waits for a slow reader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

Headers = tuple[tuple[str, str], ...]


class BrokenOff(Exception):
    """The body ends here although it is not whole: the connection must not end as if it were."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Status and headers of a response."""

    status: int
    headers: Headers


class Outbox:
    """`bound` parts may wait before `room` blocks."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._parts: deque[bytes] = deque()
        self._opening: Opening | None = None
        self._closed = False
        self._broken = False
        self._news = asyncio.Event()
        self._read = asyncio.Event()
        self._read.set()

    @property
    def opened(self) -> bool:
        """Whether the status was said."""
        return self._opening is not None

    @property
    def closed(self) -> bool:
        """Whether the body is complete, or never will be."""
        return self._closed

    def open(self, status: int, headers: Headers) -> None:
        """Say the status. Once."""
        if self._opening is not None:
            raise RuntimeError("a response has one status")
        self._opening = Opening(status, headers)
        self._news.set()

    def write(self, part: bytes) -> None:
        """Queue a piece of the body; nothing after the close."""
        if part and not self._closed:
            self._parts.append(part)
            self._news.set()
            if len(self._parts) >= self._bound:
                self._read.clear()

    def close(self, *, broken: bool = False) -> None:
        """Nothing follows. `broken`: the client must see that the body is not whole."""
        self._closed = True
        self._broken = self._broken or broken
        self._news.set()

    async def room(self) -> None:
        """Wait until the reader has caught up below the bound."""
        await self._read.wait()

    async def opening(self) -> Opening:
        """Wait for the status."""
        while self._opening is None:
            self._news.clear()
            await self._news.wait()
        return self._opening

    async def parts(self, keepalive_s: float | None, ping: bytes) -> AsyncIterator[bytes]:
        """The body as it comes; `ping` where nothing came for `keepalive_s`. Raises BrokenOff at a broken end."""
        while True:
            while self._parts:
                part = self._parts.popleft()
                if len(self._parts) < self._bound:
                    self._read.set()
                yield part
            if self._closed:
                if self._broken:
                    raise BrokenOff
                return
            self._news.clear()
            try:
                async with asyncio.timeout(keepalive_s):
                    await self._news.wait()
            except TimeoutError:
                yield ping
