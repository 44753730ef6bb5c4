"""What the planner proposes and the estimator says to it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexpipe.events.message import Event
from flexpipe.events.shift import Seen
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.gear import Gear
from flexpipe.model.names import Name
from flexpipe.model.outlook import Candidate, GuardVerdict, Load, Price, Rejected

CANDIDATES_LIMIT = 12
"""Candidates in one proposal, best first: nobody reads more, and the message stays small."""


class CandidatesProposed(Event):
    """Gears that the fleet allows a deployment now, best outlook first, beside the one in force.

    `urgent`: not the cycle but an event asked for it. Trace ids are those of what triggered it.
    """

    deployment: Name
    proposal: str  # id, derived from revision, cycle and deployment
    fleet_revision: int
    trigger: str
    urgent: bool
    load: Load
    long_load: Load
    current: Candidate
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=CANDIDATES_LIMIT)] = ()
    rejected: tuple[Rejected, ...] = ()
    seen: tuple[Seen, ...] = ()  # what the plans rest on
    at_s: float
    trace_id: str
    parent_span_id: str | None = None

    def bus_key(self) -> str:
        return self.deployment


class Baseline(Frozen):
    """The value of a key in the bucket `baselines`: the gear that the hatch forces, on the newest fleet.

    `gear` None: no baseline fits, and `reason` says what is missing. `fleet_revision`: what it was resolved against.
    """

    deployment: Name
    notation: str
    gear: Gear | None
    reason: str | None = None
    fleet_revision: int


class BaselineResolved(Event):
    """A deployment's baseline changed: another gear, or none that fits."""

    baseline: Baseline

    def bus_key(self) -> str:
        return self.baseline.deployment


class Declined(Frozen):
    """One candidate and what stood against it. Guards after the first refusal are not asked."""

    gear: Gear
    price: Price
    verdicts: tuple[GuardVerdict, ...]


class ShiftDeclined(Event):
    """A proposal led to no order. `guard` and `reason` are those of the best candidate."""

    deployment: Name
    proposal: str
    guard: str
    reason: str
    declined: tuple[Declined, ...] = ()
    at_s: float

    def bus_key(self) -> str:
        return self.deployment
