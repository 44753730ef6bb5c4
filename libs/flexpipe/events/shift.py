"""Orders for shifts, and what became of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flexpipe.events.message import Command, Event
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.names import Name
from flexpipe.model.sequence import MovedSequence
from flexpipe.model.shift import Phase, ShiftOrder, StartClass


class Seen(Frozen):
    """A bucket key that the sender of an order had read, at this revision."""

    bucket: Literal["deployments", "fleet", "routes"]
    key: str
    revision: int


class OrderShift(Command):
    """Asks the executor for a shift. Sent by the command line (the plan resolved) and by the estimator.

    `seen` is what the order rests on. Buckets and commands travel apart, so an order may overtake what was written
    before it: the executor considers it once it knows as much as its sender did.
    """

    order_id: Annotated[str, Field(min_length=1, max_length=64)]
    order: ShiftOrder
    seen: Annotated[tuple[Seen, ...], Field(max_length=256)] = ()

    def bus_key(self) -> str:
        return self.order.deployment


class ShiftEvent(Event):
    """What all facts about one shift share."""

    deployment: Name
    shift: int

    def bus_key(self) -> str:
        return self.deployment


class ShiftOrdered(ShiftEvent):
    """An order was accepted: its memory is reserved and the shift has a number."""

    order_id: str
    source_gear: str
    target_gear: str
    trigger: str


class ShiftRefused(Event):
    """An order was not accepted; nothing was changed."""

    deployment: Name
    order_id: str
    reason: str

    def bus_key(self) -> str:
        return self.deployment


class ShiftPhaseChanged(ShiftEvent):
    """A shift entered a phase."""

    phase: Phase
    previous: Phase | None
    at_s: float


class ShiftCompleted(ShiftEvent):
    """Committed: the new gear is in force. Old plans may still be retiring."""

    gear: str
    start_class: StartClass
    duration_s: float
    moved: tuple[MovedSequence, ...] = ()


class ShiftRolledBack(ShiftEvent):
    """The old gear is in force again (or still)."""

    gear: str
    reason: str
    duration_s: float
    moved: tuple[MovedSequence, ...] = ()


class ShiftAbandoned(ShiftEvent):
    """Neither side could serve in full: the gear is what is alive."""

    gear: str
    reason: str
    duration_s: float
    moved: tuple[MovedSequence, ...] = ()


class PlanRetired(ShiftEvent):
    """An old plan's engines are gone, its memory is seen free and its reservations are released."""

    plan: str
