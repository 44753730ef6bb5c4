"""The baseline that the planner keeps for the hatch, while devices are on notice."""

from __future__ import annotations

from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import Fleet
from flexpipe.model.plan import Plan
from flexpipe.planning.baseline import resolve
from flexpipe.testing.world import EPOCH_S
from unit.planning.bench import FLEET, LLAMA_70B, entry_of, on_notice, plan_on

ON_B2 = plan_on(LLAMA_70B, "b2")
ON_A = plan_on(LLAMA_70B, "a.4-0")
LEAVES_AT_S = EPOCH_S + 60.0


def plans_of(fleet: Fleet, *running: Plan, baseline: str = "tp4") -> list[str]:
    declared: Deployment = LLAMA_70B.model_copy(update={"baseline": baseline})
    gear, missing = resolve(declared, entry_of(LLAMA_70B, *running), fleet, {})
    assert gear is not None, missing
    return [plan.id for plan in gear.plans]


def test_a_running_plan_on_notice_is_not_the_baseline_where_another_runs_or_fits() -> None:
    fleet = on_notice("b2", LEAVES_AT_S)
    assert plans_of(fleet, ON_B2, ON_A) == [ON_A.id]
    (elsewhere,) = plans_of(fleet, ON_B2)
    assert elsewhere != ON_B2.id


def test_where_everything_is_on_notice_the_baseline_is_what_runs() -> None:
    fleet = FLEET
    for node in FLEET.nodes:
        fleet = on_notice(node.node, LEAVES_AT_S, fleet)
    assert plans_of(fleet, ON_B2) == [ON_B2.id]


def test_a_running_plan_on_the_named_devices_is_the_baseline_though_they_are_closed() -> None:
    named = "tp4@" + ",".join(map(str, ON_B2.devices))
    assert plans_of(on_notice("b2", LEAVES_AT_S), ON_B2, baseline=named) == [ON_B2.id]
