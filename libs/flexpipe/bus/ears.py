"""The ears of a shell: FastStream subscribers on durable pull consumers, one a stream, one message at a time.

One consumer a stream keeps the order across message classes. Acks are manual, after handling: a message that a process
did not live to handle comes again. A consumer gone deaf (owed messages, nobody asks for them) is mounted anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from faststream.middlewares import AckPolicy
from faststream.nats import JStream, NatsMessage, PullSub
from nats.js.api import AckPolicy as ServerAckPolicy
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from flexpipe.bus.hearing import Hearing, filters_of
from flexpipe.bus.link import Link

LOG = logging.getLogger("flexpipe.bus")

ACK_WAIT_S = 10
"""A message is delivered again after this long without a word from us; we say "in progress" well before."""
PROGRESS_EVERY_S = 4.0
PULL_EXPIRY_S = 5.0
"""A pull that the server lost is asked for again after this."""
DEAF_LOOK_S = 2.0
"""How often the watchdog looks; two deaf looks in a row and the ear is mounted anew."""
CONSUMER_KEPT_S = 30 * 86_400
"""A durable of a service that never comes back is forgotten after this, as are the messages it missed."""


class Ear:
    """One durable consumer of one stream."""

    def __init__(
        self,
        link: Link,
        *,
        stream: str,
        durable: str,
        hears: tuple[Hearing, ...],
        on_message: Callable[[NatsMessage], Awaitable[None]],
    ) -> None:
        self._link = link
        self._stream = stream
        self._durable = durable
        self._filters = filters_of(hears)
        self._on_message = on_message
        self._busy = 0
        self._subscriber: Any = None

    async def open(self) -> None:
        """Declare the consumer, let it deliver at once what the last process left unacked, and mount the handler."""
        await self._declare()
        await self._reclaim()
        self._subscriber = self._link.broker.subscriber(
            stream=JStream(self._stream, declare=False),
            durable=self._durable,
            config=ConsumerConfig(filter_subjects=list(self._filters)),
            pull_sub=PullSub(batch_size=1, timeout=PULL_EXPIRY_S),
            inbox_prefix=self._link.inbox_prefix.encode() + b".",
            ack_policy=AckPolicy.MANUAL,
            decoder=_as_it_is,
            include_in_schema=False,
        )
        self._subscriber(self._take)
        await self._subscriber.start()

    async def close(self) -> None:
        """Stop pulling."""
        if self._subscriber is not None:
            try:
                await self._subscriber.stop()
            except nats.errors.Error as error:
                LOG.info("%s: %s", self._durable, error)

    async def guard(self) -> None:
        """Watch for deafness until cancelled."""
        deaf_looks = 0
        while True:
            await asyncio.sleep(DEAF_LOOK_S)
            if not self._link.is_up or self._busy:
                deaf_looks = 0
                continue
            try:
                info = await self._link.jetstream.consumer_info(self._stream, self._durable)
                is_owed = bool(info.num_pending or info.num_ack_pending)
                is_deaf = is_owed and not info.num_waiting and not self._busy
            except NotFoundError:
                await self._declare()
                is_deaf = True
            except (nats.errors.Error, JetStreamError) as error:
                LOG.warning("%s: %s", self._durable, error or "no answer")
                continue
            deaf_looks = deaf_looks + 1 if is_deaf else 0
            if deaf_looks >= 2:
                LOG.warning("%s has gone deaf: mounted anew", self._durable)
                await self.close()
                await self._reclaim()
                await self._subscriber.start()
                deaf_looks = 0

    async def _declare(self) -> None:
        """Create the consumer, or let it be where it is as it should be: not every user may create one."""
        jetstream = self._link.jetstream
        try:
            present = await jetstream.consumer_info(self._stream, self._durable)
        except NotFoundError:
            present = None
        if present is None or _filters_of(present.config) != self._filters:
            config = consumer_config(self._durable, self._filters)
            await jetstream.add_consumer(self._stream, config=config)

    async def _reclaim(self) -> None:
        """Have what was delivered and never acked delivered again, at once rather than when its time is up."""
        try:
            await self._link.jetstream.reset_consumer(self._stream, self._durable)
        except (nats.errors.Error, JetStreamError) as error:
            LOG.info("%s: unacked messages come after %d s: %s", self._durable, ACK_WAIT_S, error)

    async def _take(self, message: NatsMessage) -> None:
        self._busy += 1
        handling = asyncio.ensure_future(self._on_message(message))
        try:
            while True:
                done, _ = await asyncio.wait({handling}, timeout=PROGRESS_EVERY_S)
                if done:
                    break
                await message.raw_message.in_progress()
            await handling
        finally:
            handling.cancel()
            self._busy -= 1


async def _as_it_is(message: NatsMessage) -> NatsMessage:
    return message


def consumer_config(durable: str, filters: tuple[str, ...]) -> ConsumerConfig:
    """A durable pull consumer that gives one message at a time, in order, until it is acked."""
    return ConsumerConfig(
        name=durable,
        durable_name=durable,
        ack_policy=ServerAckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_S,
        max_ack_pending=1,
        deliver_policy=DeliverPolicy.ALL,
        filter_subjects=list(filters),
        inactive_threshold=CONSUMER_KEPT_S,
    )


def _filters_of(config: ConsumerConfig | None) -> tuple[str, ...]:
    if config is None:
        return ()
    single = [config.filter_subject] if config.filter_subject else []
    return tuple(sorted(config.filter_subjects or single))
