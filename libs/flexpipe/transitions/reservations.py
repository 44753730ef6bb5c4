"""The arithmetic of reservations: what a shift claims, what stands in its way, what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexpipe.model.fleet import Device, DeviceRef
from flexpipe.model.plan import Plan
from flexpipe.model.shift import DeviceReservations, Phase, Reservation
from flexpipe.transitions.books import Books
from flexpipe.transitions.case import Case
from flexpipe.transitions.progress import Flight, Seat

PLANS_PER_DEVICE: Final = 2
"""The old and the new plan of one shift."""

Change = tuple[str, DeviceReservations]
"""A key of the bucket `reservations` and what it is to hold."""


@dataclass(frozen=True)
class Ghost:
    """A plan that lost what it held when this device left the fleet. The device is back, and the shift that cleans up
    after the plan has not stopped it yet: its engine may never have noticed."""

    device: DeviceRef
    deployment: str
    shift: int
    plan: str


def wanted(case: Case) -> tuple[Change, ...]:
    """Writes still missing until every new plan holds its bytes. Empty: the order is accepted."""
    changes: dict[str, DeviceReservations] = {}
    for seat in case.seats:
        for device, bytes_ in case.plan(seat.plan).claims():
            before = changes.get(device.key, case.books.held(device))
            ours = [r for r in before.held if _is(r, case.name, seat.plan)]
            if ours and ours[0].shift == case.record.shift:
                continue
            claim = Reservation(
                plan=seat.plan,
                deployment=case.name,
                term=case.record.term,
                shift=case.record.shift,
                bytes=bytes_,
            )
            others = tuple(r for r in before.held if not _is(r, case.name, seat.plan))
            changes[device.key] = DeviceReservations(device=device, held=(*others, claim))
    return tuple(sorted(changes.items(), key=lambda change: change[0]))


def obstacle(case: Case) -> str | None:
    """Why the new plans cannot have their memory now, as a sentence; None where they can."""
    haunting = {ghost.device: ghost for ghost in ghosts(case)}
    beside = {(case.name, plan) for plan in case.old}
    for seat in case.seats:
        for device, bytes_ in case.plan(seat.plan).claims():
            held = [r for r in case.books.held(device).held if not _is(r, case.name, seat.plan)]
            here = case.books.fleet().device(device)
            if here is None:
                return f"device {device} left the fleet"
            if _holds(case, seat, device):
                continue
            if here.closed is not None:
                return f"nothing new may be placed on {device}: {here.closed}"
            ghost = haunting.get(device)
            if ghost is not None:
                by = f"shift {ghost.shift} of {ghost.deployment}"
                return f"{device} is not clear yet: {by} has still to stop {ghost.plan} there"
            fault = _no_room(here, device, bytes_, held, beside)
            if fault is not None:
                return fault
    return None


def rivals(case: Case) -> tuple[Reservation, ...]:
    """What others hold of the devices that the new plans want, in the order of the devices."""
    beside = {(case.name, plan) for plan in case.old}
    return tuple(
        held
        for seat in case.seats
        for device in case.plan(seat.plan).devices
        if not _holds(case, seat, device)
        for held in case.books.held(device).held
        if not _is(held, case.name, seat.plan) and (held.deployment, held.plan) not in beside
    )


def ghosts(case: Case) -> tuple[Ghost, ...]:
    """What may still run where the new plans are to lie, and holds nothing there any more."""
    fresh = {ref for seat in case.seats if not seat.thawed for ref in case.plan(seat.plan).devices}
    found = []
    for record in case.books.records():
        mine = (record.deployment, record.shift) == (case.name, case.record.shift)
        if mine or record.phase is Phase.CLOSED:
            continue
        progress = Flight.of(record).progress
        doomed = {*progress.claims, *progress.lost}
        plans = {plan.id: plan for plan in (*record.source.plans, *record.order.target.plans)}
        for plan in (plans[id_] for id_ in sorted(doomed)):
            for device in sorted(fresh.intersection(plan.devices)):
                held = case.books.held(device).held
                if not any(_is(each, record.deployment, plan.id) for each in held):
                    ghost = Ghost(device, record.deployment, record.shift, plan.id)
                    found.append(ghost)
    return tuple(found)


def stranded(books: Books) -> tuple[Change, ...]:
    """Writes that end what is held on devices which left the fleet: there is nothing left to hold."""
    return tuple(
        (before.device.key, before.model_copy(update={"held": ()}))
        for before in books.all_held()
        if before.held and books.left(before.device) is not None
    )


def _holds(case: Case, seat: Seat, device: DeviceRef) -> bool:
    """Whether a plan that is let in again holds its bytes on a device already."""
    held = case.books.held(device).held
    return seat.thawed and any(_is(each, case.name, seat.plan) for each in held)


def _no_room(
    here: Device,
    device: DeviceRef,
    bytes_: int,
    held: list[Reservation],
    beside: set[tuple[str, str]],
) -> str | None:
    for other in held:
        if (other.deployment, other.plan) not in beside:
            return f"{device} is reserved by {_owner(other)}"
    if len(held) >= PLANS_PER_DEVICE:
        return f"{device} holds {len(held)} plans already, the first is of {_owner(held[0])}"
    taken = sum(other.bytes for other in held)
    if taken + bytes_ > here.memory_bytes:
        free = f"{(here.memory_bytes - taken) / 1e9:.2f} GB of {here.memory_bytes / 1e9:.2f} GB"
        holder = f", the rest is reserved by {_owner(held[0])}" if held else ""
        return f"{device} has {free} free and the plan needs {bytes_ / 1e9:.2f} GB{holder}"
    return None


def released(books: Books, deployment: str, plans: tuple[Plan, ...]) -> tuple[Change, ...]:
    """Writes that take these plans off every device they hold."""
    changes: dict[str, DeviceReservations] = {}
    for plan in plans:
        for device in plan.devices:
            before = changes.get(device.key, books.held(device))
            rest = tuple(r for r in before.held if not _is(r, deployment, plan.id))
            if rest != before.held:
                changes[device.key] = before.model_copy(update={"held": rest})
    return tuple(sorted(changes.items(), key=lambda change: change[0]))


def orphans(books: Books, owned: set[tuple[str, str]]) -> tuple[Change, ...]:
    """Writes that drop what belongs to no (deployment, plan) of `owned`: no route entry and no open record."""
    changes = []
    for before in books.all_held():
        rest = tuple(r for r in before.held if (r.deployment, r.plan) in owned)
        if rest != before.held:
            changes.append((before.device.key, before.model_copy(update={"held": rest})))
    return tuple(changes)


def _is(reservation: Reservation, deployment: str, plan: str) -> bool:
    return reservation.deployment == deployment and reservation.plan == plan


def _owner(reservation: Reservation) -> str:
    return f"{reservation.deployment} ({reservation.plan}, shift {reservation.shift})"
