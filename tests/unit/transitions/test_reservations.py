"""The arithmetic of reservations and ports, alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flexpipe.kernel.machine import Entry
from flexpipe.model.fleet import PORTS_PER_PLAN
from flexpipe.model.shift import DeviceReservations, Phase, Reservation, ShiftRecord
from flexpipe.testing.builders import GB, a_deployment, a_gear, a_node, a_plan, an_order_to, device
from flexpipe.transitions import reservations
from flexpipe.transitions.books import Books
from flexpipe.transitions.case import Case
from flexpipe.transitions.ports import free_block
from flexpipe.transitions.progress import Flight, Progress, Seat

OLD = a_plan("node-a/cpu0")


def a_case(held: tuple[Reservation, ...], new_bytes: int) -> Case:
    """A shift from OLD to a plan on the same device, with this held there."""
    books = Books()
    there = DeviceReservations(device=device("node-a/cpu0"), held=held)
    values = {
        ("fleet", "node-a"): a_node("node-a").canonical_json(),
        ("deployments", "toy"): a_deployment().canonical_json(),
        ("reservations", "node-a.cpu0"): there.canonical_json(),
    }
    for (bucket, key), value in values.items():
        books.learn(Entry(bucket=bucket, key=key, value=value, revision=1))
    new = a_plan("node-a/cpu0", copy_bytes=new_bytes)
    order = an_order_to(a_gear(new), "one", at_s=0.0)
    record = ShiftRecord(
        deployment="toy",
        shift=7,
        term=1,
        step=1,
        phase=Phase.RESERVING,
        order=order.order,
        source=a_gear(OLD),
        accepted_at_s=0.0,
    )
    seat = Seat(plan=new.id, front="http://127.0.0.1:31000", front_port=31000, rendezvous="x:1")
    flight = Flight(record=record, progress=Progress(order_id="one", seats=(seat,)))
    return Case(now_s=0.0, flight=flight, books=books, applied={})


def of(plan: str, bytes_: int, deployment: str = "toy") -> Reservation:
    """Bytes held by a plan."""
    return Reservation(plan=plan, deployment=deployment, term=1, shift=3, bytes=bytes_)


@settings(deadline=None)
@given(
    owners=st.lists(st.sampled_from([OLD.id, "p-kept", "p-retiring"]), max_size=3, unique=True),
    bytes_=st.integers(1, 12 * GB),
    new_bytes=st.integers(1, 12 * GB),
)
def test_what_is_let_in_fits_and_stands_beside_the_old_plan_alone(
    owners: list[str], bytes_: int, new_bytes: int
) -> None:
    case = a_case(tuple(of(owner, bytes_) for owner in owners), new_bytes)
    lets_in = reservations.obstacle(case) is None
    alone = set(owners) <= {OLD.id}
    fits = bytes_ * len(owners) + new_bytes <= 10 * GB
    assert lets_in == (alone and fits)
    if lets_in:
        ((key, held),) = reservations.wanted(case)
        assert key == "node-a.cpu0"
        assert held.total_bytes <= 10 * GB
        assert len(held.held) <= reservations.PLANS_PER_DEVICE


def test_what_was_released_is_not_there_and_the_rest_is_untouched() -> None:
    case = a_case((of(OLD.id, GB), of("p-kept", GB)), GB)
    ((_, held),) = reservations.released(case.books, "toy", (OLD,))
    assert [r.plan for r in held.held] == ["p-kept"]
    assert reservations.released(case.books, "other", (OLD,)) == ()


def test_the_lowest_free_block_of_ports_is_given() -> None:
    node = a_node("node-a", port_blocks=3)
    first = node.first_port
    assert free_block(node, set()) == first
    assert free_block(node, {first, first + 2 * PORTS_PER_PLAN}) == first + PORTS_PER_PLAN
    assert free_block(node, {first + PORTS_PER_PLAN * index for index in range(3)}) is None
