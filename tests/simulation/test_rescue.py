"""A new plan that dies right after the commit: the old one, still retiring, is let in again."""

from __future__ import annotations

from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_gear, a_node, a_plan
from flexpipe.testing.harness import EXECUTOR, ShiftWorld

OLD = a_plan("node-a/cpu0")
NEW = a_plan("node-a/cpu1")


def retiring(new: Plan = NEW) -> ShiftWorld:
    """The new plan serves; the old one cannot drain yet."""
    scene = ShiftWorld(nodes=(a_node("node-a"),))
    scene.shift(a_gear(OLD))
    scene.workers["node-a"].faults["*"] = {"drain-silent"}
    scene.reach(scene.order(a_gear(new)), Phase.RETIRING)
    scene.world.run_for(0.2)
    return scene


def serving(scene: ShiftWorld) -> list[str]:
    """Plans in force."""
    entry = scene.entry()
    assert entry is not None
    return [each.plan.id for each in entry.plans if each.state is PlanState.ACTIVE]


def test_the_retiring_plan_serves_again_when_the_new_one_is_lost() -> None:
    scene = retiring()
    assert serving(scene) == [NEW.id]
    scene.kill_rank("node-a", NEW.id)
    scene.world.run_for(60.0)
    assert serving(scene) == [OLD.id]
    outcomes = [record.outcome for record in scene.records()]
    assert outcomes == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.ABANDONED, Outcome.COMPLETED]


def test_the_rescued_plan_may_still_share_a_device_with_the_lost_one() -> None:
    pipeline = a_plan("node-a/cpu0", "node-a/cpu1")
    scene = retiring(pipeline)
    scene.workers["node-a"].faults[pipeline.id] = {"stop-slow"}
    scene.kill_rank("node-a", pipeline.id)
    scene.world.run_for(60.0)
    assert serving(scene) == [OLD.id]


def test_an_executor_that_dies_in_between_comes_to_the_same_rescue() -> None:
    scene = retiring()
    scene.kill_rank("node-a", NEW.id)
    scene.world.run_until(lambda: serving(scene) == [], 5.0)
    scene.world.kill(EXECUTOR)
    scene.world.start(EXECUTOR)
    scene.world.run_for(60.0)
    assert serving(scene) == [OLD.id]


def test_an_engine_is_let_in_again_once_at_most() -> None:
    scene = retiring()
    scene.workers["node-a"].faults[OLD.id] = {"drain-silent", "warm-fails"}
    scene.kill_rank("node-a", NEW.id)
    scene.world.run_for(1200.0)
    assert serving(scene) == []
    rescues = [record for record in scene.records() if "let in again" in record.order.trigger]
    assert len(rescues) == 1


def test_what_was_stopped_by_hand_is_not_let_in_again() -> None:
    scene = ShiftWorld(nodes=(a_node("node-a"),))
    scene.shift(a_gear(OLD))
    scene.workers["node-a"].faults["*"] = {"drain-silent"}
    scene.reach(scene.order(a_gear()), Phase.RETIRING)
    scene.world.run_for(5.0)
    assert serving(scene) == []
