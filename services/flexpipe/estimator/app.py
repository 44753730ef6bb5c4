"""The estimator service: the brain of `costing` on the bus. Called by `flexpipe run estimator` and by tests.

A restart goes on from the machine's last snapshot and journal: cooldowns, gears held back and an order under way are in
no bucket.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Final

from flexpipe.bus import Bus, Hearing, MachineShell, connect
from flexpipe.bus.spans import SpanLog
from flexpipe.costing.books import BUCKETS
from flexpipe.costing.estimator import Estimator
from flexpipe.estimator.settings import Settings
from flexpipe.events import catalog
from flexpipe.kernel.errors import Unavailable
from flexpipe.telemetry.health import Readiness, serving_health
from flexpipe.telemetry.meters import Meters
from flexpipe.telemetry.tracing import OtlpSpans

HEARS: Final = tuple(
    Hearing(said.message) for said in catalog.MESSAGES if "estimator" in said.hears
)

_LOG = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run one estimator until `stop`. Raises Unavailable where the bus does not answer at the start."""
    otlp = OtlpSpans("estimator")
    meters = Meters("flexpipe_estimator_")
    try:
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(
                connect(settings.bus, service="estimator", name=settings.name)
            )
            spans = await stack.enter_async_context(SpanLog(bus, also=otlp))
            shell = MachineShell(
                bus,
                machine=Estimator(),
                service="estimator",
                name=settings.name,
                hears=HEARS,
                watches=BUCKETS,
                measure=meters,
                spans=spans,
                journaled=True,
                resume=True,
            )
            await stack.enter_async_context(shell)
            if settings.http_port:
                ready = _readiness(bus, stop)
                health = serving_health(settings.http_host, settings.http_port, ready, meters.page)
                await stack.enter_async_context(health)
            _LOG.info("estimator is up")
            await stop.wait()
    finally:
        await asyncio.to_thread(otlp.close)


def _readiness(bus: Bus, stop: asyncio.Event) -> Readiness:
    async def ready() -> None:
        if stop.is_set():
            raise Unavailable("the estimator is stopping")
        await bus.echo()

    return ready
