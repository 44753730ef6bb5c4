"""The input journal: what a machine was fed, when, and a digest of what it answered.

Written by the shell through its outbox to `flexpipe.input.<service>.<name>`; read by the command line and by a resuming
shell. One JSON line an input; a run of a shell starts with a line that says from what. Lines travel in batches; text
longer than a message is cut into parts and joined again here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from flexpipe.bus import buckets
from flexpipe.bus.reading import read_stream
from flexpipe.events.catalog import ROOT, Lane
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.frozen import Frozen, canonical_json, digest
from flexpipe.kernel.ids import derived_id
from flexpipe.kernel.machine import Effects, Input

if TYPE_CHECKING:
    from flexpipe.bus.connection import Bus

STREAM = "FLEXPIPE_INPUT"
PART = "Flexpipe-Part"
PART_BYTES = 512 * 1024
"""Half of NATS's max_payload: headers and growth never reach it."""


class Begin(Frozen):
    """First line of a run. `snapshot` is the machine before its first input: a journal needs nothing beside it."""

    line: Literal["begin"] = "begin"
    run: str
    service: str
    name: str
    now_s: float
    snapshot: str | None = None  # None: as it was made


class Fed(Frozen):
    """One input. `effects` is the digest of the canonical text of what was answered, or `crash: …`."""

    line: Literal["fed"] = "fed"
    run: str
    n: int  # 1, 2, … within the run
    now_s: float
    kind: str
    input: dict[str, object]
    effects: str

    @property
    def is_crash(self) -> bool:
        """The machine raised, and was rolled back."""
        return self.effects.startswith("crash")

    def event(self) -> Input:
        """The input itself. Raises InvalidInput where its class is not loaded or the value does not fit."""
        return event_of(self.kind, self.input)


class Kept(Frozen):
    """The value of a key in the bucket `snapshots`: a machine after input `n` of a run."""

    run: str
    n: int
    journal_sequence: int = Field(ge=0)  # of the last journal message before it
    machine: str
    taken: tuple[str, ...] = ()  # ids of its last messages, oldest first


def event_of(kind: str, value: dict[str, object]) -> Input:
    """An input from its class name and JSON value."""
    cls = Input.registry.get(kind)
    if cls is None:
        raise InvalidInput("kind", kind, "import the module that defines this input first")
    try:
        return cls.model_validate_json(canonical_json(value))
    except ValueError as error:
        raise InvalidInput(kind, value, str(error)) from error


def effects_text(effects: Effects) -> str:
    """The canonical text of effects: class names and values in order, and the wake-up wished for."""
    return canonical_json(
        {
            "do": [
                [type(effect).__name__, effect.model_dump(mode="json")] for effect in effects.do
            ],
            "wake_at_s": effects.wake_at_s,
        }
    )


def effects_digest(effects: Effects) -> str:
    """What the journal keeps of effects."""
    return digest(effects_text(effects), 32)


def subject_of(service: str, name: str) -> str:
    """Where a machine's journal lies."""
    return f"{ROOT}.{Lane.INPUT}.{service}.{name}"


def parse_line(text: str) -> Begin | Fed:
    """One line. Raises InvalidInput."""
    try:
        kind = json.loads(text).get("line")
        return Begin.model_validate_json(text) if kind == "begin" else Fed.model_validate_json(text)
    except (ValueError, AttributeError) as error:
        raise InvalidInput("journal line", text, "a line that this shell wrote") from error


class JournalWriter:
    """Sends batches of lines. The id of a batch derives from its text, so a retry stores it once."""

    def __init__(self, bus: Bus, service: str, name: str) -> None:
        self._bus = bus
        self._subject = subject_of(service, name)
        self.last_sequence = 0

    async def append(self, lines: list[str]) -> None:
        """Store lines in order. Raises Unavailable."""
        body = ("\n".join(lines) + "\n").encode()
        parts = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
        batch = derived_id("journal", self._subject, lines[0], len(lines), digest(lines[-1], 32))
        for index, part in enumerate(parts, start=1):
            headers = {"Nats-Msg-Id": f"{batch}.{index}"}
            if len(parts) > 1:
                headers[PART] = f"{index}/{len(parts)}"
            self.last_sequence = await self._bus.store(self._subject, part, headers, Lane.INPUT)


async def read_journal(
    bus: Bus, service: str, name: str, *, after_sequence: int = 0
) -> AsyncIterator[str]:
    """Lines of a machine's journal, oldest first, up to what is stored now. Raises Unavailable."""
    text = b""
    stored = read_stream(bus.main, STREAM, subject_of(service, name), after_sequence=after_sequence)
    async for message in stored:
        index, _, parts = message.headers.get(PART, "1/1").partition("/")
        text = message.body if index == "1" else text + message.body
        if index == parts:
            for line in text.decode().splitlines():
                yield line


async def write_journal_file(bus: Bus, service: str, name: str, path: Path) -> int:
    """The whole journal as a JSONL file; the number of lines."""
    lines = [line async for line in read_journal(bus, service, name)]
    await asyncio.to_thread(path.write_text, "".join(line + "\n" for line in lines))
    return len(lines)


async def read_kept(bus: Bus, service: str, name: str) -> tuple[Kept | None, int]:
    """The newest snapshot of a machine and its revision in the bucket."""
    found = await buckets.read(bus.main, "snapshots", f"{service}.{name}")
    if found.entry.value is None:
        return None, found.entry.revision
    return Kept.model_validate_json(found.entry.value), found.entry.revision
