"""Cards go: with notice, without, with their whole machine. In a shift and outside one, a true entry and true books."""

from __future__ import annotations

import pytest

from flexpipe.events.plan import StopPlan
from flexpipe.events.route import MoveSequences
from flexpipe.events.shift import ShiftAbandoned
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_gear, a_plan
from flexpipe.testing.harness import ShiftWorld
from simulation.hands import a_serving_scene_of, alter, back, lose_node, notice, revive_node
from simulation.scenes import ONE, PP2, TP1, TWO, phases

SWITCH = (Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER)
SPAN = a_plan("node-b/cpu1", "node-a/cpu2")
"""Its front is on node-b."""


def held_on(scene: ShiftWorld, node: str) -> set[str]:
    """Plans that hold memory on a node."""
    held = scene.reservations()
    return {plan for key, plans in held.items() if key.startswith(f"{node}.") for plan in plans}


# -- outside a shift ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["preempted", "failed"])
def test_a_device_that_goes_outside_a_shift_takes_its_plan_out_at_once(state: str) -> None:
    scene = a_serving_scene_of(a_gear(TP1, PP2))
    alter(scene, "node-b", "cpu0", state=state)
    assert scene.states() == {TP1.id: "active"}, "at once, whatever the worker says"
    record = scene.records()[-1]
    assert record.reason == f"plan {PP2.id} was lost: device node-b/cpu0 is {state}"
    scene.settle()
    assert scene.records()[-1].outcome is Outcome.COMPLETED
    order = scene.world.post.of(MoveSequences)[-1]
    assert (order.lost_plans, order.to_plans) == ((PP2.id,), (TP1.id,))


def test_a_node_that_dies_with_its_worker_is_waited_for_by_nobody() -> None:
    scene = a_serving_scene_of(a_gear(TP1, PP2))
    lose_node(scene, "node-b")
    assert scene.states() == {TP1.id: "active"}
    assert held_on(scene, "node-b") == set(), "what it held ended with it"
    scene.world.run_for(5.0)
    record = scene.records()[-1]
    assert record.phase is Phase.CLOSED
    assert record.outcome is Outcome.COMPLETED
    stops = {stop.node for stop in scene.world.post.of(StopPlan) if stop.plan == PP2.id}
    assert "node-a" in stops, "ranks that live on are stopped"
    assert PP2.id not in scene.workers["node-a"].hosted
    scene.settle()


def test_the_front_s_node_dies_and_the_other_rank_is_stopped() -> None:
    scene = a_serving_scene_of(a_gear(TP1, SPAN))
    lose_node(scene, "node-b")
    scene.world.run_for(5.0)
    assert scene.states() == {TP1.id: "active"}
    assert SPAN.id not in scene.workers["node-a"].hosted
    assert held_on(scene, "node-a") == {TP1.id}
    scene.settle()


def test_the_last_plan_s_node_dies_and_the_gear_is_abandoned_until_a_new_order() -> None:
    scene = a_serving_scene_of(ONE)
    lose_node(scene, "node-a")
    scene.world.run_for(1.0)
    assert scene.states() == {}
    assert scene.records()[-1].outcome is Outcome.ABANDONED
    assert scene.records()[-1].phase is Phase.CLOSED
    record = scene.shift(a_gear(a_plan("node-b/cpu0")))
    assert record.outcome is Outcome.COMPLETED
    waiting = [s for r in scene.routers.values() for s, at in r.streams.items() if at[1] == ""]
    assert waiting == [], "what was parked is served"
    scene.settle()


def test_a_lost_node_that_comes_back_takes_new_plans() -> None:
    scene = a_serving_scene_of(a_gear(TP1, PP2))
    lose_node(scene, "node-b")
    scene.world.run_for(5.0)
    revive_node(scene, "node-b")
    scene.world.run_for(1.0)
    assert scene.shift(a_gear(TP1, PP2)).outcome is Outcome.COMPLETED
    scene.settle()


def test_a_retiring_plan_whose_node_dies_is_cleaned_up_at_once() -> None:
    scene = a_serving_scene_of(a_gear(SPAN))
    scene.workers["node-b"].faults["*"] = {"drain-silent"}
    order_id = scene.order(ONE)
    scene.reach(order_id, Phase.RETIRING)
    lose_node(scene, "node-b")
    scene.world.run_for(3.0)
    assert scene.phase(order_id) is Phase.CLOSED
    scene.settle()


def test_an_unobserved_node_keeps_its_plans() -> None:
    scene = a_serving_scene_of(ONE)
    alter(scene, "node-a", "cpu0", closed="its node is unobserved")
    scene.world.run_for(30.0)
    assert scene.states() == {TP1.id: "active"}
    assert len(scene.records()) == 1


def test_a_fleet_that_was_never_seen_takes_nothing_away() -> None:
    scene = a_serving_scene_of(ONE)
    scene.world.kill("monitor")
    scene.world.kill("executor")
    for node in ("node-a", "node-b"):
        scene.world.write("fleet", node, None)
    scene.world.start("executor")
    scene.world.run_for(5.0)
    assert scene.states() == {TP1.id: "active"}
    assert held_on(scene, "node-a") == {TP1.id}


# -- orders ---------------------------------------------------------------------------------------


def test_a_new_plan_on_a_closed_device_is_refused_with_the_reason() -> None:
    scene = a_serving_scene_of(ONE)
    alter(scene, "node-b", "cpu0", closed="tenant research has reserved it")
    order_id = scene.order(TWO)
    scene.world.run_for(0.1)
    assert scene.refusal_of(order_id) == (
        f"plan {PP2.id} needs node-b/cpu0, where nothing new may be placed:"
        " tenant research has reserved it"
    )


def test_a_kept_plan_on_a_closed_device_stays_and_the_order_is_taken() -> None:
    scene = a_serving_scene_of(ONE)
    alter(scene, "node-a", "cpu0", closed="no worker is known there")
    assert scene.shift(a_gear(TP1, PP2)).outcome is Outcome.COMPLETED
    scene.settle()


# -- the target in switch -------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.PREPARING, *SWITCH])
@pytest.mark.parametrize("how", ["notice", "preempted", "failed", "node"])
def test_a_target_that_is_preempted_rolls_back_at_once(phase: Phase, how: str) -> None:
    scene = a_serving_scene_of(ONE)
    order_id = scene.order(TWO)
    scene.reach(order_id, phase)
    match how:
        case "notice":
            notice(scene, "node-b", "cpu0")
        case "node":
            lose_node(scene, "node-b")
        case _:
            alter(scene, "node-b", "cpu0", state=how)
    scene.world.run_for(0.01)
    record = scene.record_of(order_id)
    assert record is not None
    assert record.phase in (Phase.UNDOING, Phase.UNWINDING)
    record = scene.closed(order_id, 30.0)
    assert record.outcome is Outcome.ROLLED_BACK
    assert "node-b/cpu0" in (record.reason or "")
    assert scene.states() == {TP1.id: "active"}
    scene.settle()


# -- the source in switch -------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.PREPARING, *SWITCH])
@pytest.mark.parametrize("how", ["notice", "preempted", "failed", "node"])
def test_a_source_that_is_preempted_goes_forward(phase: Phase, how: str) -> None:
    scene = a_serving_scene_of(a_gear(SPAN))
    order_id = scene.order(ONE)
    scene.reach(order_id, phase)
    match how:
        case "notice":
            notice(scene, "node-b", "cpu1")
        case "node":
            lose_node(scene, "node-b")
        case _:
            alter(scene, "node-b", "cpu1", state=how)
    record = scene.closed(order_id, 60.0)
    assert record.outcome is Outcome.COMPLETED
    assert record.forward_only
    assert scene.states() == {TP1.id: "active"}
    scene.settle()


def test_the_canary_is_skipped_where_the_source_is_on_notice() -> None:
    scene = a_serving_scene_of(a_gear(SPAN))
    notice(scene, "node-b", "cpu1")
    record = scene.shift(ONE)
    assert record.outcome is Outcome.COMPLETED
    assert "canary" not in phases(record)
    assert any(note.startswith("canary skipped") for note in record.notes)


def test_a_notice_for_a_kept_plan_changes_nothing_of_the_shift() -> None:
    scene = a_serving_scene_of(a_gear(TP1, SPAN))
    notice(scene, "node-a", "cpu0")
    record = scene.shift(a_gear(TP1, a_plan("node-b/cpu0")))
    assert record.outcome is Outcome.COMPLETED
    assert not record.forward_only
    assert "canary" in phases(record)


# -- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", SWITCH)
def test_where_source_and_target_are_preempted_the_shift_is_abandoned_and_recovers(
    phase: Phase,
) -> None:
    scene = a_serving_scene_of(ONE)
    order_id = scene.order(TWO)
    scene.reach(order_id, phase)
    alter(scene, "node-a", "cpu0", state="preempted")
    scene.world.run_for(0.01)
    alter(scene, "node-b", "cpu0", state="preempted")
    record = scene.closed(order_id, 60.0)
    assert record.outcome is Outcome.ABANDONED
    assert [event.shift for event in scene.world.post.of(ShiftAbandoned)] == [record.shift]
    assert scene.states() == {}
    scene.settle()
    back(scene, "node-a", "cpu0")
    assert scene.shift(ONE).outcome is Outcome.COMPLETED
    scene.settle()
    waiting = [s for r in scene.routers.values() for s, at in r.streams.items() if at[1] == ""]
    assert waiting == []


@pytest.mark.parametrize("phase", [Phase.FREEZING, Phase.HANDING_OVER])
def test_where_both_are_on_notice_the_source_serves_while_it_lives(phase: Phase) -> None:
    scene = a_serving_scene_of(ONE)
    order_id = scene.order(TWO)
    scene.reach(order_id, phase)
    notice(scene, "node-a", "cpu0")
    scene.world.run_for(0.01)
    notice(scene, "node-b", "cpu0")
    record = scene.closed(order_id, 60.0)
    assert record.outcome is Outcome.ABANDONED
    assert scene.states() == {TP1.id: "active"}
    scene.settle()


def test_a_target_on_notice_is_better_than_nothing() -> None:
    scene = a_serving_scene_of(ONE)
    order_id = scene.order(TWO)
    scene.reach(order_id, Phase.CANARY)
    alter(scene, "node-a", "cpu0", state="preempted")
    scene.world.run_for(0.01)
    notice(scene, "node-b", "cpu0")
    assert scene.closed(order_id, 60.0).outcome is Outcome.COMPLETED
    assert scene.states() == {PP2.id: "active"}
    scene.settle()


def test_the_target_s_machine_and_the_source_s_both_die() -> None:
    scene = a_serving_scene_of(ONE)
    order_id = scene.order(a_gear(a_plan("node-b/cpu0")))
    scene.reach(order_id, Phase.HANDING_OVER)
    lose_node(scene, "node-a")
    lose_node(scene, "node-b")
    record = scene.closed(order_id, 60.0)
    assert record.outcome is Outcome.ABANDONED
    assert scene.reservations() == {}
    scene.settle()
