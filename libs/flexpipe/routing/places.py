"""Who is where: an index over sequences, so that an input costs no walk over all of them.

Kept by `state.State`, which alone changes a sequence's stage and plan. Made anew from the sequences where a machine is
restored; what it gives is in order of arrival, so that nothing depends on how it came about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flexpipe.routing.state import SequenceState, Stage


class Places:
    """Sequences by deployment and stage, and how many each plan has at its engine."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, Stage], dict[str, SequenceState]] = {}
        self._running: dict[str, int] = {}

    def enter(self, sequence: SequenceState) -> None:
        """Put a sequence where its stage and plan say."""
        key = (sequence.deployment, sequence.stage)
        self._at.setdefault(key, {})[sequence.id] = sequence
        if sequence.runs and sequence.plan is not None:
            self._running[sequence.plan] = self._running.get(sequence.plan, 0) + 1

    def leave(self, sequence: SequenceState) -> None:
        """Take it from there, before stage or plan change."""
        key = (sequence.deployment, sequence.stage)
        here = self._at[key]
        del here[sequence.id]
        if not here:
            del self._at[key]
        if sequence.runs and sequence.plan is not None:
            left = self._running[sequence.plan] - 1
            if left:
                self._running[sequence.plan] = left
            else:
                del self._running[sequence.plan]

    def of(self, deployment: str, stage: Stage) -> tuple[SequenceState, ...]:
        """The sequences of a deployment in one stage, in order of arrival."""
        here = self._at.get((deployment, stage))
        if not here:
            return ()
        return tuple(sorted(here.values(), key=lambda each: each.order))

    def unordered(self, deployment: str, stage: Stage) -> Collection[SequenceState]:
        """The same where their order means nothing: to be counted, or for the least of something."""
        return self._at.get((deployment, stage), {}).values()

    def running(self, plan: str) -> int:
        """Sequences that a plan has at its engine."""
        return self._running.get(plan, 0)

    def picture(self, sequences: Iterable[SequenceState]) -> bool:
        """Whether this is the index of exactly these sequences (for tests: nobody moves one past it)."""
        fresh = Places()
        for sequence in sequences:
            fresh.enter(sequence)
        return (fresh._at, fresh._running) == (self._at, self._running)
