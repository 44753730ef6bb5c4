"""The monitor service: the brain that owns the fleet, on the bus. Called by `flexpipe run monitor` and by tests.

A restart takes over the bucket it finds, asks every agent for its picture, and judges nobody before a full silence.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Final

from flexpipe.bus import Bus, Hearing, MachineShell, connect
from flexpipe.bus.spans import SpanLog
from flexpipe.events.fleet import NodeSampled
from flexpipe.fragments.monitor import FLEET, HOSTS, ROUTES, Monitor
from flexpipe.kernel.errors import Unavailable
from flexpipe.monitor.listening import listening
from flexpipe.monitor.settings import Settings
from flexpipe.telemetry.health import Readiness, serving_health
from flexpipe.telemetry.meters import Meters
from flexpipe.telemetry.tracing import OtlpSpans

WATCHES: Final = (FLEET, HOSTS, ROUTES)

_LOG = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run the monitor until `stop`.

    Raises Unavailable where the bus does not answer at the start, BrokenInvariant where another monitor writes too.
    """
    otlp = OtlpSpans("monitor")
    meters = Meters("flexpipe_monitor_")
    try:
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(
                connect(settings.bus, service="monitor", name=settings.name)
            )
            spans = await stack.enter_async_context(SpanLog(bus, also=otlp))
            shell = MachineShell(
                bus,
                machine=Monitor(),
                service="monitor",
                name=settings.name,
                hears=(Hearing(NodeSampled),),
                watches=WATCHES,
                measure=meters,
                spans=spans,
                journaled=True,
                resume=True,
            )
            await stack.enter_async_context(shell)
            await stack.enter_async_context(listening(bus, shell.feed))
            if settings.http_port:
                ready = _readiness(bus, stop)
                health = serving_health(settings.http_host, settings.http_port, ready, meters.page)
                await stack.enter_async_context(health)
            _LOG.info("monitor is up")
            await stop.wait()
    finally:
        await asyncio.to_thread(otlp.close)


def _readiness(bus: Bus, stop: asyncio.Event) -> Readiness:
    async def ready() -> None:
        if stop.is_set():
            raise Unavailable("the monitor is stopping")
        await bus.echo()

    return ready
