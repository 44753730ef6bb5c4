"""What one call of the machine asks for: effects in order, and the writes whose outcome it must hear of."""

from __future__ import annotations

from collections.abc import Iterable

from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.ids import derived_id
from flexpipe.kernel.machine import Effect, Put, PutAll
from flexpipe.transitions.books import Books


class Outbox:
    """Made for one input, thrown away after it."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.effects: list[Effect] = []
        self.writes: list[str] = []

    def put(self, bucket: str, key: str, value: str) -> None:
        """Compare-and-set one key against what is known of it."""
        effect = self._put(bucket, key, value)
        self.writes.append(effect.write_id)
        self.effects.append(effect)

    def put_all(self, bucket: str, values: Iterable[tuple[str, Frozen]]) -> None:
        """Compare-and-set several keys as one batch."""
        puts = tuple(self._put(bucket, key, value.canonical_json()) for key, value in values)
        write_id = derived_id("batch", *(put.write_id for put in puts))
        self.writes.append(write_id)
        self.effects.append(PutAll(write_id=write_id, puts=puts))

    def say(self, message: Message, traceparent: str | None = None) -> None:
        """Publish a message. Its fence or number is in its body, so the body alone makes its id."""
        self.effects.append(publish(message, traceparent=traceparent))

    def do(self, effect: Effect) -> None:
        """Anything else."""
        self.effects.append(effect)

    def _put(self, bucket: str, key: str, value: str) -> Put:
        expected = self._books.revision(bucket, key)
        return Put(
            write_id=derived_id("write", bucket, key, expected, value),
            bucket=bucket,
            key=key,
            value=value,
            expected=expected,
        )
