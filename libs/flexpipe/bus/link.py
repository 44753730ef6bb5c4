"""One connection to NATS: a FastStream broker for handlers and, on the same socket, nats-py for what FastStream lacks.

Called by `flexpipe.bus` alone. It never buffers a write over a reconnect: what cannot leave now fails now.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import nats.errors
from faststream.nats import NatsBroker, NatsUserPassword
from faststream.security import BaseSecurity
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from flexpipe.bus.settings import BusSettings
from flexpipe.kernel.errors import FlexPipeError, InvalidInput, Refused, Unavailable

LOG = logging.getLogger("flexpipe.bus")

RECONNECT_WAIT_S = 0.25
"""Between attempts, for ever: a server on the same machine is back in 20 ms, one of a cluster in seconds."""
PING_INTERVAL_S = 5
PINGS_OUTSTANDING = 2
"""Together: a server that is frozen, not dead, is noticed after 15 s and the next one tried."""
ANSWER_LIMIT_S = 2.0
"""One attempt of one request. A healthy server answers in 1 ms; a leader election takes longer than any attempt."""
STOP_LIMIT_S = 5.0
"""A connection that does not drain within this is cut."""
WRONG_SEQUENCE = (10071, 10164)
"""JetStream's error codes for "the last sequence is not the expected one"."""


class WrongRevision(FlexPipeError):
    """Compare-and-set lost: the key is at another revision than expected."""


@dataclass(frozen=True, slots=True)
class Ack:
    """JetStream has stored it."""

    stream: str
    sequence: int
    duplicate: bool


class _Broker(NatsBroker):
    """FastStream's broker on a client that is ours from before it connects, so that it can be closed at any time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.client = Client()

    async def _connect(self) -> Client:
        await self.client.connect(**self._connection_kwargs)
        self.config.connect(self.client)
        return self.client


class Link:
    """Opened once, reconnects for ever, closed once."""

    def __init__(self, settings: BusSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._up = asyncio.Event()
        self._denied: dict[str, set[asyncio.Future[None]]] = {}
        self._closing = False
        self.inbox_prefix = inbox_prefix(settings.user)
        self.generation = 0  # grows with each (re)connect: watches start anew when it did
        self.broker = _Broker(
            settings.servers,
            name=name,
            security=self._security(),
            connect_timeout=2,
            reconnect_time_wait=RECONNECT_WAIT_S,  # nats-py takes fractions
            max_reconnect_attempts=-1,
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=PINGS_OUTSTANDING,
            inbox_prefix=self.inbox_prefix,
            graceful_timeout=STOP_LIMIT_S,
            error_cb=self._on_error,
            disconnected_cb=self._on_down,
            reconnected_cb=self._on_up,
            apply_types=False,
            logger=None,
        )
        self._turned_away: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _security(self) -> BaseSecurity | None:
        if not self._settings.user:
            return None
        return NatsUserPassword(
            username=self._settings.user, password=self._settings.password.get_secret_value()
        )

    async def open(self) -> None:
        """Connect and start the broker. Raises Unavailable, in one line, where that fails within the limit."""
        limit_s = self._settings.connect_limit_s
        opening = asyncio.create_task(self._open())
        first: set[asyncio.Future[Any]] = {opening, self._turned_away}
        try:
            await asyncio.wait(first, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                await opening
                self.generation += 1
                self._up.set()
        except (OSError, nats.errors.Error) as error:
            await self._on_error(error)
            if not self._turned_away.done():
                raise Unavailable(f"NATS at {self._settings.url}: {error}") from error
        finally:
            if not self._up.is_set():
                self._closing = True
                opening.cancel()
                await asyncio.wait({opening})
                await self.close()
        if self._turned_away.done():
            raise Unavailable(
                f"NATS at {self._settings.url} turns user {self._settings.user!r} away: "
                "check FLEXPIPE_BUS_USER and FLEXPIPE_BUS_PASSWORD"
            )
        if self._closing:
            raise Unavailable(
                f"no NATS server at {self._settings.url} within {limit_s:g} s{self._last_error()}: "
                "start one (`flexpipe up`) or set FLEXPIPE_BUS_URL"
            )

    async def _open(self) -> None:
        await self.broker.connect()
        await self.broker.start()

    async def close(self) -> None:
        """Drain and close, within a limit."""
        self._closing = True
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                if self.is_up:
                    await self.broker.stop()
        except (TimeoutError, nats.errors.Error) as error:
            LOG.warning("%s: closing without draining: %s", self._name, error or "time is up")
        if not self.client.is_closed:
            # A task of its own: what is awaited in here may swallow the cancellation that a limit is made of.
            closing = asyncio.create_task(self._close_client())
            await asyncio.wait({closing}, timeout=STOP_LIMIT_S)

    async def _close_client(self) -> None:
        # nats-py: nothing was ever sent, or what it still flushes has nowhere to go.
        with contextlib.suppress(AssertionError, OSError):
            await self.client.close()

    @property
    def client(self) -> Client:
        """The nats-py client of this connection."""
        return self.broker.client

    @property
    def jetstream(self) -> JetStreamContext:
        """nats-py's JetStream context."""
        return self.client.jetstream(timeout=ANSWER_LIMIT_S)

    @property
    def is_up(self) -> bool:
        """Whether a request could leave now."""
        return bool(self.client.is_connected)

    async def until_up(self, limit_s: float) -> None:
        """Wait until connected. Raises Unavailable at the limit."""
        try:
            async with asyncio.timeout(limit_s):
                while not self.is_up:
                    self._up.clear()
                    await self._up.wait()
        except TimeoutError as error:
            raise Unavailable(f"NATS at {self._settings.url} is away") from error

    async def request(
        self,
        subject: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        limit_s: float = ANSWER_LIMIT_S,
    ) -> bytes:
        """One request, one attempt. Raises Unavailable (nothing is known), Refused (no permission) or InvalidInput."""
        if not self.is_up:
            raise Unavailable(f"NATS at {self._settings.url} is away")
        with self._watching_for_denial(subject) as denied:
            answer = asyncio.ensure_future(
                self.client.request(
                    subject, body, timeout=limit_s, headers=dict(headers) if headers else None
                )
            )
            try:
                both: set[asyncio.Future[Any]] = {answer, denied}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if denied.done() and not answer.done():
                    raise Refused(
                        f"user {self._settings.user!r} has no permission to say {subject}"
                    )
                return (await answer).data
            except nats.errors.MaxPayloadError as error:
                raise _too_long(subject, body) from error
            except (nats.errors.Error, OSError) as error:
                raise Unavailable(f"{subject}: {error or 'no answer'}") from error
            finally:
                answer.cancel()

    @contextlib.contextmanager
    def _watching_for_denial(self, subject: str) -> Iterator[asyncio.Future[None]]:
        """A future that is done once the server has told, in its own time, that we may not use a subject."""
        denied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._denied.setdefault(subject.lower(), set())
        waiting.add(denied)
        try:
            yield denied
        finally:
            waiting.discard(denied)
            if not waiting:
                self._denied.pop(subject.lower(), None)

    async def store(self, subject: str, body: bytes, headers: Mapping[str, str]) -> Ack:
        """Publish to a stream and wait for its ack, one attempt. Raises as `request`, and WrongRevision."""
        return parse_ack(subject, await self.request(subject, body, headers))

    async def say(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Publish without an answer; whether it left. Nothing waits, nothing is kept for later. Raises InvalidInput."""
        if not self.is_up:
            return False
        try:
            await self.client.publish(subject, body, headers=dict(headers) if headers else None)
        except nats.errors.MaxPayloadError as error:
            raise _too_long(subject, body) from error
        except (nats.errors.Error, OSError) as error:
            LOG.debug("%s: %s: %s", self._name, subject, error or "not sent")
            return False
        return True

    async def subscribe(
        self, subject: str, on_message: Callable[[Msg], Awaitable[None]]
    ) -> Subscription:
        """Listen on a subject itself, through reconnects. Raises Unavailable, or Refused without permission."""
        if not self.is_up:
            raise Unavailable(f"NATS at {self._settings.url} is away")
        with self._watching_for_denial(subject) as denied:
            subscription = await self.client.subscribe(subject, cb=on_message)
            try:
                # Leaves after it, so once this is answered we were told of a no. (A ping overtakes in nats-py.)
                await self.request("$JS.API.INFO", b"")
            except Unavailable:
                await self.unsubscribe(subscription)
                raise
            if denied.done():
                await self.unsubscribe(subscription)
                raise Refused(f"user {self._settings.user!r} has no permission to hear {subject}")
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Stop listening; nothing happens where the connection is closed already."""
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()

    async def api(self, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request of JetStream's API, such as `STREAM.INFO.<name>`. Raises Unavailable, Refused, NotFoundError."""
        raw = await self.request(f"$JS.API.{verb}", json.dumps(body).encode() if body else b"")
        answer: dict[str, Any] = json.loads(raw)
        if "error" in answer:
            error = answer["error"]
            if error.get("code") == 404:
                raise NotFoundError(**_known(error))
            raise Unavailable(f"{verb}: {error.get('description', error)}")
        return answer

    async def _on_error(self, error: Exception) -> None:
        text = str(error)
        if "authorization violation" in text.lower() and not self._turned_away.done():
            self._turned_away.set_result(None)
        if "permissions violation" in text:
            subject = text.split('"')[1] if '"' in text else ""
            for future in self._denied.get(subject, ()):
                if not future.done():
                    future.set_result(None)
        LOG.warning("%s: %s", self._name, text or type(error).__name__)

    async def _on_down(self) -> None:
        self._up.clear()
        if not self._closing:
            LOG.warning("%s: connection lost", self._name)

    async def _on_up(self) -> None:
        self.generation += 1
        self._up.set()
        LOG.info("%s: connected again", self._name)

    def _last_error(self) -> str:
        error = self.client.last_error
        return f" ({error})" if error else ""


def inbox_prefix(user: str) -> str:
    """Each user listens to answers under a prefix of its own: nobody reads another's."""
    return f"_INBOX_{user}" if user else "_INBOX"


def parse_ack(subject: str, raw: bytes) -> Ack:
    """JetStream's answer to a publish. Raises WrongRevision or Unavailable."""
    answer = json.loads(raw)
    error = answer.get("error")
    if error is None:
        return Ack(
            stream=answer["stream"],
            sequence=int(answer["seq"]),
            duplicate=bool(answer.get("duplicate", False)),
        )
    if error.get("err_code") in WRONG_SEQUENCE:
        raise WrongRevision(f"{subject}: {error.get('description')}")
    raise Unavailable(f"{subject}: {error.get('description', error)}")


def _too_long(subject: str, body: bytes) -> InvalidInput:
    return InvalidInput(subject, f"{len(body)} bytes", "a message is below NATS's max_payload")


def _known(error: Mapping[str, Any]) -> dict[str, Any]:
    return {key: error.get(key) for key in ("code", "description", "err_code")}


__all__ = ["APIError", "Ack", "Link", "NotFoundError", "WrongRevision", "inbox_prefix", "parse_ack"]
