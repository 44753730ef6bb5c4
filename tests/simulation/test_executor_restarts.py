"""The executor's process dies between any two effects and a new one takes over: every shift ends whole all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flexpipe.events.plan import CommandSuperseded, FenceWorker, GatePlan, StartPlan
from flexpipe.events.route import MoveSequences
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.model.fence import Fence
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_gear
from flexpipe.testing.harness import EXECUTOR, ShiftWorld
from simulation.scenes import NOTHING, ONE, PP2, TP1, TWO, a_scene, a_serving_scene

Play = Callable[[ShiftWorld], None]


def there_and_back(scene: ShiftWorld) -> None:
    """First start, TP1 → PP2 → TP1, stop."""
    for target in (ONE, TWO, ONE, NOTHING):
        assert scene.shift(target).outcome is Outcome.COMPLETED
        scene.settle()


def undone_in_the_hand_over(scene: ShiftWorld) -> None:
    """PP2 is up and has traffic when the routers fall silent."""
    scene.shift(ONE)
    for router in scene.routers.values():
        router.faults.add("move-silent")
    order_id = scene.order(TWO)
    scene.reach(order_id, Phase.UNDOING)
    scene.heal()
    assert scene.closed(order_id).outcome is Outcome.ROLLED_BACK
    scene.settle()


def undone_in_prepare(scene: ShiftWorld) -> None:
    """A rank of PP2 fails to start while the other is ready."""
    scene.shift(ONE)
    scene.workers["node-b"].faults[PP2.id] = {"start-fails"}
    assert scene.shift(TWO).outcome is Outcome.ROLLED_BACK
    scene.settle()


def cut_down_to_survivors(scene: ShiftWorld) -> None:
    """An engine is lost outside a shift."""
    scene.shift(a_gear(TP1, PP2))
    scene.kill_rank("node-b", PP2.id)
    scene.world.run_until(lambda: set(scene.states()) == {TP1.id})
    scene.settle()


def thawed(scene: ShiftWorld) -> None:
    """TP1 is wanted again while it retires."""
    scene.shift(ONE)
    scene.workers["node-a"].delays.drain_s = 5.0
    first = scene.order(TWO)
    scene.reach(first, Phase.RETIRING)
    second = scene.order(ONE)
    assert scene.closed(second).outcome is Outcome.COMPLETED
    scene.closed(first)
    scene.settle()


@pytest.mark.parametrize(
    "play",
    [
        there_and_back,
        undone_in_the_hand_over,
        undone_in_prepare,
        cut_down_to_survivors,
        thawed,
    ],
)
def test_killed_after_any_single_effect_a_new_executor_brings_every_shift_to_its_end(
    play: Play,
) -> None:
    whole = a_scene()
    play(whole)
    effects = whole.world.mounts[EXECUTOR].performed
    assert effects > 30
    for count in range(1, effects + 1):
        scene = a_scene()
        scene.world.kill_after_effects(EXECUTOR, count)
        try:
            play(scene)
        except AssertionError as error:
            raise AssertionError(f"killed after effect {count} of {effects}: {error}") from error
        assert len(scene.executor.lives) == 2, f"was not killed after effect {count}"


def test_a_new_executor_raises_every_term_and_fences_every_worker_before_it_repairs() -> None:
    scene = a_serving_scene()
    order_id = scene.order(TWO)
    scene.reach(order_id, Phase.HANDING_OVER)
    scene.world.kill(EXECUTOR)
    said = len(scene.world.post.said)
    scene.world.start(EXECUTOR)
    entry = scene.entry()
    assert entry is not None
    assert entry.term == 2
    after = [m for _, who, m in scene.world.post.said[said:] if who == EXECUTOR]
    assert [m.type for m in after[:2]] == ["FenceWorker", "FenceWorker"]
    assert {m.key for m in after[:2]} == {"node-a", "node-b"}
    assert {each.fence.term for each in scene.world.post.of(FenceWorker)} == {2}
    moves = scene.world.post.of(MoveSequences)
    assert moves[-1].fence.term == 2
    assert moves[-1].fence.step > moves[0].fence.step
    assert scene.closed(order_id).outcome is Outcome.COMPLETED
    scene.settle()


def test_limits_of_the_running_step_start_anew_with_a_new_executor() -> None:
    scene = a_serving_scene()
    for worker in scene.workers.values():
        worker.faults[PP2.id] = {"never-ready"}
    order_id = scene.order(TWO)
    scene.world.run_for(15.0)
    scene.world.kill(EXECUTOR)
    scene.heal()
    scene.world.start(EXECUTOR)
    starts = [each.fence.step for each in scene.world.post.of(StartPlan) if each.fence.shift == 2]
    assert len(set(starts)) == 2
    assert scene.closed(order_id).outcome is Outcome.COMPLETED
    scene.settle()


def test_an_order_that_is_delivered_again_to_a_new_executor_is_one_order() -> None:
    scene = a_serving_scene()
    performed = scene.executor.performed
    scene.world.kill_after_effects(EXECUTOR, performed + 1)
    order_id = scene.order(TWO)
    assert scene.closed(order_id).outcome is Outcome.COMPLETED
    assert len(scene.records()) == 2
    assert scene.refusal_of(order_id) is None
    scene.settle()


def test_an_executor_whose_worker_obeys_a_higher_term_does_not_go_on() -> None:
    scene = a_serving_scene()
    scene.workers["node-b"].terms["toy"] = 7
    scene.order(TWO)
    with pytest.raises(
        BrokenInvariant, match="node-b obeys term 7 of toy, this executor leads term 1"
    ):
        scene.world.run_for(5.0)


@pytest.mark.parametrize("watched", [True, False])
def test_an_executor_whose_route_entry_somebody_else_wrote_does_not_go_on(watched: bool) -> None:
    scene = a_serving_scene()
    scene.order(TWO)
    scene.world.run_for(0.5)
    entry = scene.entry()
    assert entry is not None
    other = entry.model_copy(update={"term": 5})
    if not watched:
        scene.executor.watches = ()  # it learns of it only when its own write is refused
        scene.world.listeners.clear()  # until then it sends commands under a term that is over
    scene.world.write("routes", "toy", other.canonical_json())
    with pytest.raises(BrokenInvariant, match="somebody else leads toy"):
        scene.world.run_for(30.0)


def test_a_stale_answer_to_an_older_executor_changes_nothing() -> None:
    scene = a_serving_scene()
    order_id = scene.order(TWO)
    scene.reach(order_id, Phase.FREEZING)
    gates = [each for each in scene.world.post.of(GatePlan) if not each.admitting]
    old = Fence(deployment="toy", term=1, shift=2, step=1)
    assert gates[-1].fence.step > old.step
    stale = CommandSuperseded(
        target="node-a", command="GatePlan", fence=old, highest=gates[-1].fence
    )
    scene.world.say(stale)
    assert scene.closed(order_id).outcome is Outcome.COMPLETED
    scene.settle()
