"""The planner service: the brain of `planning` on the bus. Called by `flexpipe run planner` and by tests.

It keeps nothing of its own: a restart reads the buckets, hears the routers again within seconds and goes on. What was
said while it was down comes late and is taken for what it is: old reports of load count by their own time.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Final

from flexpipe.bus import Bus, Hearing, MachineShell, connect
from flexpipe.bus.spans import SpanLog
from flexpipe.events import catalog
from flexpipe.kernel.errors import Unavailable
from flexpipe.planner.settings import Settings
from flexpipe.planning import WATCHES, Planner
from flexpipe.telemetry.health import Readiness, serving_health
from flexpipe.telemetry.meters import Meters
from flexpipe.telemetry.tracing import OtlpSpans

HEARS: Final = tuple(Hearing(said.message) for said in catalog.MESSAGES if "planner" in said.hears)

_LOG = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run one planner until `stop`. Raises Unavailable where the bus does not answer at the start."""
    otlp = OtlpSpans("planner")
    meters = Meters("flexpipe_planner_")
    try:
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(
                connect(settings.bus, service="planner", name=settings.name)
            )
            spans = await stack.enter_async_context(SpanLog(bus, also=otlp))
            shell = MachineShell(
                bus,
                machine=Planner(),
                service="planner",
                name=settings.name,
                hears=HEARS,
                watches=WATCHES,
                measure=meters,
                spans=spans,
                journaled=True,
            )
            await stack.enter_async_context(shell)
            if settings.http_port:
                ready = _readiness(bus, stop)
                health = serving_health(settings.http_host, settings.http_port, ready, meters.page)
                await stack.enter_async_context(health)
            _LOG.info("planner is up")
            await stop.wait()
    finally:
        await asyncio.to_thread(otlp.close)


def _readiness(bus: Bus, stop: asyncio.Event) -> Readiness:
    async def ready() -> None:
        if stop.is_set():
            raise Unavailable("the planner is stopping")
        await bus.echo()

    return ready
