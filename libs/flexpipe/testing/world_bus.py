"""The bus of a world: buckets with compare-and-set and atomic batches, and messages that are dropped when repeated."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeVar

from flexpipe.events.catalog import BY_NAME, Lane, parse
from flexpipe.events.message import Message
from flexpipe.kernel.machine import Delivered, Entry, Publish, Put, Stored

DUPLICATE_WINDOW_S = 120.0
"""How long the bus knows a message id, as in the real streams."""

M = TypeVar("M", bound=Message)


class Buckets:
    """All buckets. Revisions grow over a bucket as in NATS."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._revisions: dict[str, int] = defaultdict(int)
        self.history: list[Entry] = []

    def get(self, bucket: str, key: str) -> Entry:
        """What is there now."""
        absent = Entry(bucket=bucket, key=key, value=None, revision=0)
        return self._entries.get((bucket, key), absent)

    def all(self, bucket: str) -> tuple[Entry, ...]:
        """Every key that has a value, sorted."""
        found = [self._entries[place] for place in sorted(self._entries) if place[0] == bucket]
        return tuple(entry for entry in found if entry.value is not None)

    def write(self, write_id: str, puts: tuple[Put, ...]) -> Stored:
        """All or none."""
        now = tuple(self.get(put.bucket, put.key) for put in puts)
        if any(not _fits(put, entry) for put, entry in zip(puts, now, strict=True)):
            return Stored(write_id=write_id, outcome="conflict", entries=now)
        written = []
        for put in puts:
            self._revisions[put.bucket] += 1
            revision = self._revisions[put.bucket]
            entry = Entry(bucket=put.bucket, key=put.key, value=put.value, revision=revision)
            self._entries[put.bucket, put.key] = entry
            written.append(entry)
        self.history.extend(written)
        return Stored(write_id=write_id, outcome="written", entries=tuple(written))


class Post:
    """Messages said so far, and commands that nobody was there to hear."""

    def __init__(self) -> None:
        self.said: list[tuple[float, str, Publish]] = []
        self._seen: dict[str, float] = {}
        self._kept: deque[tuple[Publish, Delivered]] = deque()

    def accept(self, now_s: float, sender: str, message: Publish) -> bool:
        """Whether this is news; a repeat within the window is not."""
        before = self._seen.get(message.message_id)
        if before is not None and now_s - before < DUPLICATE_WINDOW_S:
            return False
        self._seen[message.message_id] = now_s
        self.said.append((now_s, sender, message))
        return True

    def keep(self, message: Publish, delivered: Delivered) -> None:
        """A command waits for its doer; other lanes have no memory for whoever comes later."""
        if BY_NAME[message.type].lane is Lane.CMD:
            self._kept.append((message, delivered))

    def collect(self, hears: Callable[[str, str], bool]) -> list[Delivered]:
        """The commands that waited for somebody who hears them."""
        mine = [kept for kept in self._kept if hears(kept[0].type, kept[0].key)]
        self._kept = deque(kept for kept in self._kept if kept not in mine)
        return [delivered for _, delivered in mine]

    def of(self, type_: type[M]) -> tuple[M, ...]:
        """All messages of a class, in the order in which they were said."""
        found = (parse(m.type, m.message) for _, _, m in self.said if m.type == type_.__name__)
        return tuple(message for message in found if isinstance(message, type_))


def _fits(put: Put, now: Entry) -> bool:
    return put.expected == now.revision or (put.expected == 0 and now.value is None)
