"""What one call of the executor's machine answers: the order of effects, and what it does with surprises."""

from __future__ import annotations

import pytest

from flexpipe.events.outgoing import publish
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.machine import (
    Delivered,
    Effects,
    Entry,
    Input,
    Put,
    PutAll,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.model.fleet import Node
from flexpipe.model.shift import DeviceReservations, Phase, Reservation, ShiftRecord
from flexpipe.testing.builders import a_deployment, a_gear, a_node, a_plan, an_order_to, device
from flexpipe.transitions import Executor

NOW_S = 1000.0
PLAN = a_plan("node-a/cpu0")


def entry(bucket: str, key: str, value: str | None, revision: int = 1) -> Entry:
    """One stored key."""
    return Entry(bucket=bucket, key=key, value=value, revision=revision)


def world(node: Node | None = None) -> Started:
    """A deployment and a node, nothing served."""
    node = node or a_node("node-a")
    return Started(
        entries=(
            entry("deployments", "toy", a_deployment().canonical_json()),
            entry("fleet", "node-a", node.canonical_json()),
        )
    )


def delivered(order_id: str = "one") -> Delivered:
    """An order for PLAN."""
    said = publish(an_order_to(a_gear(PLAN), order_id, at_s=NOW_S), order_id)
    return Delivered(type=said.type, message=said.message, message_id=said.message_id)


def written(effect: Put | PutAll, revision: int = 5) -> Stored:
    """The bus has done it."""
    puts = (effect,) if isinstance(effect, Put) else effect.puts
    entries = tuple(entry(put.bucket, put.key, put.value, revision) for put in puts)
    return Stored(write_id=effect.write_id, outcome="written", entries=entries)


def kinds(effects: Effects) -> list[str]:
    """Classes of effects, messages by their type."""
    return [getattr(effect, "type", type(effect).__name__) for effect in effects.do]


def test_the_record_is_written_before_the_batch_and_the_batch_before_anything_is_started() -> None:
    machine = Executor()
    assert machine.handle(NOW_S, world()).do == ()
    first = machine.handle(NOW_S, delivered())
    assert kinds(first) == ["Put", "ShiftPhaseChanged"]
    record = first.do[0]
    assert isinstance(record, Put)
    assert ShiftRecord.model_validate_json(record.value or "").phase is Phase.RESERVING
    second = machine.handle(NOW_S, written(record))
    assert kinds(second) == ["PutAll"]
    batch = second.do[0]
    assert isinstance(batch, PutAll)
    third = machine.handle(NOW_S, written(batch))
    assert kinds(third) == ["Put", "Put", "ShiftOrdered", "ShiftPhaseChanged", "StartPlan"]
    assert [put.bucket for put in third.do if isinstance(put, Put)] == ["shifts", "routes"]
    assert third.wake_at_s == NOW_S + a_deployment().policy.engine_start_limit_s


def test_nothing_is_done_while_the_outcome_of_a_write_is_not_known() -> None:
    machine = Executor()
    machine.handle(NOW_S, world())
    first = machine.handle(NOW_S, delivered("one"))
    assert machine.handle(NOW_S, delivered("two")).do == ()
    record = first.do[0]
    assert isinstance(record, Put)
    answer = machine.handle(NOW_S, written(record))
    assert "ShiftRefused" in kinds(answer)


def test_a_batch_that_somebody_was_quicker_for_is_rolled_back_and_names_the_owner() -> None:
    machine = Executor()
    machine.handle(NOW_S, world())
    record = machine.handle(NOW_S, delivered()).do[0]
    assert isinstance(record, Put)
    batch = machine.handle(NOW_S, written(record)).do[0]
    assert isinstance(batch, PutAll)
    other = Reservation(plan="p-other", deployment="other", term=1, shift=4, bytes=1)
    held = DeviceReservations(device=device("node-a/cpu0"), held=(other,))
    there = entry("reservations", "node-a.cpu0", held.canonical_json(), 9)
    conflict = Stored(write_id=batch.write_id, outcome="conflict", entries=(there,))
    answer = machine.handle(NOW_S, conflict)
    resumed = answer.do[0]
    assert isinstance(resumed, Put)
    closing = machine.handle(NOW_S, written(resumed, 6))
    assert "ShiftRolledBack" in kinds(closing)
    last = closing.do[-1]
    assert isinstance(last, Put)
    closed = ShiftRecord.model_validate_json(last.value or "")
    assert (closed.phase, closed.outcome) == (Phase.CLOSED, "rolled_back")
    assert closed.reason == "node-a/cpu0 is reserved by other (p-other, shift 4)"


def test_a_record_that_somebody_else_wrote_stops_the_process() -> None:
    machine = Executor()
    machine.handle(NOW_S, world())
    record = machine.handle(NOW_S, delivered()).do[0]
    assert isinstance(record, Put)
    there = entry("shifts", "toy.1", record.value, 9)
    conflict = Stored(write_id=record.write_id, outcome="conflict", entries=(there,))
    with pytest.raises(BrokenInvariant, match=r"somebody else wrote shift record toy\.1"):
        machine.handle(NOW_S, conflict)


def test_reservations_that_belong_to_nobody_are_swept_at_the_start() -> None:
    orphan = Reservation(plan="p-gone", deployment="toy", term=1, shift=1, bytes=1)
    held = DeviceReservations(device=device("node-a/cpu0"), held=(orphan,))
    machine = Executor()
    started = world()
    entries = (*started.entries, entry("reservations", "node-a.cpu0", held.canonical_json()))
    effects = machine.handle(NOW_S, Started(entries=entries))
    assert kinds(effects) == ["PutAll"]
    batch = effects.do[0]
    assert isinstance(batch, PutAll)
    assert DeviceReservations.model_validate_json(batch.puts[0].value or "").held == ()


def test_our_own_unreadable_key_stops_the_process_and_says_which() -> None:
    with pytest.raises(BrokenInvariant, match="routes/toy cannot be read"):
        Executor().handle(NOW_S, Started(entries=(entry("routes", "toy", "{}"),)))


@pytest.mark.parametrize("event", [Woken(), Watched(entry=entry("roster", "r", None, 3))])
def test_an_executor_that_was_not_started_does_nothing(event: Input) -> None:
    assert Executor().handle(NOW_S, event).do == ()


def test_a_change_that_arrives_after_a_newer_one_is_ignored() -> None:
    machine = Executor()
    machine.handle(NOW_S, world())
    machine.handle(NOW_S, Watched(entry=entry("fleet", "node-a", None, 7)))
    late = entry("fleet", "node-a", a_node("node-a").canonical_json(), 6)
    machine.handle(NOW_S, Watched(entry=late))
    assert kinds(machine.handle(NOW_S, delivered())) == ["ShiftRefused"]
