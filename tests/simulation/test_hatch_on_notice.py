"""The hatch while devices are on notice: the baseline is not what is about to go, where it can be had elsewhere."""

from __future__ import annotations

from flexpipe.model.shift import Phase
from flexpipe.testing.builders import a_gear, a_plan
from flexpipe.testing.harness import ShiftWorld
from simulation.hands import (
    a_serving_scene_of,
    answers,
    downshift,
    notice,
    resolve_baseline,
    says,
)
from simulation.scenes import ONE, PP2, TP1, TWO


def comes_in_force(scene: ShiftWorld, asked: str) -> None:
    """The downshift is done."""
    scene.world.run_until(lambda: set(answers(scene, asked)) & {"done", "refused"}, 120.0)
    assert answers(scene, asked)[-1] == "done", says(scene, asked)


def test_a_retiring_baseline_on_notice_does_not_keep_another_from_being_started() -> None:
    scene = a_serving_scene_of(ONE)
    resolve_baseline(scene, ONE)
    scene.workers["node-a"].delays.drain_s = 60.0
    scene.reach(scene.order(TWO), Phase.RETIRING)
    notice(scene, "node-a", "cpu0")
    asked = downshift(scene)
    scene.world.run_for(0.1)
    assert answers(scene, asked) == ["under-way"], says(scene, asked)
    comes_in_force(scene, asked)
    scene.settle()
    assert TP1.id not in scene.states()


def test_of_two_plans_in_force_the_one_that_stays_is_the_baseline() -> None:
    other = a_plan("node-b/cpu1")
    for goes, stays in ((TP1, other), (other, TP1)):
        scene = a_serving_scene_of(a_gear(TP1, other, PP2))
        (ref,) = goes.devices
        notice(scene, ref.node, ref.device)
        comes_in_force(scene, downshift(scene))
        scene.settle()
        assert scene.states() == {stays.id: "active"}


def test_a_free_block_is_better_than_a_plan_that_is_about_to_go() -> None:
    scene = a_serving_scene_of(a_gear(TP1, PP2))
    resolve_baseline(scene, ONE)
    notice(scene, "node-a", "cpu0")
    asked = downshift(scene)
    comes_in_force(scene, asked)
    scene.settle()
    assert set(scene.states()).isdisjoint({TP1.id, PP2.id})


def test_where_nothing_else_fits_the_baseline_is_what_is_about_to_go() -> None:
    scene = a_serving_scene_of(a_gear(TP1, PP2))
    for node in ("node-a", "node-b"):
        for device in ("cpu0", "cpu1", "cpu2"):
            notice(scene, node, device)
    asked = downshift(scene)
    comes_in_force(scene, asked)
    scene.settle()
    assert scene.states() == {TP1.id: "active"}
