"""What a shell hears: messages by class and key. Pure data; turned into streams and subject filters here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flexpipe.events import catalog
from flexpipe.events.catalog import Lane, Said
from flexpipe.events.message import Message
from flexpipe.kernel.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Hearing:
    """A message class and the keys of interest: one key, a NATS wildcard over its parts, or `*` for every key."""

    message: type[Message]
    key: str = "*"

    @property
    def said(self) -> Said:
        """Its row of the catalogue. Raises InvalidInput where it has none."""
        said = catalog.BY_NAME.get(self.message.__name__)
        if said is None:
            raise InvalidInput("message", self.message.__name__, "hear a class of the catalogue")
        return said

    @property
    def lane(self) -> Lane:
        """Where it is said."""
        return self.said.lane

    @property
    def subject(self) -> str:
        """Its subject filter."""
        return self.said.subject(">" if self.key == "*" else self.key)


def stream_of(hears: Iterable[Hearing]) -> str:
    """The one stream that carries them. Raises InvalidInput where they lie on several."""
    lanes = sorted({hearing.lane for hearing in hears})
    names = sorted(
        {stream.name for stream in catalog.STREAMS for lane in lanes if lane in stream.lanes}
    )
    if len(names) != 1:
        raise InvalidInput("hears", names, "listen to messages of one stream at a time")
    return names[0]


def filters_of(hears: Iterable[Hearing]) -> tuple[str, ...]:
    """Subject filters, sorted, each once."""
    return tuple(sorted({hearing.subject for hearing in hears}))


def passing(hears: Iterable[Hearing]) -> tuple[Hearing, ...]:
    """Those that no stream keeps: heard as they pass, or never."""
    return tuple(hearing for hearing in hears if not hearing.said.is_stored)


def by_stream(hears: Iterable[Hearing]) -> dict[str, tuple[Hearing, ...]]:
    """Hearings grouped by the stream that carries them: one consumer a stream keeps the order across classes.

    Those that no stream keeps are left out.
    """
    groups: dict[str, list[Hearing]] = {}
    for hearing in hears:
        if not hearing.said.is_stored:
            continue
        groups.setdefault(stream_of([hearing]), []).append(hearing)
    return {name: tuple(groups[name]) for name in sorted(groups)}
