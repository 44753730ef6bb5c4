"""Wires the router: bus, shell, machine, desk, HTTP. `serve` runs until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Coroutine
from typing import Final

from flexpipe.bus import Bus, BusSettings, Hearing, MachineShell, connect
from flexpipe.bus.spans import SpanLog
from flexpipe.engines.client import engine_http
from flexpipe.events.route import MoveSequences, RouterSeat
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.machine import Entry, Put
from flexpipe.router.answering import Answering
from flexpipe.router.desk import Desk
from flexpipe.router.http import Front
from flexpipe.router.settings import Settings
from flexpipe.routing.effects import EndWithError
from flexpipe.routing.inputs import ReportsPaced, RouterStopping
from flexpipe.routing.machine import Routing
from flexpipe.telemetry.health import serving
from flexpipe.telemetry.meters import Meters
from flexpipe.telemetry.tracing import OtlpSpans

LOG = logging.getLogger(__name__)

ECHO_LIMIT_S: Final = 5.0
SEAT_TRIES: Final = 5
"""The roster key is ours alone; a conflict can only be our own earlier life, so a few tries settle it."""

LEAVE_LIMIT_S: Final = 2.0
"""A router that stops while the bus is away does not wait for it: it will be struck off."""

ERRORS_LIMIT_S: Final = 3.0
"""Last error events reach their clients within this, or not at all."""


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then let streams finish within the limit.

    Raises Unavailable where the bus cannot be reached at the start or the port is taken, BrokenInvariant where the
    machine must not go on.
    """
    otlp = OtlpSpans("router")
    meters = Meters("flexpipe_router_")
    try:
        async with (
            connect(BusSettings(), service="router", name=settings.name) as bus,
            engine_http() as http,
            SpanLog(bus, also=otlp) as spans,
        ):
            await bus.echo(ECHO_LIMIT_S)
            answering = Answering(settings.name)
            desk = Desk(
                http,
                meters,
                lambda: bus.read_all("routes"),
                unread_frames=settings.unread_frames,
                silence_limit_s=settings.silence_limit_s,
                sequences_limit=settings.sequences_limit,
                answered=answering.note,
            )
            await _take_seat(bus, settings)
            shell = MachineShell(
                bus,
                machine=Routing(settings.name, settings.public_url),
                service="router",
                name=settings.name,
                hears=(Hearing(MoveSequences, key=settings.name),),
                watches=Routing.WATCHES,
                perform=desk.perform,
                measure=meters,
                spans=spans,
                journaled=True,
                resume=True,
            )
            desk.tell(ReportsPaced(load_every_s=settings.load_every_s))
            async with shell, _running(answering.run(bus.publish)):
                await _serve_http(settings, stop, desk, shell)
            await _leave_seat(bus, settings)
    finally:
        await asyncio.to_thread(otlp.close)


@contextlib.asynccontextmanager
async def _running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run it beside the block, until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def _serve_http(
    settings: Settings, stop: asyncio.Event, desk: Desk, shell: MachineShell
) -> None:
    async def ready() -> None:
        if stop.is_set():
            raise Unavailable("stopping")

    front = Front(
        desk,
        ready,
        body_limit_bytes=settings.body_limit_bytes,
        keepalive_s=settings.keepalive_s,
    )
    feeding = asyncio.create_task(desk.feed(shell.feed))
    stopping = asyncio.create_task(stop.wait())
    try:
        async with serving(front.app(), settings.host, settings.port):
            LOG.info("router serves", extra={"url": settings.public_url})
            await asyncio.wait({feeding, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not feeding.done():
                await _finish_streams(settings, desk)
        if feeding.done():
            feeding.result()  # the shell has stopped: say why
    finally:
        for task in (feeding, stopping):
            task.cancel()
        await asyncio.wait({feeding, stopping})
        desk.close()


async def _finish_streams(settings: Settings, desk: Desk) -> None:
    """Take nothing new; what runs may finish within the limit, the rest gets one clear error each."""
    desk.stopping = True
    desk.tell(RouterStopping())
    try:
        async with asyncio.timeout(settings.stop_limit_s):
            await desk.until_empty()
    except TimeoutError:
        left = desk.sequences()
        LOG.warning("streams cut off at the stop", extra={"count": len(left)})
        for sequence in left:
            message = "this router stops; ask again"
            sequence.end_with_error(EndWithError(sequence=sequence.id, message=message))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ERRORS_LIMIT_S):
                await desk.until_empty()


async def _take_seat(bus: Bus, settings: Settings) -> None:
    """Write our key in the roster, before any route is read."""
    seat = RouterSeat(router=settings.name, url=settings.public_url, since_s=bus.clock.now_s())
    entry = await bus.read("roster", settings.name)
    for _ in range(SEAT_TRIES):
        stored = await bus.put(_seat_put(settings.name, seat.canonical_json(), entry))
        if stored.outcome == "written":
            return
        entry = stored.entries[0]
    raise Unavailable(f"roster: the key of {settings.name} changes all the time; names must differ")


async def _leave_seat(bus: Bus, settings: Settings) -> None:
    """Delete our key, if the bus is there."""
    try:
        async with asyncio.timeout(LEAVE_LIMIT_S):
            entry = await bus.read("roster", settings.name)
            if entry.value is not None:
                await bus.put(_seat_put(settings.name, None, entry))
    except (TimeoutError, Unavailable) as error:
        LOG.warning("roster key kept: the bus does not answer", extra={"reason": str(error)})


def _seat_put(name: str, value: str | None, entry: Entry) -> Put:
    return Put(
        write_id=uuid.uuid4().hex,
        bucket="roster",
        key=name,
        value=value,
        expected=entry.revision,
    )
