"""The way out of a shell: one queue, one order. Journal lines, messages and snapshots leave exactly as they went in.

A journal line is put in before the effects of its input, so nothing that a machine decided is ever on the bus before
the input that led to it is in the journal. Local effects do not wait for either: no bus round trip lies on a hot path.
Writes to buckets wait until everything before them has left (`reached`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from flexpipe.events import catalog
from flexpipe.events.catalog import Lane
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.kernel.machine import Publish

LOG = logging.getLogger("flexpipe.bus")

OUTBOX_BOUND = 4096
"""Items that may wait while the bus is away: minutes of control messages, or a few MiB of journal lines."""
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


Item = Line | Publish | Snapshot


class Outbox:
    """Bounded; `put` waits while it is full, except that noise (the seq lane) is dropped instead."""

    def __init__(
        self,
        *,
        send_lines: Callable[[list[str]], Awaitable[None]],
        send_message: Callable[[Publish], Awaitable[None]],
        send_snapshot: Callable[[str], Awaitable[None]],
        bound: int = OUTBOX_BOUND,
    ) -> None:
        self._send_lines = send_lines
        self._send_message = send_message
        self._send_snapshot = send_snapshot
        self._bound = bound
        self._items: deque[Item] = deque()
        self._taken = 0
        self._left = 0
        self._changed = asyncio.Condition()
        self.dropped = 0  # noise that found it full, and what no message can carry

    @property
    def mark(self) -> int:
        """The position behind everything put in so far; `reached(mark)` returns when all of it has left."""
        return self._taken

    async def put(self, item: Item) -> None:
        """Queue one item."""
        async with self._changed:
            if len(self._items) >= self._bound and _is_noise(item):
                self.dropped += 1
                return
            while len(self._items) >= self._bound:
                await self._changed.wait()
            self._items.append(item)
            self._taken += 1
            self._changed.notify_all()

    async def reached(self, mark: int) -> None:
        """Return when everything before `mark` is stored on the bus."""
        async with self._changed:
            while self._left < mark:
                await self._changed.wait()

    async def run(self) -> None:
        """Send until cancelled. Outages are waited out; any other failure ends it."""
        while True:
            async with self._changed:
                while not self._items:
                    await self._changed.wait()
                batch = self._next_batch()
            await self._send(batch)
            async with self._changed:
                for _ in batch:
                    self._items.popleft()
                self._left += len(batch)
                self._changed.notify_all()

    def _next_batch(self) -> list[Item]:
        first = self._items[0]
        if not isinstance(first, Line):
            return [first]
        batch: list[Item] = []
        size = 0
        for item in self._items:
            if not isinstance(item, Line) or (batch and size + len(item.text) > BATCH_BYTES):
                break
            batch.append(item)
            size += len(item.text)
        return batch

    async def _send(self, batch: list[Item]) -> None:
        while True:
            try:
                match batch[0]:
                    case Line():
                        await self._send_lines(
                            [item.text for item in batch if isinstance(item, Line)]
                        )
                    case Snapshot(text=text):
                        await self._send_snapshot(text)
                    case Publish() as message:
                        await self._send_message(message)
            except InvalidInput as error:
                # Sent again it would be refused again, and its cause fed again: a loop. Who misses it asks anew.
                self.dropped += 1
                LOG.error("cannot be said, dropped: %s", error)
                return
            except Unavailable as error:
                LOG.warning("outbox waits: %s", error)
                await asyncio.sleep(RETRY_WAIT_S)
            else:
                return


def _is_noise(item: Item) -> bool:
    if not isinstance(item, Publish):
        return False
    said = catalog.BY_NAME.get(item.type)
    return said is not None and said.lane is Lane.SEQ
