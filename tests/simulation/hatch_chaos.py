"""Random trouble with hands on the hatch and eyes on the fleet, over two deployments. Used by the laws."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from flexpipe.events.hatch import CancelShift, DownshiftDeployment, UnpinDeployment, Urgent
from flexpipe.model.shift import Phase
from flexpipe.testing.builders import a_gear, a_plan
from flexpipe.testing.harness import EXECUTOR, ShiftWorld
from simulation.hands import a_scene_of, alter, back, lose_node, notice, on_slots, revive_node

NAMES: Final = ("toy", "other")
NODES: Final = ("node-a", "node-b")
DEVICES: Final = tuple((node, f"cpu{index}") for node in NODES for index in range(3))
LAYOUTS: Final = (
    ("node-a/cpu0",),
    ("node-b/cpu0",),
    ("node-a/cpu1", "node-b/cpu1"),
    ("node-b/cpu2", "node-a/cpu2"),
    ("node-a/cpu0", "node-a/cpu1"),
)

Kind = Literal[
    "order",
    "downshift",
    "cancel",
    "unpin",
    "preempt",
    "notice",
    "return",
    "lose-node",
    "kill-rank",
    "crash",
    "silent",
    "heal",
]


class Action(NamedTuple):
    """`which` picks among whatever the kind offers; then so much time passes."""

    kind: Kind
    which: int
    then_s: float


def play(actions: Sequence[Action], chance: random.Random | None) -> ShiftWorld:
    """Play the actions, then calm, then demand what must hold in a quiet world."""
    scene = a_scene_of(*(on_slots(name) for name in NAMES))
    if chance is not None:
        scene.world.chance, scene.world.delays_s = chance, (0.001, 0.03)
    scene.order(a_gear(a_plan(*LAYOUTS[0])))
    scene.order(a_gear(a_plan(*LAYOUTS[1], model="other")), "other")
    scene.world.run_for(4.0)
    for action in actions:
        DO[action.kind](scene, action.which)
        scene.world.run_for(action.then_s)
    _calm(scene)
    return scene


def _calm(scene: ShiftWorld) -> None:
    scene.executor.kill_at = None
    scene.world.run_for(1.0)
    if not scene.executor.up:
        scene.world.start(EXECUTOR)
    scene.heal()
    scene.world.run_for(0.5)  # a machine is dead for longer than that, so the executor hears of it
    for node in NODES:
        if not scene.world.mounts[node].up:
            revive_node(scene, node)
    _give_back(scene, 0)
    scene.world.run_for(60.0)  # a pinned baseline comes back by itself
    scene.world.run_until(
        lambda: all(record.phase is Phase.CLOSED for record in scene.records()), limit_s=900.0
    )
    scene.world.run_for(5.0)
    scene.settle()


def _order(scene: ShiftWorld, which: int) -> None:
    name = NAMES[which % 2]
    layout = LAYOUTS[(which // 2) % len(LAYOUTS)]
    scene.order(a_gear(a_plan(*layout, model=name)), name)


def _urge(command: type[Urgent]) -> Callable[[ShiftWorld, int], None]:
    def urge(scene: ShiftWorld, which: int) -> None:
        scene.orders += 1
        scene.world.say(command(deployment=NAMES[which % 2]), f"urgent {scene.orders}")

    return urge


def _preempt(scene: ShiftWorld, which: int) -> None:
    alter(scene, *DEVICES[which % len(DEVICES)], state="preempted")


def _notice(scene: ShiftWorld, which: int) -> None:
    notice(scene, *DEVICES[which % len(DEVICES)])


def _give_back(scene: ShiftWorld, which: int) -> None:
    """Only where nothing of what ran there is left: so the real monitor has it too."""
    for node, device in DEVICES:
        if scene.workers[node].used_bytes(device) == 0:
            back(scene, node, device)
        else:
            alter(scene, node, device, leaves_at_s=None)


def _lose(scene: ShiftWorld, which: int) -> None:
    node = NODES[which % 2]
    if scene.world.mounts[node].up:
        lose_node(scene, node)


def _kill_rank(scene: ShiftWorld, which: int) -> None:
    worker = scene.workers[NODES[which % 2]]
    hosted = sorted(worker.hosted)
    if hosted and scene.world.mounts[worker.node.node].up:
        scene.kill_rank(worker.node.node, hosted[(which // 2) % len(hosted)])


def _crash(scene: ShiftWorld, which: int) -> None:
    scene.world.kill_after_effects(EXECUTOR, scene.executor.performed + 1 + which % 12)


def _silent(scene: ShiftWorld, which: int) -> None:
    faults = ("drain-silent", "gate-silent", "start-fails", "stop-slow")
    worker = scene.workers[NODES[which % 2]]
    worker.faults.setdefault("*", set()).add(faults[(which // 2) % len(faults)])  # type: ignore[arg-type]


def _heal(scene: ShiftWorld, which: int) -> None:
    scene.heal()


DO: dict[Kind, Callable[[ShiftWorld, int], None]] = {
    "order": _order,
    "downshift": _urge(DownshiftDeployment),
    "cancel": _urge(CancelShift),
    "unpin": _urge(UnpinDeployment),
    "preempt": _preempt,
    "notice": _notice,
    "return": _give_back,
    "lose-node": _lose,
    "kill-rank": _kill_rank,
    "crash": _crash,
    "silent": _silent,
    "heal": _heal,
}
