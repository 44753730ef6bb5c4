"""Random trouble for a shift world: a list of actions, played in virtual time, then calm. Used by seeds and by laws."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from flexpipe.model.shift import Phase
from flexpipe.testing.builders import a_gear, a_node, a_plan
from flexpipe.testing.harness import EXECUTOR, ShiftWorld

PLANS = (
    a_plan("node-a/cpu0"),
    a_plan("node-a/cpu1", "node-b/cpu0"),
    a_plan("node-a/cpu0", "node-a/cpu2"),
    a_plan("node-b/cpu1", "node-b/cpu2", tp=2),
)
GEARS = (
    a_gear(),
    a_gear(PLANS[0]),
    a_gear(PLANS[1]),
    a_gear(PLANS[2]),
    a_gear(PLANS[0], PLANS[3], weights=(1.0, 2.0)),
    a_gear(PLANS[1], PLANS[3]),
)
DEVICES = tuple((node, f"cpu{index}") for node in ("node-a", "node-b") for index in range(3))
WORKER_FAULTS = (
    "start-fails",
    "never-ready",
    "gate-silent",
    "warm-fails",
    "drain-stuck",
    "drain-silent",
    "stop-slow",
)
ROUTER_FAULTS = ("apply-silent", "move-silent", "canary-errors")

Kind = Literal["order", "kill-rank", "take", "give", "worker", "router", "heal", "crash", "wait"]
KINDS: tuple[Kind, ...] = (
    "order",
    "kill-rank",
    "take",
    "give",
    "worker",
    "router",
    "heal",
    "crash",
    "wait",
)


class Action(NamedTuple):
    """`which` picks among whatever the kind offers; then so much time passes."""

    kind: Kind
    which: int
    then_s: float


def drawn(chance: random.Random, length: int = 14) -> list[Action]:
    """A schedule by chance; orders and waits are the most frequent, or nothing would ever be under way."""
    weights = (5, 2, 1, 1, 2, 2, 2, 3, 2)
    kinds = chance.choices(KINDS, weights, k=length)
    return [
        Action(kind, chance.randrange(1000), chance.choice((0.01, 0.1, 0.5, 2.5, 6.0)))
        for kind in kinds
    ]


def play(actions: Sequence[Action], chance: random.Random | None) -> ShiftWorld:
    """Play the actions, then calm, then demand what must hold in a quiet world."""
    scene = ShiftWorld(
        nodes=(a_node("node-a"), a_node("node-b")),
        routers=("router-0", "router-1"),
        chance=chance,
        delays_s=(0.001, 0.03) if chance else (0.001, 0.001),
    )
    scene.order(GEARS[1])
    scene.world.run_for(3.0)
    for action in actions:
        DO[action.kind](scene, action.which)
        scene.world.run_for(action.then_s)
    _calm(scene)
    return scene


def _calm(scene: ShiftWorld) -> None:
    scene.world.mounts[EXECUTOR].kill_at = None
    scene.heal()
    for node, device in DEVICES:
        scene.withdraw(node, device, present=True)
    scene.world.run_for(1.0)
    if not scene.world.mounts[EXECUTOR].up:
        scene.world.start(EXECUTOR)
    scene.world.run_until(
        lambda: all(record.phase is Phase.CLOSED for record in scene.records()), limit_s=900.0
    )
    scene.world.run_for(5.0)
    scene.settle()


def _order(scene: ShiftWorld, which: int) -> None:
    scene.order(GEARS[which % len(GEARS)])


def _kill_rank(scene: ShiftWorld, which: int) -> None:
    plan = PLANS[which % len(PLANS)]
    scene.kill_rank(plan.nodes[(which // 7) % len(plan.nodes)], plan.id)


def _take(scene: ShiftWorld, which: int) -> None:
    scene.withdraw(*DEVICES[which % len(DEVICES)])


def _give(scene: ShiftWorld, which: int) -> None:
    for node, device in DEVICES:
        scene.withdraw(node, device, present=True)


def _worker(scene: ShiftWorld, which: int) -> None:
    worker = scene.workers[("node-a", "node-b")[which % 2]]
    fault = WORKER_FAULTS[(which // 2) % len(WORKER_FAULTS)]
    worker.faults.setdefault("*", set()).add(fault)  # type: ignore[arg-type]


def _router(scene: ShiftWorld, which: int) -> None:
    router = scene.routers[("router-0", "router-1")[which % 2]]
    router.faults.add(ROUTER_FAULTS[(which // 2) % len(ROUTER_FAULTS)])  # type: ignore[arg-type]


def _heal(scene: ShiftWorld, which: int) -> None:
    scene.heal()


def _crash(scene: ShiftWorld, which: int) -> None:
    mounted = scene.world.mounts[EXECUTOR]
    scene.world.kill_after_effects(EXECUTOR, mounted.performed + 1 + which % 12)


def _wait(scene: ShiftWorld, which: int) -> None:
    scene.world.run_for(5.0)


DO: dict[Kind, Callable[[ShiftWorld, int], None]] = {
    "order": _order,
    "kill-rank": _kill_rank,
    "take": _take,
    "give": _give,
    "worker": _worker,
    "router": _router,
    "heal": _heal,
    "crash": _crash,
    "wait": _wait,
}
