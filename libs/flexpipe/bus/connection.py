"""`connect` and `Bus`: what services, the shell and the command line say to and read from NATS.

Two connections: one for everything, one for the urgent lane alone, so that nothing queued can delay it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from flexpipe.bus import buckets, envelope
from flexpipe.bus.clock import Clock, WallClock
from flexpipe.bus.hearing import Hearing
from flexpipe.bus.link import ANSWER_LIMIT_S, Link
from flexpipe.bus.listening import Listener
from flexpipe.bus.overhearing import OVERHEARD_BOUND, Overhearing
from flexpipe.bus.settings import BusSettings
from flexpipe.bus.watch import Watch
from flexpipe.events import catalog
from flexpipe.events.catalog import Lane
from flexpipe.events.message import Message
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.kernel.machine import Delivered, Entry, Publish, Put, PutAll, Stored

WRITE_LIMIT_S = 30.0
"""Default time for one publish or write with its retries: longer than a leader election (7 s seen), shorter than
anybody's patience."""
RETRY_WAIT_S = 0.1
LISTEN_BOUND = 1024
"""Messages that a slow listener may lag behind before the stream waits for it."""
BEAT_BYTES = 60
"""Of a beat's body: ten thousand nodes that beat twice a second are 1.2 MB/s."""


class Bus:
    """One service's place on the bus. Made by `connect`."""

    def __init__(self, settings: BusSettings, service: str, name: str, clock: Clock) -> None:
        self.service = service
        self.name = name
        self.clock = clock
        self.main = Link(settings, f"{service}-{name}")
        self.urgent = Link(settings, f"{service}-{name}-urgent")

    def link(self, lane: Lane) -> Link:
        """The connection that a lane uses."""
        return self.urgent if lane is Lane.URGENT else self.main

    async def publish(self, message: Publish, limit_s: float = WRITE_LIMIT_S) -> None:
        """Say it, until JetStream has stored it; the id makes repeats one message.

        What no stream keeps (the tel lane) is said once, now, and is lost where the bus is away.
        Raises Unavailable at the limit, Refused without permission, InvalidInput for a type outside the catalogue.
        """
        said = catalog.BY_NAME.get(message.type)
        if said is None:
            raise InvalidInput("type", message.type, "use a message class of the catalogue")
        headers = envelope.headers_of(message, source=self.source, at_s=self.clock.now_s())
        subject, body = envelope.subject_of(message), message.message.encode()
        if not said.is_stored:
            await self.link(said.lane).say(subject, body, headers)
            return
        await self.store(subject, body, headers, said.lane, limit_s)

    async def beat(self, message: Message) -> None:
        """A sign of life: a body and nothing else, said once, now. Lost where the bus is away. Raises InvalidInput."""
        name, body = type(message).__name__, message.canonical_json().encode()
        said = catalog.BY_NAME.get(name)
        if said is None or not said.is_beat:
            raise InvalidInput("beat", name, "a heartbeat of the catalogue's tel lane")
        if len(body) > BEAT_BYTES:
            fix = f"at most {BEAT_BYTES} bytes of JSON: use a shorter name"
            raise InvalidInput(said.ce_type, f"{len(body)} bytes", fix)
        await self.link(said.lane).say(said.subject(envelope.key_of(message.bus_key())), body)

    async def store(
        self,
        subject: str,
        body: bytes,
        headers: dict[str, str],
        lane: Lane = Lane.EVT,
        limit_s: float = WRITE_LIMIT_S,
    ) -> int:
        """Store one raw message on a stream; its sequence. `headers` should carry a message id. Raises as `publish`."""
        link = self.link(lane)
        deadline = time.monotonic() + limit_s
        while True:
            try:
                await link.until_up(max(0.0, deadline - time.monotonic()))
                return (await link.store(subject, body, headers)).sequence
            except Unavailable:
                if time.monotonic() + RETRY_WAIT_S >= deadline:
                    raise
                await asyncio.sleep(RETRY_WAIT_S)

    async def read(self, bucket: str, key: str) -> Entry:
        """One key, from the leader. Absent: value None. Raises Unavailable."""
        return (await buckets.read(self.main, bucket, key)).entry

    async def read_all(self, bucket: str) -> tuple[Entry, ...]:
        """Every key that has a value, sorted, from the leader. Raises Unavailable."""
        return await buckets.read_all(self.main, bucket)

    async def put(self, put: Put, limit_s: float = WRITE_LIMIT_S) -> Stored:
        """Compare-and-set. `written` and `conflict` are certain; raises Unavailable where neither is at the limit."""
        return await buckets.put(self.main, put, limit_s)

    async def put_all(self, puts: PutAll, limit_s: float = WRITE_LIMIT_S) -> Stored:
        """Compare-and-set of several keys of one bucket, all or none. Raises as `put`."""
        return await buckets.put_all(self.main, puts, limit_s)

    async def watch(self, bucket: str) -> AsyncIterator[Entry]:
        """Every key that has a value, then every change, until the caller stops asking. Outages only make it late."""
        changes: asyncio.Queue[Entry] = asyncio.Queue(LISTEN_BOUND)
        watch = Watch(self.main, bucket, changes.put)
        for entry in await watch.first():
            yield entry
        running = asyncio.create_task(watch.run())
        try:
            while True:
                yield await changes.get()
        finally:
            running.cancel()

    @asynccontextmanager
    async def listen(
        self, hears: Iterable[Hearing], *, since_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[Delivered]]:
        """Messages of one lane for people and tests: nothing is acked, nothing is lost between enter and read.

        `since_s` (epoch) starts in the past; None starts now. Unreadable messages are passed over.
        """
        listener = Listener(self.main, tuple(hears), since_s)
        await listener.open()
        try:
            yield listener.messages()
        finally:
            await listener.close()

    @asynccontextmanager
    async def overhear(
        self, hears: Iterable[Hearing], *, bound: int = OVERHEARD_BOUND
    ) -> AsyncIterator[Overhearing]:
        """Messages that no stream keeps (the tel lane, beats too), as they pass: `async for` what this gives.

        Where they come faster than they are taken, the oldest go (`.dropped`). Outages leave a gap. Raises InvalidInput
        for other lanes, Refused without permission.
        """
        overhearing = Overhearing(self.link(Lane.TEL), tuple(hears), bound)
        try:
            await overhearing.open()
            yield overhearing
        finally:
            await overhearing.close()

    async def echo(self, limit_s: float = ANSWER_LIMIT_S) -> float:
        """A real round trip through JetStream, in seconds. Raises Unavailable at the limit."""
        began = time.monotonic()
        raw = await self.main.request("$JS.API.INFO", b"", limit_s=limit_s)
        if "error" in json.loads(raw):
            raise Unavailable(f"JetStream: {json.loads(raw)['error'].get('description')}")
        return time.monotonic() - began

    @property
    def source(self) -> str:
        """CloudEvents source: who says it."""
        return f"/flexpipe/{self.service}/{self.name}"


@asynccontextmanager
async def connect(
    settings: BusSettings, *, service: str, name: str, clock: Clock | None = None
) -> AsyncIterator[Bus]:
    """A bus that reconnects for ever while the block runs. Raises Unavailable, in one line, if the start fails."""
    bus = Bus(settings, service, name, clock or WallClock())
    async with _opened(bus.main), _opened(bus.urgent):
        yield bus


@asynccontextmanager
async def _opened(link: Link) -> AsyncIterator[None]:
    await link.open()
    try:
        yield
    finally:
        await link.close()
