"""Keeps finished spans on the bus, for `flexpipe trace` where no tracing backend is.

Given to a shell as its `spans`; passes each span on to the OTLP exporter. Never in the way: a full queue drops the
newest span.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType

from flexpipe.bus.connection import Bus
from flexpipe.bus.crew import Crew
from flexpipe.events.outgoing import publish
from flexpipe.events.trace import SpanEnded
from flexpipe.kernel.errors import FlexPipeError
from flexpipe.kernel.machine import Span

QUEUE_BOUND = 2048
"""A shift has some dozens of spans and one for each moved sequence."""
FLUSH_LIMIT_S = 3.0

_LOG = logging.getLogger(__name__)


class SpanLog:
    """`async with SpanLog(bus, also=otlp) as log`: call it with spans; at the end what waits is still sent."""

    def __init__(self, bus: Bus, *, also: Callable[[Span], None]) -> None:
        self._bus = bus
        self._also = also
        self._queue: asyncio.Queue[Span] = asyncio.Queue(QUEUE_BOUND)
        self._crew = Crew()

    def __call__(self, span: Span) -> None:
        """Take one span; never blocks, never raises."""
        self._also(span)
        try:
            self._queue.put_nowait(span)
        except asyncio.QueueFull:
            _LOG.warning("span dropped: %d wait already", QUEUE_BOUND)

    async def __aenter__(self) -> SpanLog:
        self._crew.start(self._send())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), FLUSH_LIMIT_S)
        self._crew.begin_leaving()
        await self._crew.cancel()

    async def _send(self) -> None:
        while True:
            span = await self._queue.get()
            try:
                said = SpanEnded(service=self._bus.service, span=span)
                await self._bus.publish(publish(said, span.span_id))
            except FlexPipeError as error:
                _LOG.warning("span not kept: %s", error)
            finally:
                self._queue.task_done()
