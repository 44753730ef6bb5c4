"""What a look proposes for the models of the story on the fleet of the story."""

from __future__ import annotations

import time

import pytest

from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import Fleet
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import Load
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState
from flexpipe.planning.layouts import PP_LIMIT
from flexpipe.planning.mixing import PLANS_LIMIT
from flexpipe.planning.proposal import Look
from flexpipe.testing.world import EPOCH_S
from unit.planning.bench import (
    FLEET,
    IDLE,
    LLAMA_7B,
    LLAMA_70B,
    SILENT,
    block,
    busy,
    changed,
    entry_of,
    held_by,
    look_at,
    on_notice,
    only,
    plan_on,
    used_by,
)

TP8_ON_A = plan_on(LLAMA_70B, "a.8-0")


def devices(gear: Gear) -> int:
    return sum(len(plan.devices) for plan in gear.plans)


def reason_of(found: Look, what: str) -> str:
    return next(each.reason for each in found.rejected if each.what.startswith(what))


def test_a_small_model_with_little_to_do_goes_on_one_device() -> None:
    found = look_at(LLAMA_7B, busy(2))
    best = found.candidates[0]
    assert (best.gear.label, devices(best.gear)) == ("tp1", 1)
    assert best.starts == tuple(plan.id for plan in best.gear.plans)
    assert best.outlook.good_tokens_per_s == pytest.approx(400, rel=1e-3)


def test_a_7b_model_fits_on_one_a100() -> None:
    found = look_at(LLAMA_7B, busy(2), fleet=only(FLEET, "b3"))
    assert used_by(found) == {"b3"}
    assert found.candidates[0].gear.label == "tp1"
    assert found.nowhere is None


def test_a_70b_model_needs_more_than_one_device_and_the_reason_has_numbers() -> None:
    found = look_at(LLAMA_70B, busy(2))
    assert all(devices(candidate.gear) >= 2 for candidate in found.candidates)
    device = FLEET.device(block("a.1-0").devices[0])
    assert device is not None
    gb = device.memory_bytes / 1e9
    assert reason_of(found, "tp1 on H100") == (
        f"memory: a rank needs 140.80 GB and may claim {0.9 * gb:.2f} GB"
        f" (0.9 of the device's {gb:.2f} GB)"
    )


def test_the_best_gear_of_a_model_whose_node_is_on_notice_is_alive_elsewhere() -> None:
    fleet = on_notice("a2", EPOCH_S + 60)
    found = look_at(LLAMA_70B, busy(4), TP8_ON_A, fleet=fleet)
    assert found.current.stays_s == 60
    best = found.candidates[0]
    assert "a2" not in used_by(found)
    assert TP8_ON_A.id not in [plan.id for plan in best.gear.plans]
    assert best.stays_s == LLAMA_70B.policy.horizon_s
    assert best.outlook.good_tokens_per_s == pytest.approx(800, rel=1e-3)


def test_what_is_gone_of_a_gear_counts_for_nothing_and_is_replaced_beside_what_lives() -> None:
    small = plan_on(LLAMA_70B, "b1")
    lost = changed({"a2": "preempted"})
    found = look_at(LLAMA_70B, busy(10), TP8_ON_A, small, fleet=lost)
    assert [plan.plan for plan in found.current.outlook.plans] == [small.id]
    assert found.current.gear.weight(TP8_ON_A.id) > 0
    assert found.falls_short
    for candidate in found.candidates:
        assert TP8_ON_A.id not in [plan.id for plan in candidate.gear.plans]
    kept = [c for c in found.candidates if small.id in [plan.id for plan in c.gear.plans]]
    assert kept
    assert small.id not in kept[0].starts


def test_nothing_alive_is_no_stay_and_no_good_token() -> None:
    found = look_at(LLAMA_70B, busy(4), TP8_ON_A, fleet=changed({"a2": "preempted"}))
    assert (found.current.stays_s, found.current.outlook.good_tokens_per_s) == (0.0, 0.0)
    assert found.candidates


def test_without_block_a_a_70b_model_goes_over_the_other_classes() -> None:
    lost = changed(dict.fromkeys(("a1", "a2", "a3"), "preempted"))
    found = look_at(LLAMA_70B, busy(4), fleet=lost)
    assert found.candidates
    assert not used_by(found) & {"a1", "a2", "a3"}


def test_on_pcie_cards_alone_a_70b_model_is_a_pipeline() -> None:
    found = look_at(LLAMA_70B, busy(0.05), fleet=only(FLEET, "c1", "c2", "c3"))
    plans = [plan for candidate in found.candidates for plan in candidate.gear.plans]
    assert plans
    assert {plan.pp > 1 for plan in plans} == {True}
    assert {plan.tp for plan in plans} <= {1, 2}
    assert {len({ref.node for ref in stage.devices}) for p in plans for stage in p.stages} == {1}


def test_a_pipeline_over_two_classes_gives_the_stronger_one_more_layers() -> None:
    fleet = only(changed({"a1/g1": "failed", "a1/g2": "failed", "a1/g3": "failed"}), "a1", "c1")
    held = held_by("somebody", plan_on(LLAMA_7B, "c1.1-1"))
    loose = LLAMA_70B.model_copy(
        update={"slo": LLAMA_70B.slo.model_copy(update={"itl_ms": 10_000.0})}
    )
    small = loose.model_copy(
        update={"model": loose.model.model_copy(update={"facts": _smaller(loose)})}
    )
    found = look_at(small, busy(0.1), fleet=fleet, held=held)
    (plan,) = found.candidates[0].gear.plans
    first, second = plan.stages
    assert (first.device_model, second.device_model) == ("H100-SXM5-80GB", "L40S")
    assert first.layers.count > second.layers.count
    assert first.layers.count + second.layers.count == 80


def _smaller(deployment: Deployment) -> object:
    assert deployment.model.facts is not None
    return deployment.model.facts.model_copy(update={"weights_bytes": 95_000_000_000})


def test_a_fleet_that_is_too_small_names_the_failing_constraint() -> None:
    found = look_at(LLAMA_70B, busy(2), fleet=only(FLEET, "b3", "c1"))
    assert found.candidates == ()
    assert found.nowhere is not None
    assert found.nowhere.partition(": ")[2].startswith("memory:")
    assert found.rejected[0].what == "every gear"
    assert found.rejected[0].reason == found.nowhere


def test_heads_that_do_not_divide_are_named() -> None:
    found = look_at(LLAMA_70B, busy(2))
    assert reason_of(found, "tp12") == "must divide the model's 64 attention heads"


def test_a_block_whose_class_carries_no_group_is_named() -> None:
    assert reason_of(look_at(LLAMA_70B, busy(2)), "tp9 on b") == (
        "class: network does not carry tensor parallelism over 9 devices"
    )


def test_a_full_fleet_says_who_holds_it() -> None:
    fleet = only(FLEET, "b3")
    held = held_by("llama-7b", plan_on(LLAMA_7B, "b.1-8"))
    found = look_at(LLAMA_70B, busy(2), fleet=fleet, held=held)
    assert found.nowhere == "no block is free (1 device of b3: held by llama-7b)"


def test_an_empty_fleet_says_so() -> None:
    assert look_at(LLAMA_70B, busy(2), fleet=Fleet()).nowhere == (
        "no block is free: the fleet is empty"
    )


def test_a_model_whose_facts_were_never_read_is_refused_with_the_way_out() -> None:
    unread = LLAMA_7B.model_copy(
        update={"model": LLAMA_7B.model.model_copy(update={"facts": None})}
    )
    found = look_at(unread, busy(2))
    assert found.candidates == ()
    assert "apply the deployment again" in (found.nowhere or "")


def test_an_engine_of_another_form_finds_no_device() -> None:
    on_cpu = LLAMA_7B.model_copy(
        update={"engine": LLAMA_7B.engine.model_copy(update={"form": "cpu"})}
    )
    assert "of kind emulated, and engine.form is cpu" in (look_at(on_cpu, busy(1)).nowhere or "")


def test_growing_keeps_what_runs_and_adds_to_it() -> None:
    one = plan_on(LLAMA_7B, "b.1-8")
    found = look_at(LLAMA_7B, busy(20), one)
    grown = [c for c in found.candidates if one.id in [plan.id for plan in c.gear.plans]]
    assert grown
    assert all(one.id not in candidate.starts for candidate in grown)
    assert grown[0].outlook.good_tokens_per_s == pytest.approx(4000, rel=0.02)


def test_a_load_beyond_any_single_plan_is_met_by_several() -> None:
    found = look_at(LLAMA_7B, busy(100))
    best = found.candidates[0]
    assert 2 <= len(best.gear.shares) <= PLANS_LIMIT
    assert best.outlook.good_tokens_per_s == pytest.approx(20_000, rel=0.02)
    weights = {share.plan.id: share.weight for share in best.gear.shares}
    rates = {plan.plan: plan.good_requests_per_s for plan in best.outlook.plans}
    assert sorted(weights, key=lambda id_: weights[id_]) == sorted(
        rates, key=lambda id_: (weights[id_], rates[id_])
    )


def test_when_load_falls_a_plan_is_given_back() -> None:
    two = (plan_on(LLAMA_7B, "a.1-8"), plan_on(LLAMA_7B, "a.1-9"))
    found = look_at(LLAMA_7B, busy(5), *two)
    shrunk = [c for c in found.candidates if not c.starts]
    assert [len(candidate.gear.shares) for candidate in shrunk][:1] == [1]
    assert devices(found.candidates[0].gear) == 1


@pytest.mark.parametrize("load", [busy(4), IDLE], ids=["busy", "idle"])
def test_a_gear_that_carries_the_load_has_no_larger_candidate(load: Load) -> None:
    found = look_at(LLAMA_70B, load, TP8_ON_A)
    assert all(devices(candidate.gear) < 8 for candidate in found.candidates)
    assert not found.falls_short


def test_silence_is_not_idleness() -> None:
    two = (plan_on(LLAMA_7B, "a.1-8"), plan_on(LLAMA_7B, "a.1-9"))
    quiet, silent = look_at(LLAMA_7B, IDLE, *two), look_at(LLAMA_7B, SILENT, *two)
    assert quiet.candidates
    assert silent.candidates == ()
    assert "silence is not idleness" in silent.rejected[0].reason
    assert silent.current.outlook.good_tokens_per_s > 0


def test_silence_does_not_keep_a_gear_on_devices_that_leave() -> None:
    found = look_at(LLAMA_70B, SILENT, TP8_ON_A, fleet=on_notice("a2", EPOCH_S + 30))
    assert found.candidates
    assert "a2" not in used_by(found)


def test_a_plan_that_runs_on_a_closed_device_runs_on() -> None:
    fleet = on_notice("a2", EPOCH_S + 86_400)  # far beyond the horizon
    found = look_at(LLAMA_70B, busy(20), TP8_ON_A, fleet=fleet)
    assert found.current.stays_s == LLAMA_70B.policy.horizon_s
    assert found.current.outlook.good_tokens_per_s == pytest.approx(4000, rel=1e-3)


def test_plans_of_a_shift_under_way_hide_their_blocks() -> None:
    fresh = plan_on(LLAMA_70B, "a.4-2")
    entry = entry_of(
        LLAMA_70B,
        TP8_ON_A,
        fresh,
        states={TP8_ON_A.id: PlanState.FROZEN, fresh.id: PlanState.CANARY},
        in_flight=1,
    )
    held = held_by("llama-70b", TP8_ON_A, fresh)
    found = look_at(LLAMA_70B, busy(40), entry=entry, held=held)
    assert [plan.id for plan in found.current.gear.plans] == [TP8_ON_A.id]
    taken = set(fresh.devices)
    assert all(taken.isdisjoint(plan.devices) for c in found.candidates for plan in c.gear.plans)


def test_small_plans_leave_large_blocks_whole() -> None:
    half = plan_on(LLAMA_70B, "b1.2-0")
    found = look_at(LLAMA_7B, busy(2), fleet=only(FLEET, "b1", "b2"), held=held_by("x", half))
    (plan,) = found.candidates[0].gear.plans
    assert [str(ref) for ref in plan.devices] == ["b1/g2"]


def test_pipelines_are_bounded_and_their_stages_are_whole_blocks() -> None:
    blocks = {each.devices for each in FLEET.blocks}
    seen: list[Plan] = []
    for load in (busy(0.5), busy(5), busy(50)):
        for candidate in look_at(LLAMA_70B, load).candidates:
            seen.extend(candidate.gear.plans)
    assert {plan.pp for plan in seen} - {1}
    for plan in seen:
        assert plan.pp <= PP_LIMIT
        assert all(stage.devices in blocks for stage in plan.stages)
        assert plan.is_even_over_nodes


def test_an_unknown_device_model_is_named_and_stops_nothing() -> None:
    node = FLEET.node("b3")
    assert node is not None
    strange = node.model_copy(
        update={
            "devices": tuple(d.model_copy(update={"model": "X9000"}) for d in node.devices),
            "blocks": tuple(b.model_copy(update={"model": "X9000"}) for b in node.blocks),
        }
    )
    found = look_at(LLAMA_7B, busy(2), fleet=only(FLEET, "c1").with_node(strange))
    assert used_by(found) == {"c1"}
    assert "model: X9000 is not in the table of devices" in [r.reason for r in found.rejected]


def test_what_fits_nowhere_names_the_layout_that_came_nearest() -> None:
    found = look_at(LLAMA_70B, busy(2), fleet=only(FLEET, "b3", "c1"))
    assert found.nowhere is not None
    assert found.nowhere.startswith("pp2 on A100-SXM4-80GB and L40S: memory: the stages hold")


def test_a_look_at_the_whole_fleet_takes_tens_of_milliseconds() -> None:
    spent = []
    for _ in range(3):
        began = time.process_time()
        look_at(LLAMA_70B, busy(40), TP8_ON_A)
        spent.append(time.process_time() - began)
    assert min(spent) < 0.25  # 0.05 on a quiet core
