"""Kills at persisted transitions: whoever wants a process dead in a phase watches the bucket `shifts` for it.

Services have no switch for this: a crash is made from outside, as in life.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, cast

from flexpipe.bus import Bus
from flexpipe.kernel.machine import Entry
from flexpipe.model.shift import Phase, ShiftRecord

REACH_LIMIT_S: Final = 120.0
"""A shift with real engines on a small machine reaches each of its phases within this."""


async def when_reached(
    bus: Bus,
    phase: Phase,
    action: Callable[[], None],
    *,
    deployment: str,
    shift: int,
    limit_s: float = REACH_LIMIT_S,
) -> ShiftRecord:
    """Act as soon as a shift's record is stored in `phase` (or has passed it); gives that record.

    Raises TimeoutError at the limit.
    """
    changes = cast(AsyncGenerator[Entry, None], bus.watch("shifts"))
    async with asyncio.timeout(limit_s), aclosing(changes) as entries:
        async for entry in entries:
            if entry.key != f"{deployment}.{shift}" or entry.value is None:
                continue
            record = ShiftRecord.model_validate_json(entry.value)
            if any(timing.phase is phase for timing in record.timings):
                action()
                return record
    raise AssertionError("unreachable: a watch has no end")


async def kill_when_reached(
    bus: Bus,
    phase: Phase,
    pid: int,
    *,
    deployment: str,
    shift: int,
    limit_s: float = REACH_LIMIT_S,
) -> ShiftRecord:
    """SIGKILL for a process as soon as a shift is in a phase; gives the record that was seen."""
    return await when_reached(
        bus,
        phase,
        lambda: os.kill(pid, signal.SIGKILL),
        deployment=deployment,
        shift=shift,
        limit_s=limit_s,
    )
