"""Finds stop strings in text that comes in pieces.

Called by `stream`. The law: what is shown does not depend on how the text was cut into pieces.
The match that *completes* first wins, the longest where several complete together; the text before
it is shown, the rest never. A piece that may still grow into a stop string waits, and it waits in
the router, so a stop string across a hand-over is found like any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopStep:
    """`shown` is safe to send; `matched` is the stop string found, after which nothing follows."""

    shown: str
    matched: str | None = None


class StopMatcher:
    """The stop strings of one sequence and the text held back for them."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string, which would match everywhere."""
        if "" in stops:
            raise ValueError("a stop string is empty; leave it out")
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> StopStep:
        """Take the next piece. Not to be called again after a match."""
        if not self._stops:
            return StopStep(text)
        seen = self._held + text
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := seen.find(stop)) >= 0
        ]
        if found:
            _, start, stop = min(found)
            self._held = ""
            return StopStep(seen[:start], stop)
        keep = max(_overlap(seen, stop) for stop in self._stops)
        self._held = seen[len(seen) - keep :]
        return StopStep(seen[: len(seen) - keep])

    def flush(self) -> str:
        """The text held back, for when no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
