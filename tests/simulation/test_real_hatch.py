"""The hatch and preempted cards under streams, with the real machines: nothing is lost, what parks is served later."""

from __future__ import annotations

import random

import pytest

from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_gear, a_plan
from flexpipe.testing.real_world import RealWorld
from simulation.hands import (
    alter,
    answers,
    back,
    cancel,
    downshift,
    on_slots,
    preempt_together,
    resolve_baseline,
    unpin,
)
from simulation.scenes import ONE, PP2, TP1, TWO

ELSEWHERE = a_plan("node-b/cpu1", "node-b/cpu2")


def a_world(seed: int = 0) -> RealWorld:
    """TP1 serves, clients come; TP1 is the baseline too."""
    scene = RealWorld(deployment=on_slots(), chance=random.Random(seed))
    assert scene.shift(ONE).outcome is Outcome.COMPLETED
    resolve_baseline(scene, ONE)
    scene.open_doors()
    scene.world.run_for(4.0)
    return scene


def preempt(scene: RealWorld, node: str, device: str, plan: str) -> None:
    """A card goes at once: with it the rank that ran on it."""
    alter(scene, node, device, state="preempted")
    scene.workers[node].kill_rank(plan)


def ends(scene: RealWorld) -> set[str | None]:
    """How resumable streams ended."""
    return {stream.finish for stream in scene.streams if stream.resumable}


def test_sequences_parked_by_an_abandoned_gear_are_served_by_the_next_order() -> None:
    scene = a_world()
    preempt(scene, "node-a", "cpu0", TP1.id)
    scene.world.run_for(5.0)
    assert scene.states() == {}
    assert scene.records()[-1].outcome is Outcome.ABANDONED
    waiting = [stream for router in scene.routers.values() for stream in router.open]
    assert len(waiting) > 10, "they wait, nobody turned them away"
    record = scene.shift(TWO)
    assert record.outcome is Outcome.COMPLETED
    scene.world.run_for(3.0)
    scene.settle()
    assert ends(scene) == {"length"}


@pytest.mark.parametrize("phase", [Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER])
def test_both_sides_preempted_in_the_switch_park_and_go_on_when_a_block_returns(
    phase: Phase,
) -> None:
    scene = a_world()
    order_id = scene.order(TWO)
    scene.reach(order_id, phase)
    preempt_together(scene, ("node-a", "cpu0"), ("node-b", "cpu0"))
    scene.workers["node-a"].kill_rank(TP1.id)
    scene.workers["node-b"].kill_rank(PP2.id)
    scene.world.run_for(5.0)
    record = scene.record_of(order_id)
    assert record is not None
    assert record.outcome is Outcome.ABANDONED
    back(scene, "node-a", "cpu0")
    assert scene.shift(ONE).outcome is Outcome.COMPLETED
    scene.settle()
    assert ends(scene) == {"length"}


@pytest.mark.parametrize("phase", [Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER])
def test_a_target_preempted_in_the_switch_costs_no_stream(phase: Phase) -> None:
    scene = a_world()
    order_id = scene.order(TWO)
    scene.reach(order_id, phase)
    preempt(scene, "node-b", "cpu0", PP2.id)
    assert scene.closed(order_id).outcome is Outcome.ROLLED_BACK
    scene.settle()
    assert ends(scene) == {"length"}


@pytest.mark.parametrize("phase", [Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER])
def test_a_source_preempted_in_the_switch_costs_no_stream(phase: Phase) -> None:
    scene = a_world()
    order_id = scene.order(TWO)
    scene.reach(order_id, phase)
    preempt(scene, "node-a", "cpu0", TP1.id)
    assert scene.closed(order_id).outcome is Outcome.COMPLETED
    scene.settle()
    assert ends(scene) == {"length"}


@pytest.mark.parametrize(
    "phase", [None, Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER, Phase.RETIRING]
)
def test_a_pulled_hatch_costs_no_stream(phase: Phase | None) -> None:
    scene = a_world()
    assert scene.shift(TWO).outcome is Outcome.COMPLETED
    if phase is not None:
        scene.reach(scene.order(a_gear(ELSEWHERE)), phase)
    asked = downshift(scene)
    scene.world.run_until(lambda: "done" in answers(scene, asked), 60.0)
    scene.settle()
    assert scene.states() == {TP1.id: "active"}
    assert {stream.finish for stream in scene.streams} == {"length"}


def test_after_any_schedule_with_hands_on_the_hatch_real_machines_come_to_rest_whole() -> None:
    for seed in range(15):
        try:
            _play(seed)
        except (AssertionError, BrokenInvariant) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def _play(seed: int) -> None:
    chance = random.Random(seed * 13 + 5)
    scene = a_world(seed)
    for _ in range(chance.randint(5, 12)):
        match chance.randrange(9):
            case 0 | 1 | 2:
                scene.order(chance.choice((ONE, TWO, a_gear(ELSEWHERE), a_gear(TP1, ELSEWHERE))))
            case 3 | 4:
                downshift(scene)
            case 5:
                cancel(scene)
            case 6:
                unpin(scene)
            case 7:
                scene.crash_executor(chance.randint(1, 8))
            case _:
                plan = chance.choice((TP1, PP2, ELSEWHERE))
                scene.workers[chance.choice(plan.nodes)].kill_rank(plan.id)
        scene.world.run_for(chance.choice((0.01, 0.1, 0.5, 1.2, 2.5, 6.0)))
    scene.world.run_for(1.0)
    scene.settle()
