"""What a step is, and what can follow from it. `steps` lists them all; the machine alone carries out a `Turn`.

A step is entered by writing the record, then the route entry it wants, then sending its commands. It is *judged* after
every input: done, out of time, or still waiting. After a restart it is entered again with a new step number, so
`entry` and `commands` may depend on nothing but the case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flexpipe.events.plan import WorkerCommand
from flexpipe.events.route import MoveSequences
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import Outcome, Phase
from flexpipe.transitions.case import Case
from flexpipe.transitions.progress import Stage
from flexpipe.transitions.reservations import Change

Command = WorkerCommand | MoveSequences


@dataclass(frozen=True)
class Go:
    """Enter a step. `outcome` is set by the step that decides it."""

    phase: Phase
    stage: Stage
    notes: tuple[str, ...] = ()
    outcome: Outcome | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Again:
    """The same step once more, for those that did not answer."""

    note: str


@dataclass(frozen=True)
class Undo:
    """Go back to the old gear."""

    reason: str
    log_tail: str = ""
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reserve:
    """Write reservations as one batch."""

    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Close:
    """The end of the record. A reason comes with a shift that was never accepted."""

    reason: str | None = None


Turn = Go | Again | Undo | Reserve | Close


class Step:
    """A step that needs nothing, waits for nothing and changes nothing. Subclasses say what is different."""

    stage: ClassVar[Stage]
    names_revision: ClassVar[bool] = (
        False  # commands name the entry's revision: it is written first
    )
    moves: ClassVar[bool] = False  # its commands hand sequences over

    def entry(self, case: Case) -> RouteEntry | None:
        """The route entry this step wants; None leaves it alone."""
        return case.entry

    def awaited(self, case: Case) -> tuple[str, ...]:
        """Who must answer."""
        return ()

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        """What is sent to those that have not answered. `entry_text` is the route entry as it now stands."""
        return ()

    def limit_s(self, case: Case) -> float | None:
        """How long answers are waited for."""
        return None

    def judge(self, case: Case) -> Turn | None:
        """What follows now; None to wait."""
        if self.done(case):
            return self.following(case)
        deadline = case.progress.deadline_s
        if deadline is not None and case.now_s >= deadline:
            return self.expired(case)
        return None

    def done(self, case: Case) -> bool:
        """Whether everybody answered."""
        return not case.missing(self.awaited(case))

    def following(self, case: Case) -> Turn:
        """What comes after this step."""
        raise NotImplementedError

    def expired(self, case: Case) -> Turn:
        """What comes where the limit passed first."""
        return self.following(case)


class HandOver(Step):
    """A step whose commands hand sequences over: every router that was told must answer, while it is on the roster."""

    names_revision = True
    moves = True

    def awaited(self, case: Case) -> tuple[str, ...]:
        """See `Step.awaited`."""
        roster = case.books.roster()
        return tuple(router for router in case.progress.told if router in roster)
