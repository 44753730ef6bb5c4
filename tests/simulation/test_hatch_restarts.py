"""The executor's process dies between any two effects of a pulled hatch: a new one finishes what was wished."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from flexpipe.events.hatch import DeploymentPinned
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_gear, a_plan
from flexpipe.testing.harness import EXECUTOR, ShiftWorld
from simulation.hands import (
    a_scene_of,
    alter,
    answers,
    back,
    cancel,
    downshift,
    downshifts,
    pin,
    resolve_baseline,
    unpin,
)
from simulation.scenes import ONE, TP1, TWO

WIDE = a_gear(a_plan("node-a/cpu0", "node-a/cpu1"))
ON_CPU0 = "tp1@node-a/cpu0"


class Play(NamedTuple):
    """`begin` sets the scene; the executor is killed in what `go_on` does."""

    begin: Callable[[ShiftWorld], None]
    go_on: Callable[[ShiftWorld], None]


def at(scene: ShiftWorld, *plans: str) -> None:
    """These plans serve, alone, and nothing is left to do."""
    wanted = dict.fromkeys(plans, "active")
    scene.world.run_until(lambda: scene.states() == wanted, 120.0)
    scene.settle()
    assert scene.states() == wanted


def at_pp2(scene: ShiftWorld) -> None:
    """PP2 serves, the baseline is TP1."""
    scene.shift(TWO)
    resolve_baseline(scene, ONE)


def pulled(scene: ShiftWorld) -> None:
    """The hatch is pulled, then unpinned."""
    asked = downshift(scene)
    at(scene, TP1.id)
    assert answers(scene, asked)[-1] == "done"
    assert len(downshifts(scene)) == 1
    assert {each.by for each in scene.world.post.of(DeploymentPinned)} == {"anna"}
    freed = unpin(scene)
    scene.world.run_until(lambda: answers(scene, freed) == ["done"], 10.0)
    assert pin(scene) is None


def in_the_hand_over(scene: ShiftWorld) -> None:
    """A shift that goes elsewhere stands in its hand-over."""
    at_pp2(scene)
    order_id = scene.order(a_gear(a_plan("node-b/cpu1")))
    for router in scene.routers.values():
        router.faults.add("move-silent")
    scene.reach(order_id, Phase.HANDING_OVER)


def pulled_in_a_shift(scene: ShiftWorld) -> None:
    """It is undone; then the baseline begins."""
    downshift(scene)
    scene.world.run_until(lambda: scene.records()[-1].phase is Phase.UNDOING, 30.0)
    scene.heal()
    at(scene, TP1.id)
    assert scene.records()[1].outcome is Outcome.ROLLED_BACK
    assert len(downshifts(scene)) == 1


def beside_a_retiring_plan(scene: ShiftWorld) -> None:
    """A retiring plan that does not drain holds the baseline's device."""
    scene.shift(WIDE)
    resolve_baseline(scene, ONE)
    scene.workers["node-a"].faults["*"] = {"drain-silent"}
    scene.reach(scene.order(TWO), Phase.RETIRING)


def pulled_onto_a_retiring_plan(scene: ShiftWorld) -> None:
    """Its deadline ends, it goes, the baseline begins."""
    asked = downshift(scene)
    scene.world.run_until(lambda: answers(scene, asked), 10.0)
    scene.heal()
    at(scene, TP1.id)
    assert len(downshifts(scene)) == 1


def pinned_at_the_baseline(scene: ShiftWorld) -> None:
    """TP1 serves and is pinned; it fits one device alone."""
    scene.shift(ONE)
    text = scene.world.buckets.get("deployments", "toy").value or ""
    scene.world.write("deployments", "toy", text.replace('"tp1"', f'"{ON_CPU0}"'))
    resolve_baseline(scene, ONE, notation=ON_CPU0)
    asked = downshift(scene)
    scene.world.run_until(lambda: answers(scene, asked) == ["done"], 10.0)


def lost_and_brought_back(scene: ShiftWorld) -> None:
    """It loses its device, and gets it back."""
    alter(scene, "node-a", "cpu0", state="failed")
    scene.world.run_until(lambda: scene.states() == {}, 20.0)
    scene.settle()
    back(scene, "node-a", "cpu0")
    at(scene, TP1.id)


def in_the_canary(scene: ShiftWorld) -> None:
    """A shift takes its first requests."""
    scene.shift(ONE)
    scene.reach(scene.order(TWO), Phase.CANARY)


def cancelled(scene: ShiftWorld) -> None:
    """It is cancelled."""
    asked = cancel(scene)
    at(scene, TP1.id)
    assert scene.records()[-1].outcome is Outcome.ROLLED_BACK
    assert answers(scene, asked)[-1] == "under-way"
    assert pin(scene) is None


PLAYS = (
    Play(at_pp2, pulled),
    Play(in_the_hand_over, pulled_in_a_shift),
    Play(beside_a_retiring_plan, pulled_onto_a_retiring_plan),
    Play(pinned_at_the_baseline, lost_and_brought_back),
    Play(in_the_canary, cancelled),
)


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.go_on.__name__)
def test_killed_after_any_single_effect_a_new_executor_finishes_what_was_wished(play: Play) -> None:
    whole = a_scene_of()
    play.begin(whole)
    first = whole.executor.performed + 1
    play.go_on(whole)
    last = whole.executor.performed
    assert last - first > 20
    for count in range(first, last + 1):
        scene = a_scene_of()
        play.begin(scene)
        scene.world.kill_after_effects(EXECUTOR, count)
        try:
            play.go_on(scene)
            scene.world.run_for(1.0)  # the new one is up
            scene.settle()
        except AssertionError as error:
            raise AssertionError(f"killed after effect {count} of {last}: {error}") from error
        assert len(scene.executor.lives) == 2, f"was not killed after effect {count}"
