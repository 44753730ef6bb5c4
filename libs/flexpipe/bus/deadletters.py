"""Dead letters: what could not be read, and what crashed its machine too often. Kept with the reason, never fed again.

Crashes are counted on the bus (one note a crash, on a subject of its own), so the count outlives the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexpipe.bus.reading import read_stream
from flexpipe.events.catalog import ROOT, Lane
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.frozen import Frozen, digest
from flexpipe.kernel.ids import derived_id

if TYPE_CHECKING:
    from flexpipe.bus.connection import Bus

STREAM = "FLEXPIPE_DEAD"
CRASHES_LIMIT = 3
"""The third crash of a machine on one message: it is skipped for good."""
REASON = "Flexpipe-Reason"
WAS_SUBJECT = "Flexpipe-Subject"
WAS_ID = "Flexpipe-Message-Id"
REASON_LETTERS = 500
"""Of a reason: enough for a person, small beside the message."""


def letters_subject(service: str, name: str) -> str:
    """Where the dead letters of one shell lie."""
    return f"{ROOT}.{Lane.DEAD}.letter.{service}.{name}"


class DeadLetter(Frozen):
    """One message that nobody will be fed, and why. `body` is as much of it as is text."""

    service: str
    name: str
    subject: str
    message_id: str
    reason: str
    body: str


async def read_dead_letters(
    bus: Bus, service: str = "*", name: str = "*"
) -> tuple[DeadLetter, ...]:
    """Dead letters of shells, oldest first. Raises Unavailable."""
    letters: list[DeadLetter] = []
    async for stored in read_stream(bus.main, STREAM, letters_subject(service, name)):
        *_, its_service, its_name = stored.subject.split(".")
        letter = DeadLetter(
            service=its_service,
            name=its_name,
            subject=stored.headers.get(WAS_SUBJECT, ""),
            message_id=stored.headers.get(WAS_ID, ""),
            reason=stored.headers.get(REASON, ""),
            body=stored.body.decode(errors="backslashreplace"),
        )
        letters.append(letter)
    return tuple(letters)


class DeadLetters:
    """The dead letters of one shell."""

    def __init__(self, bus: Bus, service: str, name: str) -> None:
        self._bus = bus
        self._letters = letters_subject(service, name)
        self._crashes = f"{ROOT}.{Lane.DEAD}.crash.{service}.{name}."
        self._counts: dict[str, int] = {}

    async def load(self) -> None:
        """Read the crash counts that earlier runs left."""
        try:
            info = await self._bus.main.api(
                f"STREAM.INFO.{STREAM}", {"subjects_filter": self._crashes + ">"}
            )
        except Unavailable:
            return  # counts start at zero: two more tries, no more
        subjects: dict[str, int] = info["state"].get("subjects") or {}
        self._counts = {name.removeprefix(self._crashes): n for name, n in subjects.items()}

    async def crashed(self, message_id: str, reason: str) -> int:
        """Note one crash; how many there were by now."""
        key = digest(message_id, 32)
        self._counts[key] = self._counts.get(key, 0) + 1
        headers = {
            WAS_ID: message_id,
            REASON: one_line(reason),
            "Nats-Msg-Id": derived_id("crash", self._crashes, message_id, self._counts[key]),
        }
        await self._bus.store(self._crashes + key, b"", headers, Lane.DEAD)
        return self._counts[key]

    def crashes_of(self, message_id: str) -> int:
        """Crashes noted on one message."""
        return self._counts.get(digest(message_id, 32), 0)

    async def bury(self, *, subject: str, message_id: str, body: bytes, reason: str) -> None:
        """Keep a message that nobody will be fed."""
        headers = {
            WAS_SUBJECT: subject,
            WAS_ID: message_id,
            REASON: one_line(reason),
            "Nats-Msg-Id": derived_id("dead", self._letters, message_id, reason),
        }
        await self._bus.store(self._letters, body, headers, Lane.DEAD)


def one_line(text: str) -> str:
    """Fit for a header: one line, ASCII, bounded."""
    flat = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    return flat[:REASON_LETTERS]
