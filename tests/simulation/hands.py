"""Hands for scenes of the second part: what the fleet does to devices, and what operators say on the urgent lane."""

from __future__ import annotations

from collections.abc import Callable

from flexpipe.events.hatch import (
    CancelShift,
    DownshiftDeployment,
    UnpinDeployment,
    Urgent,
    UrgentAnswered,
)
from flexpipe.events.outgoing import publish
from flexpipe.events.planning import Baseline
from flexpipe.model.deployment import Deployment, EngineSettings
from flexpipe.model.fleet import Node
from flexpipe.model.gear import Gear
from flexpipe.model.route import Pin
from flexpipe.model.shift import ShiftRecord
from flexpipe.testing.builders import a_deployment, a_node
from flexpipe.testing.harness import Scene, ShiftWorld
from simulation.scenes import ONE


def on_slots(name: str = "toy", baseline: str = "tp1") -> Deployment:
    """A deployment whose baseline can be resolved on the CPU slots of test nodes."""
    engine = EngineSettings(kind="emulated", form="cpu")
    return a_deployment(name).model_copy(update={"engine": engine, "baseline": baseline})


def a_scene_of(*deployments: Deployment, devices: int = 3) -> ShiftWorld:
    """Two nodes, two routers; nothing is served yet."""
    nodes = (a_node("node-a", devices), a_node("node-b", devices))
    routers = ("router-0", "router-1")
    return ShiftWorld(nodes=nodes, deployments=deployments or (on_slots(),), routers=routers)


def a_serving_scene_of(gear: Gear = ONE, baseline: str = "tp1") -> ShiftWorld:
    """A gear serves the one deployment."""
    scene = a_scene_of(on_slots(baseline=baseline))
    assert scene.shift(gear).outcome == "completed"
    scene.settle()
    return scene


# -- the fleet ------------------------------------------------------------------------------------


def alter(scene: Scene, node: str, device: str, **changes: object) -> None:
    """The monitor sees something else of a device."""
    _alter(scene, node, device, changes)
    scene.world.run_for(0.01)


def preempt_together(scene: Scene, *places: tuple[str, str]) -> None:
    """Several devices go at the same moment."""
    for node, device in places:
        _alter(scene, node, device, {"state": "preempted"})
    scene.world.run_for(0.01)


def _alter(scene: Scene, node: str, device: str, changes: dict[str, object]) -> None:
    def changed(known: Node) -> Node:
        devices = tuple(
            each.model_copy(update=changes) if each.device == device else each
            for each in known.devices
        )
        return known.model_copy(update={"devices": devices})

    _rewrite(scene, node, changed)


def notice(scene: Scene, node: str, device: str, in_s: float = 60.0) -> None:
    """A device is to be preempted."""
    at_s = scene.world.now_s + in_s
    alter(scene, node, device, leaves_at_s=at_s, closed="it is to be preempted")


def back(scene: Scene, node: str, device: str) -> None:
    """A device is as it was at first."""
    alter(scene, node, device, state="present", leaves_at_s=None, closed=None)


def lose_node(scene: ShiftWorld, node: str) -> None:
    """A machine dies with everything on it, its worker too; the monitor finds it lost."""
    scene.world.kill(node)
    scene.workers[node].hosted.clear()
    _rewrite(scene, node, lambda known: known.model_copy(update={"state": "lost"}))
    scene.world.run_for(0.01)


def revive_node(scene: ShiftWorld, node: str) -> None:
    """A machine is there again, empty."""
    scene.world.start(node)
    scene.world.run_for(0.1)
    _rewrite(scene, node, lambda known: known.model_copy(update={"state": "observed"}))


def _rewrite(scene: Scene, node: str, change: Callable[[Node], Node]) -> None:
    scene.world.kill("monitor")  # from now on these hands are the monitor
    known = Node.model_validate_json(scene.world.buckets.get("fleet", node).value or "")
    scene.world.write("fleet", node, change(known).canonical_json())


def resolve_baseline(
    scene: Scene, gear: Gear | None, deployment: str = "toy", notation: str = "tp1"
) -> None:
    """The planner has resolved a baseline."""
    reason = None if gear is not None else "nothing is free"
    value = Baseline(
        deployment=deployment, notation=notation, gear=gear, reason=reason, fleet_revision=1
    )
    scene.world.write("baselines", deployment, value.canonical_json())
    scene.world.run_for(0.01)


# -- the urgent lane ------------------------------------------------------------------------------


def downshift(scene: Scene, by: str = "anna", reason: str = "trouble") -> str:
    """`flexpipe downshift toy`; gives the message's id."""
    return _urge(scene, DownshiftDeployment(deployment="toy", by=by, reason=reason))


def cancel(scene: Scene) -> str:
    """`flexpipe cancel toy`."""
    return _urge(scene, CancelShift(deployment="toy", by="anna", reason="a mistake"))


def unpin(scene: Scene) -> str:
    """`flexpipe unpin toy`."""
    return _urge(scene, UnpinDeployment(deployment="toy", by="anna"))


def _urge(scene: Scene, command: Urgent) -> str:
    scene.orders += 1
    cause = f"urgent {scene.orders}"
    scene.world.say(command, cause)
    return publish(command, cause).message_id


def answers(scene: Scene, message_id: str) -> list[str]:
    """What became of an urgent command, outcomes in order."""
    said = scene.world.post.of(UrgentAnswered)
    return [each.outcome for each in said if each.message_id == message_id]


def says(scene: Scene, message_id: str) -> str:
    """The last sentence about an urgent command."""
    said = scene.world.post.of(UrgentAnswered)
    return [each.says for each in said if each.message_id == message_id][-1]


def pin(scene: Scene) -> Pin | None:
    """The pin of the deployment."""
    entry = scene.entry()
    return None if entry is None else entry.pin


def downshifts(scene: Scene) -> list[ShiftRecord]:
    """Records of shifts that the hatch began."""
    return [record for record in scene.records() if "downshift by" in record.order.trigger]
