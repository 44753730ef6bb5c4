"""A shift: the transaction that takes a deployment from one gear to another, and its lasting record."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.gear import Gear
from flexpipe.model.names import Name
from flexpipe.model.outlook import GearOutlook, Price
from flexpipe.model.sequence import MovedSequence


class Phase(StrEnum):
    """Every persisted state of a shift, in the order in which a smooth one passes through them."""

    RESERVING = "reserving"
    PREPARING = "preparing"
    CANARY = "canary"
    FREEZING = "freezing"
    HANDING_OVER = "handing-over"
    COMMITTING = "committing"
    RETIRING = "retiring"
    RELEASING = "releasing"
    UNDOING = "undoing"  # old plans admit again, what moved goes back
    UNWINDING = "unwinding"  # new plans drain, stop and are released
    CLOSED = "closed"


class Outcome(StrEnum):
    """How a shift ended for its clients. Decided at commit or when the undo is in force; the record closes later."""

    COMPLETED = "completed"
    ROLLED_BACK = "rolled_back"
    ABANDONED = "abandoned"


class StartClass(StrEnum):
    """What a shift found prepared. Every shift time is reported under its class."""

    COLD = "cold"
    STAGED = "staged"
    WARM = "warm"


class PhaseTiming(Frozen):
    """One phase of a shift, seconds since the epoch; `end_s` None while it lasts."""

    phase: Phase
    start_s: float
    end_s: float | None = None


class Reservation(Frozen):
    """Bytes on one device held for the plans of one owner."""

    plan: str
    deployment: Name
    term: int
    shift: int
    bytes: Annotated[int, Field(gt=0)]


class DeviceReservations(Frozen):
    """The value of a key in the bucket `reservations`: everything held on one device (at most two plans)."""

    device: DeviceRef
    held: tuple[Reservation, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Sum of what is held."""
        return sum(reservation.bytes for reservation in self.held)


class ShiftOrder(Frozen):
    """What was asked for. `trigger` is a sentence for people."""

    deployment: Name
    target: Gear
    swap: Literal["overlap", "staged"] = "overlap"
    trigger: str
    by: str
    ordered_at_s: float
    trace_id: str
    parent_span_id: str | None = None
    outlook: GearOutlook | None = None  # what was predicted; the canary is held against it
    price: Price | None = None  # what the estimator reckoned


class ShiftRecord(Frozen):
    """The value of a key in the bucket `shifts`: the whole of a transaction, persisted before each effect.

    Machines keep their running details in `progress`, whose meaning belongs to `flexpipe.transitions`.
    """

    deployment: Name
    shift: int
    term: int
    step: int
    phase: Phase
    order: ShiftOrder
    source: Gear
    outcome: Outcome | None = None
    reason: str | None = None
    start_class: StartClass = StartClass.COLD
    forward_only: bool = False
    timings: tuple[PhaseTiming, ...] = ()
    moved: tuple[MovedSequence, ...] = ()
    notes: tuple[str, ...] = ()  # what else happened on the way, sentences for people, oldest first
    log_tail: str = ""  # last lines of the rank's own log that the reason speaks of
    progress: str = "{}"
    accepted_at_s: float
    committed_at_s: float | None = None
    closed_at_s: float | None = None

    @property
    def key(self) -> str:
        """Its key in the bucket `shifts`."""
        return f"{self.deployment}.{self.shift}"
