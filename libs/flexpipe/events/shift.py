"""Orders for shifts, and what became of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexpipe.events.message import Command, Event
from flexpipe.model.names import Name
from flexpipe.model.sequence import MovedSequence
from flexpipe.model.shift import Phase, ShiftOrder, StartClass


class OrderShift(Command):
    """Asks the executor for a shift. Sent by the command line (the plan resolved) and by the estimator."""

    order_id: Annotated[str, Field(min_length=1, max_length=64)]
    order: ShiftOrder

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
