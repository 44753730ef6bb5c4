"""The way out of a shell: one queue. Messages leave in the order they went in, journal lines in theirs.

A journal line is put in before the effects of its input, so nothing that a machine decided is ever on the bus before
the input that led to it is in the journal. While the bus is away lines gather in batches, ahead of messages that wait,
and never over a snapshot: what it covers is what lies before it. Local effects do not wait for any of it: no bus round
trip lies on a hot path, and an outage stops nobody who only serves. Writes to buckets wait until everything before them
has left (`reached`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from flexpipe.events import catalog
from flexpipe.events.catalog import Lane
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.kernel.machine import Publish

LOG = logging.getLogger("flexpipe.bus")

OUTBOX_BOUND = 4096
"""Messages that may wait while the bus is away: hours of what a control service says."""
NOISE_SHARE = 4
"""A fourth of the places is open to noise (the seq lane), so that it never keeps out a fact."""
LINES_BOUND_BYTES = 64 * 1024 * 1024
"""Journal lines that may wait: ten minutes of a router at a hundred requests a second."""
BATCH_BYTES = 256 * 1024
"""Journal lines that leave as one message: a quarter of NATS's max_payload."""
RETRY_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input journal."""

    text: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a machine knew after the line before it."""

    text: str


@dataclass(slots=True, eq=False)
class _Lines:
    """Lines that leave together."""

    texts: list[str] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True, eq=False)
class _Waiting:
    """What leaves at once. `first`: how many items went in before the first of it."""

    what: _Lines | Publish | Snapshot
    first: int
    noise: bool = False


Item = Line | Publish | Snapshot


class Outbox:
    """Bounded. A message waits for its place, noise is dropped instead; a line without room is the caller's matter."""

    def __init__(
        self,
        *,
        send_lines: Callable[[list[str]], Awaitable[None]],
        send_message: Callable[[Publish], Awaitable[None]],
        send_snapshot: Callable[[str], Awaitable[None]],
        bound: int = OUTBOX_BOUND,
        lines_bound_bytes: int = LINES_BOUND_BYTES,
        retry_wait_s: float = RETRY_WAIT_S,
    ) -> None:
        self._send_lines = send_lines
        self._send_message = send_message
        self._send_snapshot = send_snapshot
        self._bound = bound
        self._lines_bound_bytes = lines_bound_bytes
        self._retry_wait_s = retry_wait_s
        self._waiting: deque[_Waiting] = deque()
        self._open: _Lines | None = None  # takes further lines
        self._sending: _Waiting | None = None
        self._messages = 0
        self._noise = 0
        self._lines_bytes = 0
        self._taken = 0
        self._changed = asyncio.Condition()
        self.dropped = 0  # noise that found it full, and what no message can carry
        self.lines_dropped = 0  # see `drop_lines`

    @property
    def mark(self) -> int:
        """The position behind everything put in so far; `reached(mark)` returns when all of it has left."""
        return self._taken

    async def put(self, item: Item) -> bool:
        """Queue one item. False for a line that finds no room: nothing was queued, see `drop_lines`."""
        async with self._changed:
            match item:
                case Line(text=text):
                    if not self._put_line(text):
                        return False
                case Snapshot():
                    self._put_snapshot(item)
                case Publish():
                    await self._put_message(item)
            self._changed.notify_all()
        return True

    async def drop_lines(self) -> int:
        """Give up every line and snapshot that has not begun to leave; how many lines that was.

        For a journal that cannot be kept any more. Its owner begins a new one behind this.
        """
        async with self._changed:
            count = 0
            kept: deque[_Waiting] = deque()
            for each in self._waiting:
                if each is self._sending or isinstance(each.what, Publish):
                    kept.append(each)
                    continue
                self._count(each, -1)
                count += len(each.what.texts) if isinstance(each.what, _Lines) else 0
            self._waiting = kept
            self._open = None
            self.lines_dropped += count
            self._changed.notify_all()
        return count

    async def reached(self, mark: int) -> None:
        """Return when everything before `mark` is stored on the bus."""
        async with self._changed:
            while self._left < mark:
                await self._changed.wait()

    async def run(self) -> None:
        """Send until cancelled. Outages are waited out; any other failure ends it."""
        while True:
            async with self._changed:
                while not self._waiting:
                    await self._changed.wait()
                first = self._sending = self._waiting[0]
                if first.what is self._open:
                    self._open = None  # a batch that is tried again must be the same batch
            await self._send(first.what)
            async with self._changed:
                self._waiting.popleft()
                self._sending = None
                self._count(first, -1)
                self._changed.notify_all()

    @property
    def _left(self) -> int:
        """Everything that went in before this position has left."""
        return self._waiting[0].first if self._waiting else self._taken

    def _put_line(self, text: str) -> bool:
        size = len(text)
        if self._lines_bytes and self._lines_bytes + size > self._lines_bound_bytes:
            return False
        batch = self._open
        if batch is None or (batch.texts and batch.size + size > BATCH_BYTES):
            batch = self._open = _Lines()
            self._waiting.append(_Waiting(batch, self._taken))
        batch.texts.append(text)
        batch.size += size
        self._lines_bytes += size
        self._taken += 1
        return True

    def _put_snapshot(self, item: Snapshot) -> None:
        """The newest is all that is needed: it covers more than one that still waits."""
        self._waiting = deque(
            each
            for each in self._waiting
            if each is self._sending or not isinstance(each.what, Snapshot)
        )
        self._open = None
        self._add(item)

    async def _put_message(self, item: Publish) -> None:
        noise = _is_noise(item)
        if noise and (
            self._noise >= max(1, self._bound // NOISE_SHARE) or self._messages >= self._bound
        ):
            self.dropped += 1
            return
        while self._messages >= self._bound:
            await self._changed.wait()
        self._add(item, noise=noise)

    def _add(self, item: Publish | Snapshot, *, noise: bool = False) -> None:
        waiting = _Waiting(item, self._taken, noise)
        self._waiting.append(waiting)
        self._count(waiting, 1)
        self._taken += 1

    def _count(self, waiting: _Waiting, sign: int) -> None:
        match waiting.what:
            case Publish():
                self._messages += sign
                self._noise += sign * waiting.noise
            case _Lines() as lines:
                self._lines_bytes += sign * lines.size
            case Snapshot():
                pass

    async def _send(self, what: _Lines | Publish | Snapshot) -> None:
        while True:
            try:
                match what:
                    case _Lines(texts=texts):
                        await self._send_lines(texts)
                    case Snapshot(text=text):
                        await self._send_snapshot(text)
                    case Publish():
                        await self._send_message(what)
            except InvalidInput as error:
                # Sent again it would be refused again, and its cause fed again: a loop. Who misses it asks anew.
                self.dropped += 1
                LOG.error("cannot be said, dropped: %s", error)
                return
            except Unavailable as error:
                LOG.warning("outbox waits: %s", error)
                await asyncio.sleep(self._retry_wait_s)
            else:
                return


def is_stored(item: Publish) -> bool:
    """Whether it belongs in here: what no stream keeps needs no queue. What nobody knows is refused when it leaves."""
    said = catalog.BY_NAME.get(item.type)
    return said is None or said.is_stored


def _is_noise(item: Publish) -> bool:
    said = catalog.BY_NAME.get(item.type)
    return said is not None and said.lane is Lane.SEQ
