"""The real machines of executor, workers and routers on one virtual clock, under streams: shifts, faults, seeds.

Whatever goes wrong, `RealWorld.settle` demands: every stream's ledger lawful and its tokens the oracle's, no sequence
in two plans at any moment, no engine at work for nobody, a true route entry, reservations of the plans in force alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest

from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.harness import EXECUTOR
from flexpipe.testing.real_world import RealWorld
from flexpipe.testing.world_engines import Fault
from simulation.chaos import DEVICES, GEARS, PLANS
from simulation.scenes import NOTHING, ONE, PP2, TP1, TWO

SEEDS: Final = 30

Trouble = Callable[[RealWorld], None]


def a_world(seed: int = 0, delays_s: tuple[float, float] = (0.001, 0.001)) -> RealWorld:
    """TP1 serves, clients come."""
    scene = RealWorld(chance=random.Random(seed), delays_s=delays_s)
    assert scene.shift(ONE).outcome is Outcome.COMPLETED
    scene.open_doors()
    scene.world.run_for(4.0)
    return scene


def calm(scene: RealWorld) -> None:
    """No more faults, no more clients; then everything comes to rest."""
    scene.close_doors()
    scene.engines.faults.clear()
    scene.world.mounts[EXECUTOR].kill_at = None
    for node, device in DEVICES:
        scene.withdraw(node, device, present=True)
    scene.world.run_for(1.0)
    if not scene.world.mounts[EXECUTOR].up:
        scene.world.start(EXECUTOR)
    scene.settle()


def finishes(scene: RealWorld, *, resumable: bool) -> set[str | None]:
    """How streams ended."""
    return {stream.finish for stream in scene.streams if stream.resumable is resumable}


# -- troubles -------------------------------------------------------------------------------------


def new_front_dies(scene: RealWorld) -> None:
    scene.workers["node-a"].kill_rank(PP2.id)


def new_rank_dies(scene: RealWorld) -> None:
    scene.workers["node-b"].kill_rank(PP2.id)


def old_engine_dies(scene: RealWorld) -> None:
    scene.workers["node-a"].kill_rank(TP1.id)


def executor_dies(scene: RealWorld) -> None:
    scene.crash_executor()


def router_dies(scene: RealWorld) -> None:
    scene.crash_router("router-0")


def worker_dies(scene: RealWorld) -> None:
    scene.crash_worker("node-b")


def clients_leave(scene: RealWorld) -> None:
    for router in scene.routers.values():
        for stream in router.open[::2]:
            router.leave(stream)


def engines_do(fault: Fault) -> Trouble:
    def begin(scene: RealWorld) -> None:
        scene.engines.faults.setdefault("*", set()).add(fault)

    begin.__name__ = fault
    return begin


TROUBLES: Final = (
    *(new_front_dies, new_rank_dies, old_engine_dies, executor_dies),
    *(router_dies, worker_dies, clients_leave, engines_do("abort-deaf")),
)
PHASES: Final = (
    *(Phase.PREPARING, Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER, Phase.RETIRING),
)


# -- tests ------------------------------------------------------------------------------------------


def test_there_and_back_under_streams_loses_and_doubles_nothing() -> None:
    scene = a_world()
    there = scene.shift(TWO)
    scene.world.run_for(2.0)
    back = scene.shift(ONE)
    assert (there.outcome, back.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)
    assert sum(moved.pause_ms is not None for moved in there.moved) >= 6
    scene.settle()
    assert {stream.finish for stream in scene.streams} == {"length"}
    assert max(pause for stream in scene.streams for pause in stream.pauses_s) < 0.5


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_trouble_in_a_phase_of_a_shift_leaves_every_stream_whole(
    phase: Phase, trouble: Trouble
) -> None:
    scene = a_world()
    order_id = scene.order(TWO)
    scene.reach(order_id, phase)
    if phase is Phase.PREPARING:
        scene.world.run_for(0.3)  # its ranks have been launched
    trouble(scene)
    scene.world.run_for(8.0)
    calm(scene)
    record = scene.record_of(order_id)
    assert record is not None
    lost_early = trouble in (new_front_dies, new_rank_dies, worker_dies)
    lost_early = lost_early and phase in (Phase.PREPARING, Phase.CANARY)
    if lost_early:
        assert record.outcome is Outcome.ROLLED_BACK
    if lost_early or trouble not in (new_front_dies, new_rank_dies, worker_dies):
        whole = {"length", "router died", "no router", "client gone"}
        assert finishes(scene, resumable=True) <= whole, "one side served all the time"


def test_a_stop_lets_what_runs_finish_and_refuses_the_rest() -> None:
    scene = a_world()
    assert scene.shift(NOTHING).outcome is Outcome.COMPLETED
    scene.world.run_for(1.0)
    scene.settle()
    assert finishes(scene, resumable=True) == finishes(scene, resumable=False)
    assert finishes(scene, resumable=True) == {"length", "refused"}


def test_after_any_schedule_of_faults_real_machines_come_to_rest_whole() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            scene = _play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        outcomes.update(str(record.outcome) for record in scene.records())
    assert set(outcomes) == {"completed", "rolled_back", "abandoned"}


def _play(seed: int) -> RealWorld:
    chance = random.Random(seed * 7 + 1)
    scene = a_world(seed, (0.001, 0.03) if seed % 2 else (0.001, 0.001))
    for _ in range(chance.randint(4, 12)):
        chance.choice(_ACTIONS)(scene, chance)
        scene.world.run_for(chance.choice((0.01, 0.1, 0.5, 1.2, 2.5, 6.0)))
    calm(scene)
    return scene


def _order(scene: RealWorld, chance: random.Random) -> None:
    scene.order(chance.choice(GEARS))


def _kill(scene: RealWorld, chance: random.Random) -> None:
    plan = chance.choice(PLANS)
    scene.workers[chance.choice(plan.nodes)].kill_rank(plan.id)


def _take(scene: RealWorld, chance: random.Random) -> None:
    scene.withdraw(*chance.choice(DEVICES))


def _crash(scene: RealWorld, chance: random.Random) -> None:
    scene.crash_executor(chance.randint(1, 8))


def _restart(scene: RealWorld, chance: random.Random) -> None:
    scene.crash_router(chance.choice(sorted(scene.routers)))


def _fail(scene: RealWorld, chance: random.Random) -> None:
    scene.crash_worker(chance.choice(sorted(scene.workers)))


def _leave(scene: RealWorld, chance: random.Random) -> None:
    clients_leave(scene)


def _break(scene: RealWorld, chance: random.Random) -> None:
    faults: tuple[Fault, ...] = (
        *("start-fails", "never-ready", "gate-silent", "warm-fails", "abort-deaf"),
    )
    engines_do(chance.choice(faults))(scene)


def _heal(scene: RealWorld, chance: random.Random) -> None:
    scene.engines.faults.clear()


_ACTIONS: Final = (
    *([_order] * 9),
    *([_kill] * 4),
    *([_crash] * 3),
    *(_take, _restart, _restart, _fail, _leave, _break, _break, _heal, _heal),
)
