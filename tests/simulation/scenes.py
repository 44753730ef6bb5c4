"""The scene that simulation tests share: two nodes, two routers, a plan on one device and one over two nodes."""

from __future__ import annotations

from flexpipe.model.shift import Phase, ShiftRecord
from flexpipe.testing.builders import a_gear, a_node, a_plan
from flexpipe.testing.harness import ShiftWorld

TP1 = a_plan("node-a/cpu0")
PP2 = a_plan("node-a/cpu1", "node-b/cpu0")
BESIDE = a_plan("node-a/cpu0", "node-a/cpu1")
"""Shares a device with TP1."""

ONE = a_gear(TP1)
TWO = a_gear(PP2)
NOTHING = a_gear()


def a_scene() -> ShiftWorld:
    """Nothing is served yet."""
    return ShiftWorld(nodes=(a_node("node-a"), a_node("node-b")), routers=("router-0", "router-1"))


def a_serving_scene() -> ShiftWorld:
    """TP1 serves."""
    scene = a_scene()
    assert scene.shift(ONE).outcome == "completed"
    scene.settle()
    return scene


def broken_at(phase: Phase, scene: ShiftWorld) -> str:
    """A shift from TP1 to PP2, in this phase now; gives the order's id."""
    order_id = scene.order(TWO)
    scene.reach(order_id, phase)
    scene.world.run_for(0.005)  # its commands are there, none is answered yet
    return order_id


def phases(record: ShiftRecord) -> list[str]:
    """The phases a shift went through."""
    return [str(timing.phase) for timing in record.timings]
