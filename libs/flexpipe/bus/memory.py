"""What a shell remembers for its machine: the journal of what it was fed, and a snapshot now and then.

Used by the shell alone. With both it can roll the machine back over a crash, and give a new process the state of the
old one.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from typing import TYPE_CHECKING

from flexpipe.bus import journal
from flexpipe.bus.journal import Begin, Fed, JournalWriter, Kept
from flexpipe.bus.outbox import Line, Snapshot
from flexpipe.kernel.errors import BrokenInvariant, InvalidInput
from flexpipe.kernel.frozen import canonical_json
from flexpipe.kernel.machine import Delivered, Effects, Input, Machine, Put

if TYPE_CHECKING:
    from flexpipe.bus.connection import Bus
    from flexpipe.bus.outbox import Outbox

LOG = logging.getLogger("flexpipe.bus")

SNAPSHOT_EVERY = 256
"""Inputs between snapshots: what a resuming shell feeds again at most, in a few hundredths of a second."""
SNAPSHOT_BYTES = 900 * 1024
"""A larger snapshot does not fit a bucket's value; the last one that did, and the journal behind it, stay in force."""


TAKEN_BOUND = 256
"""Message ids in a snapshot: only those whose ack may have been lost matter, a handful."""


class MachineMemory:
    """The machine with its journal. Not `is_kept`: just the machine."""

    def __init__(
        self, bus: Bus, machine: Machine, service: str, name: str, *, is_kept: bool
    ) -> None:
        self._bus = bus
        self._machine = machine
        self._service = service
        self._name = name
        self._is_kept = is_kept
        self._writer = JournalWriter(bus, service, name)
        self._run = uuid.uuid4().hex
        self._n = 0
        self._base = ""  # the machine after input `n − len(self._since)`
        self._since: list[tuple[float, Input]] = []
        self._revision = 0
        self._taken: deque[str] = deque(maxlen=TAKEN_BOUND)
        self.outbox: Outbox | None = None

    async def begin(self, now_s: float, *, resume: bool) -> tuple[str, ...]:
        """Start a run, restored or fresh. Gives the ids of messages that the restored machine has already taken."""
        if not self._is_kept:
            if resume:
                raise BrokenInvariant(
                    "resume=True needs journaled=True: there is nothing to resume from"
                )
            return ()
        kept, self._revision = await journal.read_kept(self._bus, self._service, self._name)
        if resume and kept is not None:
            await self._resume(kept)
        self._base = self._machine.snapshot()
        await self._put_begin(now_s)
        return tuple(self._taken)

    async def feed(self, now_s: float, event: Input) -> Effects:
        """Let the machine decide; its journal line goes out before whatever the caller does with the effects."""
        if not self._is_kept:
            return self._machine.handle(now_s, event)
        try:
            effects = self._machine.handle(now_s, event)
        except Exception as error:
            await self._put_line(now_s, event, f"crash: {type(error).__name__}")
            raise
        self._n += 1
        self._since.append((now_s, event))
        if isinstance(event, Delivered):
            self._taken.append(event.message_id)
        if not await self._put_line(now_s, event, journal.effects_digest(effects)):
            await self._begin_anew(now_s)
        if len(self._since) >= SNAPSHOT_EVERY:
            await self.keep()
        return effects

    async def keep(self) -> None:
        """Take a snapshot now."""
        if self._is_kept:
            self._base = self._machine.snapshot()
            self._since = []
            await self._put_snapshot()

    def roll_back(self) -> None:
        """Make the machine what it was before the input it crashed on. Without a journal it stays as it is."""
        if not self._is_kept:
            return
        self._machine.restore(self._base)
        for now_s, event in self._since:
            self._machine.handle(now_s, event)

    async def send_lines(self, lines: list[str]) -> None:
        """For the outbox."""
        await self._writer.append(lines)

    async def send_snapshot(self, text: str) -> None:
        """For the outbox: store it behind the lines that it covers. Whoever else wrote the key is overwritten."""
        kept = Kept.model_validate_json(text).model_copy(
            update={"journal_sequence": self._writer.last_sequence}
        )
        value = kept.canonical_json()
        if len(value.encode()) > SNAPSHOT_BYTES:
            LOG.error("snapshot of %s: %d bytes, not kept", self._name, len(value))
            return
        for _ in range(2):
            put = Put(
                write_id=f"{kept.run}.{kept.n}",
                bucket="snapshots",
                key=f"{self._service}.{self._name}",
                value=value,
                expected=self._revision,
            )
            stored = await self._bus.put(put)
            self._revision = stored.entries[0].revision
            if stored.outcome == "written":
                return
            LOG.warning("another %s %s wrote a snapshot", self._service, self._name)

    async def _resume(self, kept: Kept) -> None:
        """Become what was kept; fresh where that was another version's: an upgrade must not keep a service down."""
        fresh = self._machine.snapshot()
        try:
            await self._restore(kept)
        except (ValueError, InvalidInput) as error:
            LOG.error(
                "snapshot of %s %s cannot be read, it starts fresh: %s",
                self._service,
                self._name,
                error,
            )
            self._machine.restore(fresh)
            self._taken.clear()

    async def _restore(self, kept: Kept) -> None:
        self._machine.restore(kept.machine)
        self._taken.extend(kept.taken)
        n = kept.n
        lines = journal.read_journal(
            self._bus, self._service, self._name, after_sequence=kept.journal_sequence
        )
        async for text in lines:
            line = journal.parse_line(text)
            if not isinstance(line, Fed) or line.run != kept.run or line.n != n + 1:
                continue  # of another run, a repeat, or a crash that was rolled back
            if line.is_crash:
                continue
            n = line.n
            event = line.event()
            self._machine.handle(line.now_s, event)
            if isinstance(event, Delivered):
                self._taken.append(event.message_id)

    async def _begin_anew(self, now_s: float) -> None:
        """The bus is away for too long to keep every line: the journal goes on from what the machine knows now.

        Serving must not wait for a journal. What was decided in between cannot be replayed; this is said aloud.
        """
        assert self.outbox is not None
        lost = await self.outbox.drop_lines()
        LOG.error("journal of %s %s: %d lines given up", self._service, self._name, lost + 1)
        self._run = uuid.uuid4().hex
        self._n = 0
        self._base = self._machine.snapshot()
        self._since = []
        await self._put_begin(now_s)

    async def _put_begin(self, now_s: float) -> None:
        first = Begin(
            run=self._run,
            service=self._service,
            name=self._name,
            now_s=now_s,
            snapshot=self._base,
        )
        await self._put(Line(first.canonical_json()))
        await self._put_snapshot()

    async def _put_line(self, now_s: float, event: Input, effects: str) -> bool:
        line = Fed(
            run=self._run,
            n=self._n if not effects.startswith("crash") else self._n + 1,
            now_s=now_s,
            kind=type(event).__name__,
            input=event.model_dump(mode="json"),
            effects=effects,
        )
        return await self._put(Line(line.canonical_json()))

    async def _put_snapshot(self) -> None:
        kept = Kept(
            run=self._run,
            n=self._n,
            journal_sequence=0,
            machine=self._base,
            taken=tuple(self._taken),
        )
        await self._put(Snapshot(canonical_json(kept.model_dump(mode="json"))))

    async def _put(self, item: Line | Snapshot) -> bool:
        assert self.outbox is not None
        return await self.outbox.put(item)
