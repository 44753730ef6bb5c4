"""The one wake-up that a machine may have pending. Used by the shell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from flexpipe.bus.clock import Clock


class Timer:
    """Calls `ring` at the time last wished for, once."""

    def __init__(self, clock: Clock, ring: Callable[[], Awaitable[None]]) -> None:
        self._clock = clock
        self._ring = ring
        self._at_s: float | None = None
        self._wished = asyncio.Event()

    def wish(self, at_s: float) -> None:
        """Forget the last wish; ring at `at_s` (seconds since the epoch), at once if that is past."""
        self._at_s = at_s
        self._wished.set()

    async def run(self) -> None:
        """Wait and ring until cancelled."""
        while True:
            self._wished.clear()
            at_s = self._at_s
            if at_s is None:
                await self._wished.wait()
                continue
            sleeping = asyncio.ensure_future(self._clock.sleep_until(at_s))
            wished = asyncio.ensure_future(self._wished.wait())
            try:
                await asyncio.wait({sleeping, wished}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                wished.cancel()
                if not sleeping.done():
                    sleeping.cancel()
            if not self._wished.is_set():
                sleeping.result()
                self._at_s = None
                await self._ring()
