"""Taking over: what a starting executor finds, fences and repairs before it does anything else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from flexpipe.events.plan import FenceWorker
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.machine import Entry, Stored
from flexpipe.model.fence import Fence
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import Phase
from flexpipe.transitions import reservations
from flexpipe.transitions.books import Books
from flexpipe.transitions.outbox import Outbox
from flexpipe.transitions.progress import Flight

_Key = tuple[str, int]


class Boot(StrEnum):
    """How far the take-over has come: terms first, then fences, then what a predecessor left behind."""

    NOT_STARTED = "not-started"
    TERMS = "terms"
    FENCES = "fences"
    SWEEP = "sweep"
    DONE = "done"


def open_flights(books: Books) -> dict[_Key, Flight]:
    """Every shift that has not closed."""
    flights = [Flight.of(r) for r in books.records() if r.phase is not Phase.CLOSED]
    return {flight.key: flight for flight in flights}


def take_over(boot: Boot, books: Books, flights: Mapping[_Key, Flight], out: Outbox) -> Boot:
    """Do one stage of the take-over and say which comes next."""
    match boot:
        case Boot.TERMS:
            for entry in books.routes():
                taken = _taken(entry, flights)
                out.put("routes", entry.deployment, taken.canonical_json())
            return Boot.FENCES
        case Boot.FENCES:
            for entry in books.routes():
                fence = Fence(
                    deployment=entry.deployment, term=entry.term, shift=entry.shift, step=0
                )
                for node in books.fleet().nodes:
                    out.say(FenceWorker(node=node.node, fence=fence))
            return Boot.SWEEP
        case _:
            owned = {(e.deployment, r.plan.id) for e in books.routes() for r in e.plans}
            for flight in flights.values():
                plans = [seat.plan for seat in flight.progress.seats]
                plans += [*flight.progress.claims, *flight.progress.lost]
                owned |= {(flight.record.deployment, plan) for plan in plans}
            changes = reservations.orphans(books, owned)
            if changes:
                out.put_all("reservations", changes)
            return Boot.DONE


def relieved(flight: Flight, flights: Mapping[_Key, Flight]) -> Flight:
    """The flight without claims that a later open shift has taken over."""
    later = {
        seat.plan
        for key, other in flights.items()
        if key[0] == flight.record.deployment and key[1] > flight.record.shift
        for seat in other.progress.seats
        if seat.thawed
    }
    rest = tuple(plan for plan in flight.progress.claims if plan not in later)
    return flight.with_progress(claims=rest)


def learn(entry: Entry, books: Books) -> None:
    """Learn of a change. Raises BrokenInvariant where a route entry bears a term this executor never wrote."""
    before = books.route(entry.key) if entry.bucket == "routes" else None
    books.learn(entry)
    found = books.route(entry.key) if before is not None else None
    if before is not None and found is not None and found.term > before.term:
        raise _led_by_other(found)


def check_leadership(stored: Stored, books: Books, flights: Mapping[_Key, Flight]) -> None:
    """Raises BrokenInvariant where a refused write shows that another executor leads."""
    for entry in stored.entries:
        if entry.bucket == "shifts":
            raise BrokenInvariant(f"somebody else wrote shift record {entry.key}")
        if entry.bucket != "routes":
            continue
        found = books.route(entry.key)
        terms = [f.record.term for key, f in flights.items() if key[0] == entry.key]
        if found is not None and terms and found.term > max(terms):
            raise _led_by_other(found)


def _led_by_other(found: RouteEntry) -> BrokenInvariant:
    return BrokenInvariant(
        f"somebody else leads {found.deployment}: its route entry bears term {found.term}"
    )


def _taken(entry: RouteEntry, flights: Mapping[_Key, Flight]) -> RouteEntry:
    """The entry under a new term; the slot is freed where no open shift holds it."""
    flight = None if entry.in_flight is None else flights.get((entry.deployment, entry.in_flight))
    holds = flight is not None and flight.holds_slot
    return entry.model_copy(
        update={"term": entry.term + 1, "in_flight": entry.in_flight if holds else None}
    )
