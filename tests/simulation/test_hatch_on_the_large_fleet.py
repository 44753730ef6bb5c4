"""The hatch on the fleet of 27 GPUs without a planner: the declared baseline is resolved over blocks."""

from __future__ import annotations

from flexpipe.gears.notation import resolve_gear
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import Fleet
from flexpipe.model.gear import Gear
from flexpipe.model.shift import Outcome
from flexpipe.testing.builders import QUICK_POLICY
from flexpipe.testing.fleets import twenty_seven
from flexpipe.testing.harness import ShiftWorld
from flexpipe.testing.llamas import LLAMA_2_70B, a_llama
from simulation.hands import answers, downshift, says


def serving(baseline: str) -> tuple[ShiftWorld, Deployment, Fleet]:
    """The 70B on eight of the twelve H100."""
    fleet = twenty_seven()
    declared = a_llama(LLAMA_2_70B).model_copy(
        update={"name": "toy", "baseline": baseline, "policy": QUICK_POLICY}
    )
    scene = ShiftWorld(nodes=fleet.nodes, deployments=(declared,))
    gear = resolve_gear("tp8", declared, fleet, {})
    assert scene.shift(gear).outcome is Outcome.COMPLETED
    return scene, declared, fleet


def in_force(scene: ShiftWorld) -> Gear:
    entry = scene.entry()
    assert entry is not None
    return Gear.model_validate(
        {"shares": [{"plan": routed.plan, "weight": 1.0} for routed in entry.plans]}
    )


def test_the_baseline_takes_a_whole_block_that_carries_it() -> None:
    scene, _, _ = serving("tp4")
    asked = downshift(scene)
    scene.world.run_until(lambda: "done" in answers(scene, asked), 60.0)
    scene.settle()
    (plan,) = in_force(scene).plans
    assert plan.tp == 4
    assert len({ref.node for ref in plan.devices}) == 1


def test_a_baseline_that_fits_nowhere_is_refused_with_what_is_missing() -> None:
    scene, _, _ = serving("tp8 + tp8 + tp8")
    asked = downshift(scene)
    scene.world.run_for(0.1)
    assert answers(scene, asked) == ["refused"]
    assert "baseline tp8 + tp8 + tp8 does not fit" in says(scene, asked)
