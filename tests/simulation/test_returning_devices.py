"""Devices that come back before what ran on them was stopped: nothing new is laid beside a ghost."""

from __future__ import annotations

from flexpipe.model.shift import Outcome
from flexpipe.testing.builders import a_gear, a_plan
from flexpipe.testing.harness import ShiftWorld
from simulation.hands import a_serving_scene_of, alter, answers, back, downshift, says
from simulation.scenes import PP2, TP1

BIG = a_plan("node-b/cpu0", copy_bytes=9_000_000_000)
"""There is no room for it beside anything."""


def a_ghost() -> ShiftWorld:
    """PP2 was lost with its device, which is back; no router has answered yet, so its engine still runs."""
    scene = a_serving_scene_of(a_gear(TP1, PP2))
    for router in scene.routers.values():
        router.faults.add("move-silent")
    alter(scene, "node-b", "cpu0", state="preempted")
    back(scene, "node-b", "cpu0")
    assert PP2.id in scene.workers["node-b"].hosted
    return scene


def test_an_order_for_a_device_that_is_not_clear_yet_is_turned_down_with_the_reason() -> None:
    scene = a_ghost()
    record = scene.closed(scene.order(a_gear(TP1, BIG)), 1.0)
    assert record.outcome is Outcome.ROLLED_BACK
    assert record.reason == (
        f"node-b/cpu0 is not clear yet: shift 2 of toy has still to stop {PP2.id} there"
    )
    scene.heal()
    scene.settle()
    assert scene.shift(a_gear(TP1, BIG)).outcome is Outcome.COMPLETED
    scene.settle()


def test_the_hatch_waits_until_the_device_is_clear() -> None:
    scene = a_ghost()
    for node, device in (
        ("node-a", "cpu1"),
        ("node-a", "cpu2"),
        ("node-b", "cpu1"),
        ("node-b", "cpu2"),
    ):
        alter(scene, node, device, closed="reserved by another tenant")
    alter(scene, "node-a", "cpu0", state="failed")
    asked = downshift(scene)
    scene.world.run_for(0.1)
    assert answers(scene, asked) == ["under-way"]
    assert "has given its devices back" in says(scene, asked)
    scene.heal()
    scene.world.run_until(lambda: "done" in answers(scene, asked), 60.0)
    scene.settle()
    entry = scene.entry()
    assert entry is not None
    assert [str(ref) for ref in entry.plans[0].plan.devices] == ["node-b/cpu0"]
