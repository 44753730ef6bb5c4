"""Which orders are refused, and with which sentence; a refused order changes nothing."""

from __future__ import annotations

import pytest

from flexpipe.events.shift import Seen
from flexpipe.model.deployment import Deployment
from flexpipe.model.gear import Gear
from flexpipe.model.route import Pin
from flexpipe.model.shift import Phase
from flexpipe.testing.builders import a_deployment, a_gear, a_node, a_plan, an_order_to
from flexpipe.testing.harness import ShiftWorld
from flexpipe.transitions.machine import OVERTAKEN_LIMIT_S

TP1 = a_plan("node-a/cpu0")
ONE = a_gear(TP1)
ELSEWHERE = a_gear(a_plan("node-a/cpu1"))


def refused(scene: ShiftWorld, target: Gear, deployment: str = "toy") -> str:
    """The reason of a refusal that left everything as it was."""
    keys = ("routes", "shifts", "reservations")
    before = [scene.world.buckets.all(bucket) for bucket in keys]
    order_id = scene.order(target, deployment)
    scene.world.run_for(0.01)
    assert [scene.world.buckets.all(bucket) for bucket in keys] == before
    reason = scene.refusal_of(order_id)
    assert reason is not None
    return reason


@pytest.fixture
def scene() -> ShiftWorld:
    """TP1 serves on a node of three devices."""
    scene = ShiftWorld(nodes=(a_node("node-a", port_blocks=2),))
    scene.shift(ONE)
    return scene


def test_a_deployment_that_is_not_declared_is_refused(scene: ShiftWorld) -> None:
    assert refused(scene, ONE, "ghost") == "deployment ghost is not declared; apply it first"


def test_the_gear_in_force_is_refused_whatever_its_weights_are_scaled_to(scene: ShiftWorld) -> None:
    reason = "toy is in this gear already (tp1)"
    assert refused(scene, ONE) == reason
    assert refused(scene, a_gear(TP1, weights=(5.0,))) == reason


def test_an_order_while_another_shift_holds_the_slot_is_refused(scene: ShiftWorld) -> None:
    scene.reach(scene.order(ELSEWHERE), Phase.PREPARING)
    order_id = scene.order(a_gear())
    scene.world.run_for(0.01)
    assert scene.refusal_of(order_id) == "shift 2 of toy is in flight (preparing)"


def test_a_pinned_deployment_is_refused_with_who_pinned_it_and_why(scene: ShiftWorld) -> None:
    entry = scene.entry()
    assert entry is not None
    pin = Pin(reason="trouble", by="anna", at_s=0.0)
    pinned = entry.model_copy(update={"pin": pin})
    scene.world.write("routes", "toy", pinned.canonical_json())
    scene.world.run_for(0.01)
    assert refused(scene, ELSEWHERE) == "toy is pinned by anna: trouble; unpin it first"


def test_a_device_that_is_not_in_the_fleet_is_refused_with_those_that_are(
    scene: ShiftWorld,
) -> None:
    plan = a_plan("node-a/cpu9")
    assert refused(scene, a_gear(plan)) == (
        f"plan {plan.id} needs device node-a/cpu9, which is not in the fleet"
        " (there are: node-a/cpu0, node-a/cpu1, node-a/cpu2)"
    )


def test_a_plan_that_no_device_could_ever_hold_is_refused_with_the_numbers(
    scene: ShiftWorld,
) -> None:
    plan = a_plan("node-a/cpu1", copy_bytes=11_000_000_000)
    reason = f"plan {plan.id} needs 11.00 GB on node-a/cpu1, which has 10.00 GB"
    assert refused(scene, a_gear(plan)) == reason


def test_two_plans_of_one_gear_on_one_device_are_refused(scene: ShiftWorld) -> None:
    both = a_gear(a_plan("node-a/cpu1"), a_plan("node-a/cpu1", "node-a/cpu2"))
    assert "of the target both need node-a/cpu1" in refused(scene, both)


def test_a_node_without_a_free_block_of_ports_is_refused(scene: ShiftWorld) -> None:
    two = a_gear(a_plan("node-a/cpu1"), a_plan("node-a/cpu2"))
    assert refused(scene, two) == "node node-a has no free block of 8 ports (2 in use)"


def test_a_staged_swap_is_refused(scene: ShiftWorld) -> None:
    order = an_order_to(ELSEWHERE, "staged", at_s=scene.world.now_s)
    staged = order.order.model_copy(update={"swap": "staged"})
    scene.world.say(order.model_copy(update={"order": staged}))
    scene.world.run_for(0.01)
    assert scene.refusal_of("staged") == "swap staged is not offered; order an overlapping one"


def test_a_plan_that_is_being_stopped_is_refused_until_its_shift_has_closed(
    scene: ShiftWorld,
) -> None:
    scene.workers["node-a"].faults[TP1.id] = {"stop-slow"}
    first = scene.order(ELSEWHERE)
    scene.reach(first, Phase.RETIRING)
    scene.world.run_for(1.5)
    reason = f"plan {TP1.id} is still being stopped by shift 2; order again when it has closed"
    assert refused(scene, ONE) == reason
    scene.closed(first)
    assert scene.shift(ONE).outcome == "completed"


def test_an_order_that_comes_twice_is_one_order(scene: ShiftWorld) -> None:
    order = an_order_to(ELSEWHERE, "once", at_s=scene.world.now_s)
    scene.world.say(order, "first")
    scene.world.say(order, "second")
    scene.closed("once")
    scene.world.say(order, "third")
    scene.world.run_for(1.0)
    assert len(scene.records()) == 2
    assert scene.refusal_of("once") is None


def test_a_declaration_that_cannot_be_read_counts_as_absent_and_disturbs_nobody(
    scene: ShiftWorld,
) -> None:
    scene.world.write("deployments", "broken", '{"name": "broken"}')
    scene.world.run_for(0.01)
    assert "is not declared" in refused(scene, ELSEWHERE, "broken")
    scene.declare(a_deployment("fine"))
    scene.world.run_for(0.01)
    assert scene.shift(ELSEWHERE, "fine").outcome == "completed"


def overtaking(scene: ShiftWorld, revision: int) -> str:
    """An order that rests on a revision of its deployment which the executor has not seen yet."""
    order = an_order_to(ELSEWHERE, "early", at_s=scene.world.now_s)
    seen = Seen(bucket="deployments", key="toy", revision=revision)
    scene.world.say(order.model_copy(update={"seen": (seen,)}))
    scene.world.run_for(0.5)
    return "early"


def test_an_order_that_overtook_what_it_rests_on_waits_for_it(scene: ShiftWorld) -> None:
    declared = next(iter(scene.world.buckets.all("deployments")))
    order_id = overtaking(scene, declared.revision + 1)
    assert scene.phase(order_id) is None
    assert scene.refusal_of(order_id) is None
    changed = Deployment.model_validate_json(declared.value or "")
    slower = changed.policy.model_copy(update={"park_slots": 7})
    scene.declare(changed.model_copy(update={"policy": slower}))
    scene.world.run_for(0.5)
    assert scene.phase(order_id) is not None


def test_an_order_waits_a_limited_time_for_what_never_comes(scene: ShiftWorld) -> None:
    declared = next(iter(scene.world.buckets.all("deployments")))
    order_id = overtaking(scene, declared.revision + 1000)
    scene.world.run_for(OVERTAKEN_LIMIT_S)
    assert scene.phase(order_id) is not None


def test_an_order_that_waits_does_not_hold_up_another(scene: ShiftWorld) -> None:
    overtaking(scene, 10_000)
    order_id = scene.order(ONE)
    scene.world.run_for(0.1)
    assert scene.refusal_of(order_id) == "toy is in this gear already (tp1)"
