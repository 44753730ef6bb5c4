"""A machine that writes down what it is fed, and asks for what a test tells it to."""

from __future__ import annotations

import json
from collections.abc import Callable

from flexpipe.kernel.machine import Delivered, Effects, Entry, Input, Started, Watched

Answer = Callable[[float, Input], Effects]


class Recorder:
    """Everything fed, in order, beside the time it was fed at."""

    def __init__(self, answer: Answer = lambda now_s, event: Effects()) -> None:
        self.fed: list[Input] = []
        self.at_s: list[float] = []
        self._answer = answer

    def handle(self, now_s: float, event: Input) -> Effects:
        """Write down, then answer."""
        self.fed.append(event)
        self.at_s.append(now_s)
        return self._answer(now_s, event)

    def snapshot(self) -> str:
        """How much it was fed."""
        return json.dumps(len(self.fed))

    def restore(self, snapshot: str) -> None:
        """Forget what came after."""
        del self.fed[int(json.loads(snapshot)) :]

    def of(self, kind: type[Input]) -> list[Input]:
        """What it was fed of one class."""
        return [event for event in self.fed if isinstance(event, kind)]

    @property
    def delivered(self) -> list[Delivered]:
        """Messages."""
        return [event for event in self.fed if isinstance(event, Delivered)]

    @property
    def entries(self) -> dict[tuple[str, str], Entry]:
        """Buckets as it has seen them: the newest entry a key."""
        seen: dict[tuple[str, str], Entry] = {}
        for event in self.fed:
            entries = event.entries if isinstance(event, Started) else ()
            for entry in (*entries, *((event.entry,) if isinstance(event, Watched) else ())):
                seen[entry.bucket, entry.key] = entry
        return seen
