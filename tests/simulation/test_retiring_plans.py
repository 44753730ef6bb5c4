"""What becomes of a retiring plan whose next shift does not come about: somebody always cleans it up."""

from __future__ import annotations

from flexpipe.events.plan import StopPlan
from flexpipe.events.shift import ShiftOrdered
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_deployment, a_gear, a_node, a_plan
from flexpipe.testing.harness import ShiftWorld
from simulation.scenes import ONE, TP1, TWO

TAKEN = a_plan("node-b/cpu1", model="other")
WANTED = a_plan("node-b/cpu1")


def a_scene_with_a_neighbour() -> ShiftWorld:
    """TP1 is retiring for PP2, slowly; another deployment holds a device."""
    scene = ShiftWorld(
        nodes=(a_node("node-a"), a_node("node-b")),
        deployments=(a_deployment(), a_deployment("other")),
    )
    assert scene.shift(a_gear(TAKEN), "other").outcome is Outcome.COMPLETED
    assert scene.shift(ONE).outcome is Outcome.COMPLETED
    scene.workers["node-a"].delays.drain_s = 5.0
    scene.reach(scene.order(TWO), Phase.RETIRING)
    return scene


def test_a_retiring_plan_wanted_again_by_an_order_without_room_is_still_cleaned_up() -> None:
    scene = a_scene_with_a_neighbour()
    order_id = scene.order(a_gear(TP1, WANTED))
    scene.world.run_for(0.5)
    record = scene.record_of(order_id)
    assert record is not None
    assert "reserved by other" in (record.reason or "")
    assert record.outcome is Outcome.ROLLED_BACK
    scene.settle()
    ordered = {(event.deployment, event.shift) for event in scene.world.post.of(ShiftOrdered)}
    assert ("toy", record.shift) not in ordered, "it was never accepted"
    assert TP1.id not in scene.states()


def test_a_neighbour_on_the_wanted_device_is_left_alone() -> None:
    """Also where its plan bears the same id, because it is the same model on the same device."""
    scene = ShiftWorld(
        nodes=(a_node("node-a"), a_node("node-b")),
        deployments=(a_deployment(), a_deployment("other")),
    )
    assert scene.shift(a_gear(WANTED), "other").outcome is Outcome.COMPLETED
    assert scene.shift(ONE).outcome is Outcome.COMPLETED
    scene.workers["node-a"].delays.drain_s = 5.0
    scene.reach(scene.order(TWO), Phase.RETIRING)
    record = scene.closed(scene.order(a_gear(TP1, WANTED)))
    assert record.outcome is Outcome.ROLLED_BACK
    stops = [stop for stop in scene.world.post.of(StopPlan) if stop.plan == WANTED.id]
    assert stops == []
    scene.settle()
    assert scene.states("other") == {WANTED.id: "active"}
