"""Whatever breaks, in whichever phase: a true route entry, right reservations, no stream lost, a reason to read."""

from __future__ import annotations

import pytest

from flexpipe.events.route import MoveSequences
from flexpipe.events.shift import ShiftAbandoned, ShiftRolledBack
from flexpipe.model.plan import Plan
from flexpipe.model.shift import Outcome, Phase, ShiftRecord
from flexpipe.testing.builders import a_deployment, a_gear, a_plan
from flexpipe.testing.harness import ShiftWorld
from flexpipe.testing.world_workers import Fault
from simulation.scenes import BESIDE, ONE, PP2, TP1, TWO, a_scene, a_serving_scene, broken_at

SWITCHING = (Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER)


def is_rolled_back(scene: ShiftWorld, record: ShiftRecord, reason: str) -> None:
    """TP1 serves as before, and the reason is in the record and in the event."""
    assert record.outcome is Outcome.ROLLED_BACK
    assert reason in (record.reason or "")
    assert scene.states() == {TP1.id: "active"}
    told = [event for event in scene.world.post.of(ShiftRolledBack) if event.shift == record.shift]
    assert [event.reason for event in told] == [record.reason]
    scene.settle()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("start-fails", "failed to start: exit code 1"),
        ("never-ready", "did not become ready within 20 s"),
        ("gate-silent", "did not open the gate"),
    ],
)
@pytest.mark.parametrize("target", [PP2, BESIDE], ids=["on-other-devices", "beside-the-old"])
def test_a_shadow_that_does_not_come_up_is_undone(fault: Fault, reason: str, target: Plan) -> None:
    scene = a_serving_scene()
    for worker in scene.workers.values():
        worker.faults[target.id] = {fault}
    record = scene.shift(a_gear(target))
    is_rolled_back(scene, record, reason)


def test_the_log_of_a_rank_that_failed_stays_in_the_record() -> None:
    scene = a_serving_scene()
    scene.workers["node-b"].faults[PP2.id] = {"start-fails"}
    record = scene.shift(TWO)
    assert record.reason == f"engine of {PP2.id} on node-b failed to start: exit code 1"
    assert record.log_tail == "OSError: no such weights"


def test_a_first_start_that_fails_leaves_an_empty_gear_and_can_be_ordered_again() -> None:
    scene = a_scene()
    scene.workers["node-a"].faults[TP1.id] = {"start-fails"}
    assert scene.shift(ONE).outcome is Outcome.ROLLED_BACK
    scene.settle()
    scene.heal()
    assert scene.shift(ONE).outcome is Outcome.COMPLETED
    scene.settle()


def test_synthetic_prompts_that_fail_undo_the_first_start() -> None:
    scene = a_scene()
    scene.workers["node-a"].faults[TP1.id] = {"warm-fails"}
    record = scene.shift(ONE)
    assert record.outcome is Outcome.ROLLED_BACK
    assert "4 of 4 requests ended in an error: HTTP 500" in (record.reason or "")
    scene.settle()


def test_one_error_on_the_canary_undoes_at_once_and_its_streams_go_back() -> None:
    scene = a_serving_scene()
    scene.routers["router-1"].faults.add("canary-errors")
    record = scene.shift(TWO)
    is_rolled_back(scene, record, "failed at router-1: 1 of 1 requests ended in an error")
    back = scene.world.post.of(MoveSequences)[-1]
    assert (back.from_plans, back.to_plans) == ((PP2.id,), (TP1.id,))


@pytest.mark.parametrize("phase", [Phase.PREPARING, *SWITCHING])
@pytest.mark.parametrize("node", ["node-a", "node-b"])
def test_a_rank_of_the_new_plan_that_dies_undoes_the_shift(phase: Phase, node: str) -> None:
    scene = a_serving_scene()
    order_id = broken_at(phase, scene)
    scene.kill_rank(node, PP2.id)
    record = scene.closed(order_id)
    is_rolled_back(scene, record, f"engine of {PP2.id} on {node}")
    assert record.log_tail == "killed"


@pytest.mark.parametrize("phase", [Phase.PREPARING, *SWITCHING])
def test_a_rank_of_the_old_plan_that_dies_makes_the_shift_go_on_without_it(phase: Phase) -> None:
    scene = a_serving_scene()
    order_id = broken_at(phase, scene)
    scene.kill_rank("node-a", TP1.id)
    record = scene.closed(order_id)
    assert record.outcome is Outcome.COMPLETED
    assert record.forward_only
    assert any(f"engine of {TP1.id} on node-a was lost" in note for note in record.notes)
    assert scene.states() == {PP2.id: "active"}
    scene.settle()
    lost = {plan for order in scene.world.post.of(MoveSequences) for plan in order.lost_plans}
    assert lost == {TP1.id}


@pytest.mark.parametrize("phase", [Phase.PREPARING, *SWITCHING])
def test_where_both_sides_die_the_shift_is_abandoned(phase: Phase) -> None:
    scene = a_serving_scene()
    order_id = broken_at(phase, scene)
    scene.kill_rank("node-a", TP1.id)
    scene.world.run_for(0.005)
    scene.kill_rank("node-b", PP2.id)
    record = scene.closed(order_id)
    assert record.outcome is Outcome.ABANDONED
    assert scene.states() == {}
    assert [event.shift for event in scene.world.post.of(ShiftAbandoned)] == [record.shift]
    scene.settle()
    assert scene.shift(ONE).outcome is Outcome.COMPLETED
    scene.settle()


@pytest.mark.parametrize("phase", [Phase.PREPARING, *SWITCHING])
@pytest.mark.parametrize(("node", "device"), [("node-a", "cpu1"), ("node-b", "cpu0")])
def test_a_device_of_the_new_plan_that_is_taken_undoes_the_shift(
    phase: Phase, node: str, device: str
) -> None:
    scene = a_serving_scene()
    order_id = broken_at(phase, scene)
    scene.withdraw(node, device)
    record = scene.closed(order_id)
    is_rolled_back(scene, record, f"device {node}/{device} left the fleet")


@pytest.mark.parametrize("phase", [Phase.PREPARING, *SWITCHING])
def test_a_device_of_the_old_plan_that_is_taken_makes_the_shift_forward_only(phase: Phase) -> None:
    scene = a_serving_scene()
    order_id = broken_at(phase, scene)
    scene.withdraw("node-a", "cpu0")
    record = scene.closed(order_id)
    assert record.outcome is Outcome.COMPLETED
    assert record.forward_only
    assert scene.states() == {PP2.id: "active"}
    scene.settle()


@pytest.mark.parametrize("fault", ["apply-silent", "move-silent"])
def test_a_router_that_does_not_answer_undoes_the_shift_after_three_tries(fault: str) -> None:
    scene = a_serving_scene()
    order_id = scene.order(TWO)
    scene.reach(order_id, Phase.CANARY)
    faults = scene.routers["router-1"].faults
    faults.add("apply-silent" if fault == "apply-silent" else "move-silent")
    scene.reach(order_id, Phase.UNDOING)
    scene.heal()
    record = scene.closed(order_id)
    is_rolled_back(scene, record, "router router-1 did not")
    assert "3 times" in (record.reason or "")
    assert len([note for note in record.notes if "router-1" in note]) == 2


@pytest.mark.parametrize("fault", ["apply-silent", "move-silent"])
def test_a_router_that_does_not_answer_is_passed_over_where_the_old_plan_is_losing_its_device(
    fault: str,
) -> None:
    scene = a_serving_scene()
    order_id = scene.order(TWO)
    scene.reach(order_id, Phase.CANARY)
    faults = scene.routers["router-1"].faults
    faults.add("apply-silent" if fault == "apply-silent" else "move-silent")
    scene.withdraw("node-a", "cpu0")
    scene.reach(order_id, Phase.RETIRING)
    scene.heal()
    record = scene.closed(order_id)
    assert record.outcome is Outcome.COMPLETED
    assert any("passed over" in note for note in record.notes)


def test_a_gate_that_does_not_close_undoes_the_shift() -> None:
    scene = a_serving_scene()
    scene.workers["node-a"].faults[TP1.id] = {"gate-silent"}
    order_id = scene.order(TWO)
    scene.reach(order_id, Phase.UNDOING)
    scene.heal()
    record = scene.closed(order_id)
    is_rolled_back(scene, record, f"node-a did not close the gate of {TP1.id} within 1 s, 3 times")


def test_an_empty_roster_holds_the_freeze_until_a_router_registers_or_the_limit_passes() -> None:
    scene = a_serving_scene()
    for name in scene.routers:
        scene.world.write("roster", name, None)
    record = scene.shift(TWO)
    is_rolled_back(scene, record, "no router was on the roster within 1 s")


@pytest.mark.parametrize("fault", ["drain-stuck", "drain-silent"])
def test_a_retiring_plan_that_does_not_drain_is_cleared_by_force_and_stopped(fault: Fault) -> None:
    scene = a_serving_scene()
    scene.workers["node-a"].faults[TP1.id] = {fault}
    record = scene.shift(TWO)
    assert record.outcome is Outcome.COMPLETED
    assert any("still had requests" in note for note in record.notes)
    forced = [order for order in scene.world.post.of(MoveSequences) if order.forced]
    assert {order.router for order in forced} == {"router-0", "router-1"}
    scene.settle()


def test_a_stop_is_asked_for_again_until_it_is_done() -> None:
    scene = a_serving_scene()
    scene.workers["node-a"].faults[TP1.id] = {"stop-slow"}
    record = scene.shift(TWO)
    assert record.outcome is Outcome.COMPLETED
    assert len([note for note in record.notes if "gone within 3 s" in note]) >= 2
    scene.settle()


def test_an_engine_lost_outside_a_shift_is_answered_by_one_step_to_the_survivors() -> None:
    scene = a_scene()
    scene.shift(a_gear(TP1, PP2, weights=(1.0, 2.0)))
    scene.kill_rank("node-b", PP2.id)
    scene.world.run_for(0.1)
    assert scene.states() == {TP1.id: "active"}
    scene.settle()
    record = scene.records()[-1]
    assert record.outcome is Outcome.COMPLETED
    assert record.order.by == "executor"
    assert record.reason == f"engine of {PP2.id} on node-b was lost: a rank exited with code 137"
    order = scene.world.post.of(MoveSequences)[-1]
    assert (order.lost_plans, order.to_plans) == ((PP2.id,), (TP1.id,))


def test_the_last_engine_lost_outside_a_shift_abandons_the_gear() -> None:
    scene = a_serving_scene()
    scene.kill_rank("node-a", TP1.id)
    scene.world.run_for(0.1)
    scene.settle()
    record = scene.records()[-1]
    assert record.outcome is Outcome.ABANDONED
    entry = scene.entry()
    assert entry is not None
    assert entry.plans == ()
    assert not entry.stopped
    assert scene.shift(TWO).outcome is Outcome.COMPLETED


def test_an_old_report_of_a_lost_engine_does_not_touch_its_successor() -> None:
    scene = a_serving_scene()
    scene.kill_rank("node-a", TP1.id)
    scene.world.run_for(0.1)
    scene.settle()
    scene.shift(ONE)
    stale = next(m for _, _, m in scene.world.post.said if m.type == "EngineLost")
    again = stale.model_copy(update={"message_id": "delivered again"})
    scene.world._publish("", again)
    scene.world.run_for(1.0)
    assert scene.states() == {TP1.id: "active"}
    scene.settle()


@pytest.mark.parametrize("plan", [TP1, PP2], ids=["retiring", "in-force"])
def test_an_engine_lost_while_the_old_plan_retires_leaves_the_other_one_serving(plan: Plan) -> None:
    scene = a_serving_scene()
    order_id = broken_at(Phase.RETIRING, scene)
    scene.kill_rank("node-a", plan.id)
    assert scene.closed(order_id).outcome is Outcome.COMPLETED
    scene.world.run_for(0.1)
    scene.settle()
    assert scene.states() == {(PP2 if plan is TP1 else TP1).id: "active"}


def test_a_node_that_left_the_fleet_counts_as_stopped() -> None:
    scene = a_serving_scene()
    order_id = broken_at(Phase.RETIRING, scene)
    scene.world.kill("node-a")
    scene.world.write("hosts", "node-a", None)
    record = scene.closed(order_id)
    assert record.outcome is Outcome.COMPLETED
    assert TP1.id not in {plan for held in scene.reservations().values() for plan in held}


def test_a_thawed_plan_whose_gate_stays_shut_retires_again() -> None:
    scene = a_serving_scene()
    scene.workers["node-a"].delays.drain_s = 5.0
    first = scene.order(TWO)
    scene.reach(first, Phase.RETIRING)
    scene.workers["node-a"].faults[TP1.id] = {"gate-silent"}
    record = scene.shift(ONE)
    assert record.outcome is Outcome.ROLLED_BACK
    assert scene.states() == {PP2.id: "active"}
    scene.settle()


def test_an_order_for_a_device_of_another_deployment_is_rolled_back_and_names_the_owner() -> None:
    scene = a_serving_scene()
    scene.declare(a_deployment("other"))
    record = scene.shift(a_gear(a_plan("node-a/cpu0", model="other")), "other")
    assert record.outcome is Outcome.ROLLED_BACK
    assert record.reason == f"node-a/cpu0 is reserved by toy ({TP1.id}, shift 1)"
    assert scene.entry("other") is None
    scene.settle()


def test_an_order_that_does_not_fit_beside_the_old_plan_is_rolled_back_with_the_numbers() -> None:
    scene = a_serving_scene()
    record = scene.shift(a_gear(a_plan("node-a/cpu0", "node-a/cpu1", copy_bytes=14_000_000_000)))
    assert record.outcome is Outcome.ROLLED_BACK
    assert "node-a/cpu0 has 6.00 GB of 10.00 GB free and the plan needs 7.00 GB" in str(
        record.reason
    )
    scene.settle()
