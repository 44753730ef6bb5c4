"""The worker's sign of life, twice a second, from a task of its own: no work of the brain or the hands can hold it up.

Called by `app`. Says nothing while the brain's node shows no life, and never asks whether anybody hears.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from flexpipe.bus import Bus
from flexpipe.bus.crew import Crew
from flexpipe.events.fleet import HostHeartbeat
from flexpipe.hosting.worker import Worker

BEAT_EVERY_S: Final = 0.5
"""The monitor calls a node lost 1.75 s after its last beat: three may be late."""


@asynccontextmanager
async def beating(bus: Bus, worker: Worker, node: str) -> AsyncIterator[None]:
    """Beat while the block runs. Raises InvalidInput, before it runs, for a node name too long for a beat."""
    beat = HostHeartbeat(node=node)
    await bus.beat(beat)

    async def go_on() -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + BEAT_EVERY_S, loop.time())
            await asyncio.sleep(due_s - loop.time())
            if worker.beats:
                await bus.beat(beat)

    crew = Crew()
    crew.start(go_on())
    try:
        yield
    finally:
        crew.begin_leaving()
        await crew.cancel()
