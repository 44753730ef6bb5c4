"""What a shell has seen: ids of messages it handled, so that a repeat is acked unseen, and places in buckets."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from flexpipe.kernel.machine import Entry

SEEN_BOUND: Final = 4096
"""The bus forgets ids after two minutes; this covers a busy quarter of an hour."""


class SeenIds:
    """The newest `SEEN_BOUND` ids."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._ids

    def add(self, *message_ids: str) -> None:
        """More of them; the oldest are forgotten where there are too many."""
        self._ids.update(dict.fromkeys(message_ids))
        while len(self._ids) > SEEN_BOUND:
            self._ids.popitem(last=False)


def place_of(entry: Entry) -> tuple[str, str]:
    """Where an entry lies: bucket and key."""
    return entry.bucket, entry.key
