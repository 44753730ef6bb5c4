"""Hearing what no stream keeps: samples and beats of the tel lane, as they pass. Opened by `Bus.overhear`.

It never asks for anything again: what is lost on the way, or found nobody who took it in time, is counted and gone.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from flexpipe.bus import envelope
from flexpipe.bus.hearing import Hearing, filters_of, passing
from flexpipe.bus.link import Link
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.machine import Delivered

LOG = logging.getLogger("flexpipe.bus")

OVERHEARD_BOUND = 4096
"""Messages that may wait for their listener: two seconds of a thousand nodes that beat twice a second, agent and
worker. Newer ones push older ones out: of a sign of life only the last matters."""


class Overhearing:
    """`async for` it, until it is closed. A reconnect leaves a gap, no more."""

    def __init__(
        self, link: Link, hears: tuple[Hearing, ...], bound: int = OVERHEARD_BOUND
    ) -> None:
        stored = [hearing.said.ce_type for hearing in hears if hearing.said.is_stored]
        if stored or not hears:
            raise InvalidInput("hears", stored, "overhear messages of the tel lane only")
        self._link = link
        self._filters = filters_of(passing(hears))
        self._waiting: deque[Delivered] = deque(maxlen=bound)
        self._changed = asyncio.Event()
        self._closed = False
        self._subscriptions: list[Subscription] = []
        self._prefix = uuid.uuid4().hex[:16]  # ids of what carries none differ between runs
        self._heard = 0
        self.dropped = 0  # pushed out by newer ones before anybody took them
        self.unreadable = 0

    async def open(self) -> None:
        """Listen from now on. Raises Unavailable, or Refused without permission."""
        for subject in self._filters:
            self._subscriptions.append(await self._link.subscribe(subject, self._take))

    async def close(self) -> None:
        """Stop; what still waits is given out, then the iteration ends."""
        for subscription in self._subscriptions:
            await self._link.unsubscribe(subscription)
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> Overhearing:
        return self

    async def __anext__(self) -> Delivered:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    async def _take(self, message: Msg) -> None:
        self._heard += 1
        try:
            heard = envelope.open_envelope(
                message.headers,
                message.data,
                fallback_id=f"{self._prefix}:{self._heard}",
                subject=message.subject,
            )
        except InvalidInput as error:
            self.unreadable += 1
            LOG.warning("overheard on %s, not understood: %s", message.subject, error)
            return
        self.dropped += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(heard)
        self._changed.set()
