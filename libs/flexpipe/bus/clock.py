"""Time as the shell sees it. Machines never see a clock, only the `now_s` they are given."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

LONGEST_SLEEP_S = 1.0
"""A wall clock may be set while we sleep; looking again this often bounds how late a wake-up can be."""


class Clock(Protocol):
    """Seconds since the epoch, and waiting for them."""

    def now_s(self) -> float:
        """The present."""
        ...

    async def sleep_until(self, at_s: float) -> None:
        """Return when `at_s` has come; at once if it is past."""
        ...


class WallClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        return time.time()

    async def sleep_until(self, at_s: float) -> None:
        while (left_s := at_s - time.time()) > 0:  # noqa: ASYNC110 - it waits for time itself
            await asyncio.sleep(min(left_s, LONGEST_SLEEP_S))
