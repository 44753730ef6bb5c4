"""Listening without being counted on: people, the command line and tests follow a stream here. Nothing is acked.

Called by `Bus.listen`. An outage makes it late, never deaf: it goes on behind the last message it gave.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from flexpipe.bus import envelope
from flexpipe.bus.hearing import Hearing, filters_of, stream_of
from flexpipe.bus.link import Link
from flexpipe.bus.reading import Stored
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.kernel.machine import Delivered

LOG = logging.getLogger("flexpipe.bus")

BATCH = 64
PULL_S = 1.0
"""How long one pull waits; between pulls we look whether the connection is a new one."""
RETRY_WAIT_S = 0.2
UP_LIMIT_S = 60.0
"""A listener gives up, with Unavailable, when the bus stays away for longer."""
IDLE_S = 60
"""The server forgets a listener this long after it left."""


class Listener:
    """Opened, read, closed. It hears from `since_s` (epoch) or from when it was opened."""

    def __init__(self, link: Link, hears: tuple[Hearing, ...], since_s: float | None) -> None:
        self._link = link
        self._stream = stream_of(hears)
        self._filters = list(filters_of(hears))
        self._since_s = since_s
        self._behind = 0  # sequence of the last message given
        self._generation = 0
        self._subscription: JetStreamContext.PullSubscription | None = None

    async def open(self) -> None:
        """Take a place in the stream. Raises Unavailable or Refused."""
        try:
            self._generation = self._link.generation
            self._subscription = await self._link.jetstream.pull_subscribe(
                "", stream=self._stream, config=self._place()
            )
            info = await self._subscription.consumer_info()
        except (nats.errors.Error, JetStreamError) as error:
            raise Unavailable(f"{self._stream}: {error or 'no answer'}") from error
        if not self._behind and self._since_s is None and info.delivered is not None:
            self._behind = info.delivered.stream_seq

    async def close(self) -> None:
        """Leave."""
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error, JetStreamError):
                await self._subscription.unsubscribe()

    async def messages(self) -> AsyncIterator[Delivered]:
        """Readable messages, as they come, without an end. Raises Unavailable where the bus stays away for long."""
        while True:
            try:
                for message in await self._pull():
                    self._behind = message.sequence
                    with contextlib.suppress(InvalidInput):
                        yield envelope.open_envelope(
                            message.headers,
                            message.body,
                            fallback_id=f"{self._stream}:{message.sequence}",
                            subject=message.subject,
                            stored_at_s=message.at_s,
                        )
            except (Unavailable, nats.errors.Error, JetStreamError) as error:
                LOG.info("listener on %s: %s", self._stream, error or "no answer")
                self._generation = -1
                await asyncio.sleep(RETRY_WAIT_S)
                await self._link.until_up(UP_LIMIT_S)

    async def _pull(self) -> list[Stored]:
        assert self._subscription is not None
        if self._generation != self._link.generation:
            await self.close()
            await self.open()
        try:
            messages = await self._subscription.fetch(BATCH, timeout=PULL_S)
        except TimeoutError:  # nats-py raises its own kind or asyncio's plain one
            return []
        return [
            Stored(
                subject=message.subject,
                sequence=message.metadata.sequence.stream,
                headers=dict(message.headers or {}),
                body=message.data,
                at_s=message.metadata.timestamp.timestamp(),
            )
            for message in messages
        ]

    def _place(self) -> ConsumerConfig:
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.NEW,
            filter_subjects=self._filters,
            inactive_threshold=IDLE_S,
            mem_storage=True,
        )
        if self._behind:
            config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = self._behind + 1
        elif self._since_s is not None:
            config.deliver_policy = DeliverPolicy.BY_START_TIME
            config.opt_start_time = datetime.fromtimestamp(self._since_s, UTC)
        return config
