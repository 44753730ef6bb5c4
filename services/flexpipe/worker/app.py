"""The worker service: the brain of `hosting` on the bus, with hands. Called by `flexpipe run worker` and by tests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from flexpipe.bus import Bus, Hearing, MachineShell, connect
from flexpipe.bus.spans import SpanLog
from flexpipe.engines.client import engine_http
from flexpipe.events.plan import (
    DrainPlan,
    FenceWorker,
    GatePlan,
    StartPlan,
    StopPlan,
    WarmPlan,
    WithdrawDevice,
)
from flexpipe.hosting.inputs import Closing, Opened
from flexpipe.hosting.worker import Worker
from flexpipe.kernel.errors import Unavailable
from flexpipe.telemetry.health import Readiness, serving_health
from flexpipe.telemetry.tracing import OtlpSpans
from flexpipe.worker.beating import beating
from flexpipe.worker.files import owned
from flexpipe.worker.hands import Hands
from flexpipe.worker.processes import Processes
from flexpipe.worker.settings import Settings

COMMANDS: Final = (
    *(FenceWorker, StartPlan, GatePlan, WarmPlan, DrainPlan, StopPlan, WithdrawDevice),
)

CLOSE_LIMIT_S: Final = 15.0
"""Engines take up to their grace of ten seconds to leave; whoever stops us waits thirty. What is left is killed."""

MEMORY_FILE: Final = "memory.json"

_LOG = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run one worker until `stop`. Engines end with it, whatever it ends for.

    Raises InvalidInput for a state directory in use, Unavailable where the bus does not answer at the start or an
    earlier worker's engines do not end, BrokenInvariant where the process must start anew.
    """
    with owned(settings.state_dir):
        processes = Processes(settings.state_dir, settings.logs)
        await processes.sweep()
        try:
            await _run(settings, stop, processes)
        finally:
            await processes.close()


async def _run(settings: Settings, stop: asyncio.Event, processes: Processes) -> None:
    memory_file = settings.state_dir / MEMORY_FILE
    otlp = OtlpSpans("worker")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, otlp.close)
        bus = await stack.enter_async_context(
            connect(settings.bus, service="worker", name=settings.node)
        )
        worker = Worker()
        await stack.enter_async_context(beating(bus, worker, settings.node))
        http = await stack.enter_async_context(engine_http())
        spans = await stack.enter_async_context(SpanLog(bus, also=otlp))
        hands = await stack.enter_async_context(
            Hands(processes, http, settings.python, memory_file)
        )
        shell = MachineShell(
            bus,
            machine=worker,
            service="worker",
            name=settings.node,
            hears=tuple(Hearing(command, key=settings.node) for command in COMMANDS),
            perform=hands.perform,
            spans=spans,
            journaled=True,
        )
        hands.feeds(shell.feed)
        async with shell:
            memory = await asyncio.to_thread(_read, memory_file)
            opened = Opened(node=settings.declared(), limits=settings.limits, memory=memory)
            await shell.feed(opened)
            if settings.http_port:
                ready = _readiness(bus, stop)
                health = serving_health(settings.http_host, settings.http_port, ready)
                await stack.enter_async_context(health)
            _LOG.info("worker is up", extra={"node": settings.node})
            await stop.wait()
            await _close(shell, hands)


async def _close(shell: MachineShell, hands: Hands) -> None:
    """End all groups through the brain, so that the executor hears of it; a bus that is away delays nobody."""
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await shell.feed(Closing())
            await hands.empty()


def _readiness(bus: Bus, stop: asyncio.Event) -> Readiness:
    async def ready() -> None:
        if stop.is_set():
            raise Unavailable("the worker is stopping")
        await bus.echo()

    return ready


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
