"""The executor service: the brain of `transitions` on the bus. Called by `flexpipe run executor` and by tests.

It keeps nothing of its own: a restart reads the buckets, bumps every term, fences every worker, and goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Final

from flexpipe.bus import Bus, Hearing, MachineShell, connect
from flexpipe.bus.spans import SpanLog
from flexpipe.events import catalog
from flexpipe.executor.settings import Settings
from flexpipe.kernel.errors import Unavailable
from flexpipe.telemetry.health import Readiness, serving_health
from flexpipe.telemetry.meters import Meters
from flexpipe.telemetry.tracing import OtlpSpans
from flexpipe.transitions.machine import Executor

HEARS: Final = tuple(Hearing(said.message) for said in catalog.MESSAGES if "executor" in said.hears)
WATCHES: Final = (
    *("baselines", "deployments", "fleet", "reservations", "roster", "routes", "shifts"),
)

_LOG = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run one executor until `stop`.

    Raises Unavailable where the bus does not answer at the start, BrokenInvariant where the process must start anew
    (another leader exists, say).
    """
    otlp = OtlpSpans("executor")
    meters = Meters("flexpipe_executor_")
    try:
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(
                connect(settings.bus, service="executor", name=settings.name)
            )
            spans = await stack.enter_async_context(SpanLog(bus, also=otlp))
            shell = MachineShell(
                bus,
                machine=Executor(),
                service="executor",
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
            _LOG.info("executor is up")
            await stop.wait()
    finally:
        await asyncio.to_thread(otlp.close)


def _readiness(bus: Bus, stop: asyncio.Event) -> Readiness:
    async def ready() -> None:
        if stop.is_set():
            raise Unavailable("the executor is stopping")
        await bus.echo()

    return ready
