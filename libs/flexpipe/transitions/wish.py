"""How a pinned baseline stands: in force, on its way, in something's way, or out of reach. Called by `hatch`.

A function of the books and the open flights alone, so that a restarted executor comes to the same answer, and to the
same order: each attempt has an id of its own, and the same attempt is never made twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexpipe.events.shift import OrderShift
from flexpipe.kernel.ids import derived_id, span_id, trace_id
from flexpipe.model.gear import Gear
from flexpipe.model.route import Pin, RouteEntry
from flexpipe.model.shift import Outcome, Phase, ShiftOrder
from flexpipe.transitions import baselines
from flexpipe.transitions.baselines import Asking, Leaving, NoFit, Ready
from flexpipe.transitions.board import Board
from flexpipe.transitions.case import Case
from flexpipe.transitions.progress import UNDOABLE_PHASES
from flexpipe.transitions.telling import gear_of


@dataclass(frozen=True)
class InForce:
    """The gear in force is the baseline."""

    says: str


@dataclass(frozen=True)
class Going:
    """A shift is bringing it in force."""

    says: str


@dataclass(frozen=True)
class Bound:
    """A shift holds the slot that cannot be turned back (any more): it runs to its outcome first."""

    says: str


@dataclass(frozen=True)
class Turns:
    """A shift goes somewhere else and can be undone."""

    case: Case
    says: str


@dataclass(frozen=True)
class Waits:
    """Plans that are about to go still hold its devices."""

    leaving: Leaving
    says: str


@dataclass(frozen=True)
class Begins:
    """Nothing stands in its way."""

    ready: Ready
    says: str


@dataclass(frozen=True)
class Fails:
    """It cannot be had now. It is tried again when what it depends on changes."""

    says: str


Stand = InForce | Going | Bound | Turns | Waits | Begins | Fails


def stand(entry: RouteEntry, board: Board, *, patient: bool) -> Stand:
    """How the baseline of a pinned deployment stands. `patient`: whether devices are still waited for."""
    name = entry.deployment
    declared = board.books.deployment(name)
    if declared is None:
        return Fails(f"deployment {name} is not declared any more, so nobody knows its baseline")
    words = f"baseline {declared.baseline} of {name}"
    slot = board.in_slot(name)
    if slot is not None:
        shift, phase = f"shift {slot.record.shift}", slot.record.phase
        undoing = phase is Phase.UNDOING
        if not undoing and baselines.is_in(slot.target, declared, board):
            return Going(f"{shift} to the {words} is in flight ({phase})")
        if phase in UNDOABLE_PHASES and not slot.forward_only:
            return Turns(slot, f"{shift} is undone, then the {words} begins")
        how = "is being undone" if undoing else "runs to its outcome"
        return Bound(f"{shift} {how}, then the {words} begins")
    if baselines.is_in(gear_of(entry), declared, board):
        return InForce(f"{words} is in force; it is pinned")
    found = baselines.choose(declared, entry, board, _asking(entry, board), patient=patient)
    match found:
        case Ready():
            return Begins(found, f"{words} begins")
        case Leaving(cleaning=cleaning):
            shifts = " and ".join(f"{case.record.shift} of {case.name}" for case in cleaning)
            return Waits(found, f"{words} begins when shift {shifts} has given its devices back")
        case NoFit(reason):
            return Fails(reason)


def trace_of(deployment: str, message_id: str) -> tuple[str, str]:
    """Trace and first span of a downshift: they begin at the urgent message."""
    parts = ("downshift", deployment, message_id)
    return trace_id(*parts), span_id(*parts)


def _asking(entry: RouteEntry, board: Board) -> Asking:
    pin, name, books = entry.pin, entry.deployment, board.books
    mine = tuple(record for record in books.records() if record.deployment == name)
    # An attempt that was rolled back is made again only where its nodes changed, something else happened, or a new
    # message asks for it.
    past = max((r.shift for r in mine if r.outcome is not Outcome.ROLLED_BACK), default=0)

    def asking(gear: Gear) -> OrderShift:
        nodes = sorted({node for plan in gear.plans for node in plan.nodes})
        seen = [f"{node}:{books.revision('fleet', node)}" for node in nodes]
        cause = "" if pin is None or pin.downshift is None else pin.downshift
        order_id = derived_id("downshift", name, cause, gear.id, past, *seen)
        trace, parent = trace_of(name, cause)
        first = all(record.order.trace_id != trace for record in mine)
        order = ShiftOrder(
            deployment=name,
            target=gear,
            trigger=_trigger(pin, first=first),
            by="executor" if pin is None else pin.by,
            ordered_at_s=pin.at_s if pin is not None and first else board.now_s,
            trace_id=trace if first else trace_id("downshift", order_id),
            parent_span_id=parent if first else None,
        )
        return OrderShift(order_id=order_id, order=order)

    return asking


def _trigger(pin: Pin | None, *, first: bool) -> str:
    if pin is None:
        return "the baseline is pinned"
    if first:
        return f"downshift by {pin.by}: {pin.reason}"
    return f"the baseline that {pin.by} pinned is brought back: {pin.reason}"
