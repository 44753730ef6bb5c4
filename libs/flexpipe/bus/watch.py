"""A watch on one bucket that cannot stay deaf: a pushed stream of changes, compared with the leader now and then.

Called by `Bus.watch` and the shell. It never feeds a revision twice, nor an older one after a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.kv import KeyValue

from flexpipe.bus import buckets
from flexpipe.bus.link import Link
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.machine import Entry

LOG = logging.getLogger("flexpipe.bus")

COMPARE_EVERY_S = 10.0
"""A pushed watch can go deaf without an error (seen after server restarts). What it missed is late by this at most."""
LOOK_EVERY_S = 0.25
"""How often a quiet watch looks whether the connection is a new one."""
RETRY_WAIT_S = 0.5


class Watch:
    """Tell `on_entry` every change of a bucket after `first` was read.

    Revisions of a key only grow, unless the store itself was lost: what is there then goes to `on_reset`.
    """

    def __init__(
        self,
        link: Link,
        bucket: str,
        on_entry: Callable[[Entry], Awaitable[None]],
        compare_every_s: float = COMPARE_EVERY_S,
        *,
        on_reset: Callable[[Entry], Awaitable[None]] | None = None,
    ) -> None:
        self._link = link
        self._bucket = bucket
        self._on_entry = on_entry
        self._on_reset = on_reset or on_entry
        self._compare_every_s = compare_every_s
        self._known: dict[str, Entry] = {}

    async def first(self) -> tuple[Entry, ...]:
        """Every key that has a value now, from the leader. Raises Unavailable."""
        entries = await buckets.read_all(self._link, self._bucket)
        self._known = {entry.key: entry for entry in entries}
        return entries

    async def run(self) -> None:
        """Watch until cancelled; an outage only makes it late."""
        while True:
            try:
                await self._follow()
            except (Unavailable, nats.errors.Error, JetStreamError, TimeoutError, OSError) as error:
                LOG.warning("watch on %s starts anew: %s", self._bucket, error or "no answer")
                await asyncio.sleep(RETRY_WAIT_S)

    async def _follow(self) -> None:
        await self._link.until_up(self._compare_every_s)
        generation = self._link.generation
        store = KeyValue(
            name=self._bucket,
            stream=f"KV_{self._bucket}",
            pre=buckets.subject_of(self._bucket, ""),
            js=self._link.jetstream,
            direct=False,
        )
        watcher = await store.watchall()
        try:
            quiet_s = 0.0
            while generation == self._link.generation:
                try:
                    update = await watcher.updates(timeout=LOOK_EVERY_S)  # type: ignore[no-untyped-call]
                except TimeoutError:  # nats-py raises its own kind or asyncio's plain one
                    update = None
                    quiet_s += LOOK_EVERY_S
                if update is not None:
                    await self._newer(_entry(update))
                if quiet_s >= self._compare_every_s:
                    quiet_s = 0.0
                    await self._compare()
        finally:
            with contextlib.suppress(nats.errors.Error, JetStreamError):
                await watcher.stop()  # type: ignore[no-untyped-call]
        await self._link.until_up(self._compare_every_s)
        await self._compare()

    async def _newer(self, entry: Entry) -> None:
        known = self._known.get(entry.key)
        if known is None or entry.revision > known.revision:
            self._known[entry.key] = entry
            await self._on_entry(entry)

    async def _compare(self) -> None:
        """Feed whatever differs from what was fed; also where revisions went back because the store was lost."""
        now = {entry.key: entry for entry in await buckets.read_all(self._link, self._bucket)}
        for key in sorted(set(now) | set(self._known)):
            entry, known = now.get(key), self._known.get(key)
            if entry is None:
                if known is None or known.value is None:
                    continue
                entry = (await buckets.read(self._link, self._bucket, key)).entry
            self._known[key] = entry
            if known is None or entry.revision > known.revision:
                await self._on_entry(entry)
            elif entry.revision < known.revision:
                await self._on_reset(entry)


def _entry(update: KeyValue.Entry) -> Entry:
    gone = update.operation is not None
    return Entry(
        bucket=update.bucket,
        key=update.key,
        value=None if gone else (update.value or b"").decode(),
        revision=update.revision or 0,
    )
