"""The open flights over the books: what the parts of the machine share. The machine makes it; it decides nothing."""

from __future__ import annotations

from flexpipe.model.plan import Plan
from flexpipe.transitions.books import Books
from flexpipe.transitions.case import Case
from flexpipe.transitions.progress import Flight

Key = tuple[str, int]
"""Deployment and number of a shift."""
Meaning = tuple[str, str, int, int]
"""Part of a notation, deployment, revision of its declaration, count of fleet changes."""


class Board:
    """`writer`: the flight whose write is under way. `applied`: (deployment, router) → route revision it acts on."""

    def __init__(self) -> None:
        self.books = Books()
        self.flights: dict[Key, Flight] = {}
        self.applied: dict[tuple[str, str], int] = {}
        self.writer: Key | None = None
        self.now_s = 0.0
        self.meant: dict[
            Meaning, Plan | None
        ] = {}  # what parts of notations mean; forgotten at will

    def keep(self, flight: Flight) -> None:
        """Put back a flight that was just written."""
        self.flights[flight.key] = flight
        self.writer = flight.key

    def case(self, flight: Flight) -> Case:
        """A flight as its steps see it."""
        name = flight.record.deployment
        applied = {key[1]: self.applied[key] for key in sorted(self.applied) if key[0] == name}
        return Case(now_s=self.now_s, flight=flight, books=self.books, applied=applied)

    def cases(self) -> dict[Key, Case]:
        """All flights, by deployment and number."""
        return {key: self.case(self.flights[key]) for key in sorted(self.flights)}

    def of(self, deployment: str) -> tuple[Case, ...]:
        """The flights of one deployment, oldest first."""
        return tuple(case for key, case in self.cases().items() if key[0] == deployment)

    def in_slot(self, deployment: str) -> Case | None:
        """The shift that holds a deployment's slot."""
        return next((case for case in self.of(deployment) if case.flight.holds_slot), None)
