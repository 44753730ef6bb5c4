"""Whether an order can be taken, and the flight it becomes. Nothing is written here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flexpipe.events.shift import OrderShift
from flexpipe.model.fleet import PORTS_PER_PLAN
from flexpipe.model.gear import Gear
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.shift import Phase, ShiftOrder, ShiftRecord, StartClass
from flexpipe.transitions.books import Books
from flexpipe.transitions.case import Case
from flexpipe.transitions.ports import free_block, taken_ports
from flexpipe.transitions.progress import Flight, Progress, Seat, Stage
from flexpipe.transitions.telling import gear_of

STOPPABLE = (Stage.DRAIN, Stage.FORCE)
"""Steps of a retiring plan before its stop is sent: until then it can be let in again."""


@dataclass(frozen=True)
class Taken:
    """An order that was taken: its flight, and earlier flights that give up their claim on a plan it wants again."""

    flight: Flight
    ceding: tuple[Flight, ...] = ()


def consider(
    order: OrderShift,
    now_s: float,
    books: Books,
    cases: Mapping[tuple[str, int], Case],
    *,
    forced: bool = False,
) -> Taken | str:
    """Take an order, or say in one sentence why not. `cases`: all open flights. `forced`: the hatch's own."""
    wanted = order.order
    entry = books.route(wanted.deployment)
    fault = None if forced else _pinned(wanted, entry)
    fault = fault or _forbidden(wanted, books, entry, cases) or _impossible(wanted, books)
    if fault is not None:
        return fault
    source = gear_of(entry)
    shift = next_shift(wanted.deployment, books)
    mine = [case for key, case in sorted(cases.items()) if key[0] == wanted.deployment]
    seats: list[Seat] = []
    ceding: dict[int, Flight] = {}
    for plan in wanted.target.plans:
        if source.weight(plan.id) > 0:
            continue
        holder = next((case for case in mine if plan.id in case.progress.claims), None)
        if holder is None:
            seat = _fresh_seat(plan, books, cases, seats)
        else:
            seat = _thawed_seat(plan, holder, entry)
            flight = ceding.get(holder.record.shift, holder.flight)
            rest = tuple(claim for claim in flight.progress.claims if claim != plan.id)
            ceding[holder.record.shift] = flight.with_progress(claims=rest)
        if isinstance(seat, str):
            return seat
        seats.append(seat)
    record = ShiftRecord(
        deployment=wanted.deployment,
        shift=shift,
        term=1 if entry is None else entry.term,
        step=0,
        phase=Phase.RESERVING,
        order=wanted,
        source=source,
        # Where nothing is started, everything was there.
        start_class=StartClass.WARM if all(s.thawed for s in seats) else StartClass.COLD,
        accepted_at_s=now_s,
    )
    progress = Progress(
        order_id=order.order_id,
        seats=tuple(seats),
        forced=forced,
        was_stopped=entry is not None and entry.stopped,
    )
    ceded = tuple(ceding[number] for number in sorted(ceding))
    return Taken(flight=Flight(record=record, progress=progress), ceding=ceded)


def next_shift(deployment: str, books: Books) -> int:
    """The number after the highest that a route entry or a record bears."""
    entry = books.route(deployment)
    numbers = [record.shift for record in books.records() if record.deployment == deployment]
    return max([0 if entry is None else entry.shift, *numbers]) + 1


def known(order: OrderShift, books: Books, cases: Mapping[tuple[str, int], Case]) -> bool:
    """Whether this very order was taken before: a repeat of a message, not a new wish."""
    return became(order, books, cases) is not None


def became(
    order: OrderShift, books: Books, cases: Mapping[tuple[str, int], Case]
) -> ShiftRecord | None:
    """The record of the shift that an order led to; an open one as it now stands."""
    name = order.order.deployment
    flights = [case.flight for key, case in sorted(cases.items()) if key[0] == name]
    flights += [Flight.of(record) for record in books.records() if record.deployment == name]
    taken = (flight for flight in flights if flight.progress.order_id == order.order_id)
    return next((flight.record for flight in taken), None)


def thawable(plan_id: str, holder: Case, entry: RouteEntry | None) -> bool:
    """Whether a plan that an earlier shift gives up still runs and was not told to stop."""
    routed = None if entry is None else entry.plan(plan_id)
    return (
        routed is not None
        and routed.state is PlanState.RETIRING
        and holder.progress.stage in STOPPABLE
        and plan_id not in holder.progress.lost
    )


def _pinned(order: ShiftOrder, entry: RouteEntry | None) -> str | None:
    pin = None if entry is None else entry.pin
    if pin is None:
        return None
    return f"{order.deployment} is pinned by {pin.by}: {pin.reason}; unpin it first"


def _forbidden(
    order: ShiftOrder,
    books: Books,
    entry: RouteEntry | None,
    cases: Mapping[tuple[str, int], Case],
) -> str | None:
    name = order.deployment
    if books.deployment(name) is None:
        return f"deployment {name} is not declared; apply it first"
    for key, case in sorted(cases.items()):
        if key[0] == name and case.flight.holds_slot:
            return f"shift {key[1]} of {name} is in flight ({case.record.phase})"
    if order.swap != "overlap":
        return f"swap {order.swap} is not offered; order an overlapping one"
    if _weights(order.target) == _weights(gear_of(entry)):
        return f"{name} is in this gear already ({order.target.label})"
    return None


def _impossible(order: ShiftOrder, books: Books) -> str | None:
    fleet = books.fleet()
    used: dict[str, str] = {}
    for plan in order.target.plans:
        for ref, bytes_ in plan.claims():
            device = fleet.device(ref)
            if device is None:
                there = ", ".join(map(str, fleet.refs())) or "none"
                return f"plan {plan.id} needs device {ref}, which is not in the fleet (there are: {there})"
            if bytes_ > device.memory_bytes:
                return (
                    f"plan {plan.id} needs {bytes_ / 1e9:.2f} GB on {ref}, which has"
                    f" {device.memory_bytes / 1e9:.2f} GB"
                )
            if ref.key in used:
                return f"plans {used[ref.key]} and {plan.id} of the target both need {ref}"
            used[ref.key] = plan.id
    return None


def _weights(gear: Gear) -> dict[str, float]:
    total = sum(share.weight for share in gear.shares)
    return {share.plan.id: round(share.weight / total, 9) for share in gear.shares}


def _fresh_seat(
    plan: Plan,
    books: Books,
    cases: Mapping[tuple[str, int], Case],
    seats: list[Seat],
) -> Seat | str:
    fleet = books.fleet()
    for ref in plan.devices:
        closed = fleet.closed(ref)
        if closed is not None:
            return f"plan {plan.id} needs {ref}, where nothing new may be placed: {closed}"
    first = plan.nodes[0]
    node = books.node(first)
    if node is None:
        return f"plan {plan.id} needs node {first}, which is not in the fleet"
    taken = taken_ports(books, cases.values(), first) | {seat.front_port for seat in seats}
    start = free_block(node, taken)
    if start is None:
        return (
            f"node {first} has no free block of {PORTS_PER_PLAN} ports ({node.port_blocks} in use)"
        )
    return Seat(
        plan=plan.id,
        front=f"http://{node.address}:{start}",
        front_port=start,
        rendezvous=f"{node.address}:{start + 1}",
    )


def _thawed_seat(plan: Plan, holder: Case, entry: RouteEntry | None) -> Seat | str:
    """A plan that an earlier shift is giving up and that still runs: it is let in again instead of started."""
    routed = None if entry is None else entry.plan(plan.id)
    if routed is None or not thawable(plan.id, holder, entry):
        return f"plan {plan.id} is still being stopped by shift {holder.record.shift}; order again when it has closed"
    leaving = holder.leaving(plan.id)
    if leaving is not None and gear_of(entry).shares:
        return f"plan {plan.id} runs on {leaving}, which is to be preempted"
    port = int(routed.front.rpartition(":")[2])
    return Seat(
        plan=plan.id,
        front=routed.front,
        front_port=port,
        rendezvous=routed.front.removeprefix("http://").rpartition(":")[0] + f":{port + 1}",
        thawed=True,
        fence=routed.fence,
    )
