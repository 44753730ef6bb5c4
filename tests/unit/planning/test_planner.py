"""The planner in virtual time: when it looks, what it says, what it rests on, what it keeps for the hatch."""

from __future__ import annotations

import pytest

from flexpipe.events.planning import Baseline, BaselineResolved
from flexpipe.events.shift import PlanRetired, ShiftAbandoned, ShiftCompleted
from flexpipe.kernel.machine import Span
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState
from flexpipe.model.shift import StartClass
from flexpipe.planning import Planner
from flexpipe.planning.planner import FIRST_LOOK_S
from flexpipe.planning.wishes import NEWS_S, ORIGIN_S, OVERTAKEN_LIMIT_S
from flexpipe.testing.world import EPOCH_S
from unit.planning.bench import (
    FLEET,
    LLAMA_7B,
    LLAMA_70B,
    Stand,
    changed,
    entry_of,
    fleet_changed,
    on_notice,
    only,
    plan_on,
)

TP8_ON_A = plan_on(LLAMA_70B, "a.8-0")
TP1 = plan_on(LLAMA_7B, "a.1-8")
CYCLE_S = LLAMA_7B.policy.cycle_s


def a_running_7b(plan: Plan = TP1) -> Stand:
    """The 7B model on one device, looked at once."""
    stand = Stand(LLAMA_7B)
    stand.run(LLAMA_7B, plan)
    stand.world.run_for(FIRST_LOOK_S + 0.1)
    return stand


def abandoned(shift: int = 1) -> ShiftAbandoned:
    return ShiftAbandoned(
        deployment="llama-7b", shift=shift, gear="g-empty", reason="both are lost", duration_s=3.0
    )


# -- when -----------------------------------------------------------------------------------------


def test_it_looks_soon_after_the_start_and_then_once_a_cycle() -> None:
    stand = a_running_7b()
    assert len(stand.proposals()) == 1
    stand.world.run_for(3 * CYCLE_S)
    times = [proposal.at_s for proposal in stand.proposals()]
    assert times == pytest.approx([EPOCH_S + FIRST_LOOK_S + n * CYCLE_S for n in range(4)], abs=0.1)
    assert not any(proposal.urgent for proposal in stand.proposals())
    assert len({proposal.proposal for proposal in stand.proposals()}) == 4


def test_an_urgent_fleet_change_is_answered_at_once_and_the_trace_goes_on() -> None:
    stand = a_running_7b()
    message = stand.change_fleet(changed({"c1": "preempted"}), "c1 was preempted")
    stand.world.run_for(0.2)
    *_, last = stand.proposals()
    assert (last.urgent, last.fleet_revision, last.trigger) == (True, 2, "c1 was preempted")
    (span,) = (each for each in stand.world.spans if each.span_id == last.parent_span_id)
    assert (span.name, span.trace_id) == ("propose", message.trace_id)
    assert span.parent_span_id == message.span_id
    assert last.trace_id == message.trace_id


def test_the_cycle_starts_anew_after_an_urgent_look() -> None:
    stand = a_running_7b()
    stand.world.run_for(CYCLE_S - 1)
    stand.change_fleet(changed({"c1": "preempted"}), "c1 was preempted")
    stand.world.run_for(CYCLE_S - 1)
    assert len(stand.proposals()) == 2


def test_a_change_that_is_not_urgent_waits_for_the_cycle() -> None:
    stand = a_running_7b()
    stand.change_fleet(changed({"c1": "preempted"}), "links of c1 are slower", urgent=False)
    stand.world.run_for(1.0)
    assert len(stand.proposals()) == 1


def test_a_message_that_overtakes_its_bucket_is_waited_for() -> None:
    stand = a_running_7b()
    stand.world.say(fleet_changed(2, "c1 was preempted", stand.world.now_s))
    stand.world.run_for(2.0)
    assert len(stand.proposals()) == 1
    stand.put_fleet(changed({"c1": "preempted"}))
    stand.world.run_for(0.2)
    assert stand.proposals()[-1].fleet_revision == 2


def test_a_bucket_that_never_catches_up_is_not_waited_for_without_end() -> None:
    stand = a_running_7b()
    stand.world.say(fleet_changed(7, "c1 was preempted", stand.world.now_s))
    stand.world.run_for(OVERTAKEN_LIMIT_S + 0.1)
    assert [p.urgent for p in stand.proposals()] == [False, True]


def test_a_rack_that_falls_card_by_card_is_a_few_proposals() -> None:
    stand = a_running_7b()
    for revision in range(2, 14):
        fleet = changed({"c1": "preempted"}, revision=revision)
        stand.change_fleet(fleet, f"card {revision} was preempted")
        stand.world.run_for(0.05)
    stand.world.run_for(1.0)
    urgent = [proposal for proposal in stand.proposals() if proposal.urgent]
    assert 1 <= len(urgent) <= 4
    assert urgent[-1].fleet_revision == 13


def test_an_old_message_after_an_outage_asks_for_nothing() -> None:
    stand = a_running_7b()
    machine = stand.mounted.machine
    assert machine is not None
    stand.world.kill("planner")
    stand.world.say(fleet_changed(1, "long ago", stand.world.now_s))
    stand.world.run_for(120.0)
    stand.world.start("planner")
    stand.world.run_for(0.5)
    assert not any(proposal.urgent for proposal in stand.proposals())


def test_an_abandoned_shift_is_answered_when_its_entry_is_true() -> None:
    stand = Stand(LLAMA_7B)
    stand.run(LLAMA_7B, TP1, entry=entry_of(LLAMA_7B, TP1, in_flight=1))
    stand.world.run_for(FIRST_LOOK_S + 0.1)
    stand.world.say(abandoned())
    stand.world.run_for(1.0)
    assert len(stand.proposals()) == 1  # the shift is still in the entry
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.run_for(0.2)
    *_, last = stand.proposals()
    assert last.urgent
    assert last.trigger == "shift 1 was abandoned: both are lost"


def test_a_plan_that_vanishes_without_retiring_was_lost() -> None:
    stand = a_running_7b()
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.run_for(NEWS_S + 0.1)
    *_, last = stand.proposals()
    assert (last.urgent, last.trigger) == (True, f"plan {TP1.id} (tp1) of llama-7b was lost")
    assert last.candidates


def test_a_lost_plan_is_not_replaced_before_the_fleet_can_show_what_took_it() -> None:
    stand = a_running_7b()
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.run_for(NEWS_S / 2)
    assert len(stand.proposals()) == 1
    message = stand.change_fleet(changed({"a3": "failed"}), "a3 failed", left=TP1.devices)
    stand.world.run_for(0.2)
    _, last = stand.proposals()
    assert last.trace_id == message.trace_id
    assert not any(
        ref.node == "a3" for each in last.candidates for p in each.gear.plans for ref in p.devices
    )


def test_an_abandoned_gear_waits_for_what_the_fleet_has_to_say_too() -> None:
    stand = a_running_7b()
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.say(abandoned())
    stand.world.run_for(NEWS_S / 2)
    assert len(stand.proposals()) == 1
    message = stand.change_fleet(
        changed({"a3": "failed"}), "a3 closed", urgent=False, left=TP1.devices
    )
    stand.world.run_for(NEWS_S)
    _, last = stand.proposals()
    assert (last.urgent, last.trace_id) == (True, message.trace_id)


@pytest.mark.parametrize("first", ["entry", "fleet"])
def test_what_takes_a_plan_is_where_the_traces_of_its_later_looks_begin(first: str) -> None:
    stand = a_running_7b()

    def lose() -> None:
        stand.put_entry(entry_of(LLAMA_7B))
        stand.world.run_for(0.5)

    if first == "entry":
        lose()
    message = stand.change_fleet(changed({"a1": "failed"}), "a1 failed", left=TP1.devices)
    stand.world.run_for(0.5)
    if first == "fleet":
        lose()
    stand.world.run_for(CYCLE_S + 1.0)
    *_, last = stand.proposals()
    assert not last.urgent
    assert last.trace_id == message.trace_id
    stand.world.run_for(ORIGIN_S + 2 * CYCLE_S)
    assert stand.proposals()[-1].trace_id != message.trace_id


def test_once_a_shift_has_answered_what_took_a_plan_later_looks_have_other_reasons() -> None:
    stand = a_running_7b()
    message = stand.change_fleet(changed({"a1": "failed"}), "a1 failed", left=TP1.devices)
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.run_for(5.0)

    def ended(duration_s: float) -> None:
        stand.world.say(
            ShiftCompleted(
                deployment="llama-7b",
                shift=2,
                gear="g",
                start_class=StartClass.COLD,
                duration_s=duration_s,
            )
        )
        stand.world.run_for(CYCLE_S + 1.0)

    ended(duration_s=60.0)  # it was under way before
    assert stand.proposals()[-1].trace_id == message.trace_id
    ended(duration_s=4.0)
    assert stand.proposals()[-1].trace_id != message.trace_id


def test_what_happens_to_others_is_not_where_a_trace_begins() -> None:
    stand = a_running_7b()
    ref = plan_on(LLAMA_7B, "a.1-9").devices
    message = stand.change_fleet(changed({"a3": "failed"}), "a3 failed", left=ref)
    stand.world.run_for(CYCLE_S + 1.0)
    assert stand.proposals()[-1].trace_id != message.trace_id


def test_a_plan_that_retires_is_not_lost() -> None:
    stand = a_running_7b()
    stand.put_entry(entry_of(LLAMA_7B, TP1, states={TP1.id: PlanState.RETIRING}))
    stand.world.run_for(0.2)
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.run_for(0.2)
    assert not any(proposal.urgent for proposal in stand.proposals())


def test_room_wakes_those_who_are_down() -> None:
    fleet = only(FLEET, "b3")
    stand = Stand(LLAMA_7B, LLAMA_70B, fleet=fleet)
    big = plan_on(LLAMA_7B, "b.1-8").model_copy(update={"model": "llama-70b"})
    stand.run(LLAMA_70B, big)
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.run_for(FIRST_LOOK_S + 0.1)
    assert "no block is free" in stand.proposals(LLAMA_7B)[-1].trigger
    stand.release(big)
    stand.put_entry(entry_of(LLAMA_70B))
    stand.world.say(PlanRetired(deployment="llama-70b", shift=1, plan=big.id))
    stand.world.run_for(0.3)
    *_, last = stand.proposals(LLAMA_7B)
    assert last.trigger == f"llama-70b gave up plan {big.id}: there is room"
    assert [c.gear.label for c in last.candidates] == ["tp1"]


def test_a_service_that_lost_everything_recovers_when_a_block_returns() -> None:
    stand = Stand(LLAMA_7B, fleet=changed({"b3": "preempted"}, only(FLEET, "b3"), revision=1))
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.run_for(FIRST_LOOK_S + 0.1)
    *_, last = stand.proposals()
    assert last.candidates == ()
    assert "fits nowhere: no block is free" in last.trigger
    back = only(FLEET, "b3")
    back = back.model_copy(
        update={"nodes": tuple(n.model_copy(update={"revision": 2}) for n in back.nodes)}
    )
    stand.change_fleet(back, "b3 is back")
    stand.world.run_for(0.2)
    assert [c.gear.label for c in stand.proposals()[-1].candidates] == ["tp1"]


def test_a_completed_shift_asks_for_nothing_by_itself() -> None:
    stand = a_running_7b()
    stand.world.say(
        ShiftCompleted(
            deployment="llama-7b",
            shift=1,
            gear="g-any",
            start_class=StartClass.COLD,
            duration_s=1.0,
        )
    )
    stand.world.run_for(1.0)
    assert len(stand.proposals()) == 1


# -- for whom ---------------------------------------------------------------------------------------


def test_nothing_is_proposed_before_a_first_start_nor_after_a_stop() -> None:
    stand = Stand(LLAMA_7B, LLAMA_70B)
    stand.put_entry(entry_of(LLAMA_70B, stopped=True))
    stand.world.run_for(2 * CYCLE_S)
    assert stand.proposals() == []


def test_a_deployment_that_comes_later_is_looked_at_soon() -> None:
    stand = Stand()
    stand.world.run_for(100.0)
    stand.world.write("deployments", "llama-7b", LLAMA_7B.canonical_json())
    stand.run(LLAMA_7B, TP1)
    stand.world.run_for(FIRST_LOOK_S + 0.2)
    assert len(stand.proposals(LLAMA_7B)) == 1


def test_a_deployment_that_is_withdrawn_is_looked_at_no_more() -> None:
    stand = a_running_7b()
    stand.world.write("deployments", "llama-7b", None)
    stand.world.run_for(3 * CYCLE_S)
    assert len(stand.proposals()) == 1


def test_what_is_declared_anew_is_looked_at_soon() -> None:
    stand = a_running_7b()
    stricter = LLAMA_7B.model_copy(update={"slo": LLAMA_7B.slo.model_copy(update={"itl_ms": 20.0})})
    stand.world.write("deployments", "llama-7b", stricter.canonical_json())
    stand.world.run_for(FIRST_LOOK_S + 0.1)
    assert len(stand.proposals()) == 2


def test_an_entry_that_cannot_be_read_counts_as_absent_until_it_is_mended() -> None:
    stand = a_running_7b()
    stand.world.write("fleet", "c1", '{"node": "c1", "devices": "many"}')
    stand.world.write("routes", "llama-7b", "not json")
    stand.world.run_for(2 * CYCLE_S)
    assert len(stand.proposals()) == 1
    stand.put_entry(entry_of(LLAMA_7B, TP1))
    stand.world.run_for(CYCLE_S)
    assert len(stand.proposals()) >= 2


# -- what it says -----------------------------------------------------------------------------------


def test_a_proposal_carries_both_loads_and_a_sentence() -> None:
    stand = a_running_7b()
    stand.reports(LLAMA_7B, 10, 2 * CYCLE_S)
    *_, last = stand.proposals()
    assert (last.load.data, last.load.arrived_per_s) == ("busy", 2.0)
    assert last.long_load.data == "busy"
    assert last.trigger == "cycle: 2 requests/s over 60 s"


def test_silence_and_idleness_are_told_apart() -> None:
    stand = a_running_7b()
    assert stand.proposals()[-1].load.data == "no-data"
    assert stand.proposals()[-1].trigger == "cycle: no router was heard for 60 s"
    stand.reports(LLAMA_7B, 0, 2 * CYCLE_S)
    assert stand.proposals()[-1].load.data == "idle"
    assert stand.proposals()[-1].trigger == "cycle: no requests for 60 s"
    stand.world.run_for(100.0)
    assert stand.proposals()[-1].load.data == "no-data"


def test_a_proposal_says_what_it_rests_on() -> None:
    stand = Stand(LLAMA_70B)
    stand.run(LLAMA_70B, TP8_ON_A)
    stand.reports(LLAMA_70B, 20, CYCLE_S + 5)
    *_, last = stand.proposals()
    assert last.candidates
    seen = {(each.bucket, each.key): each.revision for each in last.seen}
    for (bucket, key), revision in seen.items():
        assert stand.world.buckets.get(bucket, key).revision == revision
    nodes = {n for c in last.candidates for p in c.gear.plans for n in p.nodes}
    assert set(seen) == {
        ("deployments", "llama-70b"),
        ("routes", "llama-70b"),
        *(("fleet", node) for node in nodes | {"a1", "a2"}),
    }


def test_two_that_are_down_do_not_reach_for_the_same_blocks() -> None:
    fleet = only(FLEET, "a1", "b1")
    stand = Stand(LLAMA_7B, LLAMA_70B, fleet=fleet)
    for deployment in (LLAMA_7B, LLAMA_70B):
        stand.put_entry(entry_of(deployment))
    stand.world.run_for(FIRST_LOOK_S + 0.1)
    best = [stand.proposals(each)[-1].candidates[0].gear for each in (LLAMA_7B, LLAMA_70B)]
    one, other = ({ref for plan in gear.plans for ref in plan.devices} for gear in best)
    assert one.isdisjoint(other)


def test_readings_count_proposals_by_reason() -> None:
    stand = a_running_7b()
    stand.change_fleet(changed({"c1": "preempted"}), "c1 was preempted")
    stand.world.run_for(0.3)
    reasons = [
        reading.labels["reason"]
        for reading in stand.world.measures
        if reading.name == "flexpipe_planner_proposals_total"
    ]
    assert reasons == ["cycle", "fleet"]


def test_a_look_without_a_cause_from_outside_begins_a_trace_of_its_own() -> None:
    stand = a_running_7b()
    (proposal,) = stand.proposals()
    spans: list[Span] = stand.world.spans
    assert [(s.name, s.parent_span_id, s.trace_id) for s in spans] == [
        ("propose", None, proposal.trace_id)
    ]


# -- the baseline -----------------------------------------------------------------------------------


def test_a_baseline_is_resolved_on_free_blocks_before_anything_runs() -> None:
    stand = Stand(LLAMA_70B)
    stand.world.run_for(1.0)
    kept = stand.baseline(LLAMA_70B)
    assert kept is not None
    assert kept.gear is not None
    assert (kept.gear.label, kept.fleet_revision) == ("tp4", 1)
    (said,) = stand.world.post.of(BaselineResolved)
    assert said.baseline == kept


def test_a_baseline_that_runs_already_is_the_baseline() -> None:
    running = plan_on(LLAMA_70B, "b2")
    stand = Stand(LLAMA_70B)
    stand.run(LLAMA_70B, running)
    stand.world.run_for(1.0)
    kept = stand.baseline(LLAMA_70B)
    assert kept is not None
    assert kept.gear is not None
    assert [plan.id for plan in kept.gear.plans] == [running.id]


def test_of_several_running_plans_of_its_form_the_baseline_is_the_one_that_carries_most() -> None:
    plans = [plan_on(LLAMA_70B, block) for block in ("b1", "a.4-0", "b2")]
    stand = Stand(LLAMA_70B)
    stand.run(LLAMA_70B, *plans)
    stand.world.run_for(1.0)
    kept = stand.baseline(LLAMA_70B)
    assert kept is not None
    assert kept.gear is not None
    assert [plan.id for plan in kept.gear.plans] == [plans[1].id]


def test_a_retiring_plan_of_that_form_is_the_baseline_until_it_is_gone() -> None:
    retiring = plan_on(LLAMA_70B, "b2")
    states = {retiring.id: PlanState.RETIRING}
    stand = Stand(LLAMA_70B)
    entry = entry_of(LLAMA_70B, TP8_ON_A, retiring, states=states)
    stand.run(LLAMA_70B, TP8_ON_A, retiring, entry=entry)
    stand.world.run_for(1.0)
    kept = stand.baseline(LLAMA_70B)
    assert kept is not None
    assert kept.gear is not None
    assert [plan.id for plan in kept.gear.plans] == [retiring.id]
    stand.release(retiring)
    stand.put_entry(entry_of(LLAMA_70B, TP8_ON_A))
    stand.world.run_for(1.0)
    kept = stand.baseline(LLAMA_70B)
    assert kept is not None
    assert kept.gear is not None
    assert [plan.id for plan in kept.gear.plans] != [retiring.id]


def test_a_running_baseline_that_dies_is_resolved_elsewhere() -> None:
    running = plan_on(LLAMA_70B, "b2")
    stand = Stand(LLAMA_70B)
    stand.run(LLAMA_70B, running)
    stand.world.run_for(1.0)
    stand.change_fleet(changed({"b2": "preempted"}), "b2 was preempted")
    stand.world.run_for(1.0)
    kept = stand.baseline(LLAMA_70B)
    assert kept is not None
    assert kept.gear is not None
    assert kept.fleet_revision == 2
    assert "b2" not in {node for plan in kept.gear.plans for node in plan.nodes}


def test_a_baseline_that_fits_nowhere_is_said_before_it_is_needed() -> None:
    stand = Stand(LLAMA_70B)
    stand.world.run_for(1.0)
    lost = dict.fromkeys(("a1", "a2", "a3", "b1", "b2"), "preempted")
    stand.change_fleet(changed(lost), "blocks a and b were preempted")
    stand.world.run_for(1.0)
    kept = stand.baseline(LLAMA_70B)
    assert kept is not None
    assert kept.gear is None
    assert "tp4" in (kept.reason or "")
    *_, last = stand.world.post.of(BaselineResolved)
    assert last.baseline.gear is None


def test_an_unreadable_notation_has_a_reason() -> None:
    wrong = LLAMA_70B.model_copy(update={"baseline": "four cards"})
    stand = Stand(wrong)
    stand.world.run_for(1.0)
    kept = stand.baseline(wrong)
    assert kept is not None
    assert kept.gear is None
    assert "fourcards" in (kept.reason or "")


def test_baselines_are_written_once_a_revision_and_said_once_a_change() -> None:
    stand = Stand(LLAMA_70B)
    stand.world.run_for(1.0)
    stand.world.run_for(10 * CYCLE_S)
    writes = [e for e in stand.world.buckets.history if e.bucket == "baselines"]
    assert len(writes) == 1
    stand.change_fleet(changed({"c3": "preempted"}), "c3 was preempted")
    stand.world.run_for(1.0)
    writes = [e for e in stand.world.buckets.history if e.bucket == "baselines"]
    assert [Baseline.model_validate_json(e.value or "").fleet_revision for e in writes] == [1, 2]
    assert len(stand.world.post.of(BaselineResolved)) == 1


def test_somebody_else_s_write_does_not_stop_it() -> None:
    stand = Stand(LLAMA_70B)
    stand.world.write("baselines", "llama-70b", "{}")
    stand.world.run_for(1.0)
    stand.world.write("baselines", "llama-70b", None)
    stand.change_fleet(changed({"c3": "preempted"}), "c3 was preempted")
    stand.world.run_for(1.0)
    kept = stand.baseline(LLAMA_70B)
    assert kept is not None
    assert kept.fleet_revision == 2


# -- its own state ----------------------------------------------------------------------------------


def test_a_snapshot_is_the_whole_of_it() -> None:
    stand = Stand(LLAMA_7B, LLAMA_70B)
    stand.run(LLAMA_70B, TP8_ON_A)
    stand.reports(LLAMA_70B, 100, 20)
    stand.world.say(fleet_changed(9, "not there yet", stand.world.now_s))
    stand.world.run_for(1.0)
    machine = stand.mounted.machine
    assert machine is not None
    twin = Planner()
    twin.restore(machine.snapshot())
    assert twin.snapshot() == machine.snapshot()
    before = len(stand.mounted.lives[-1])
    stand.change_fleet(on_notice("a2", EPOCH_S + 100), "a2 is to be preempted")
    stand.reports(LLAMA_70B, 100, 20)
    fed = stand.mounted.lives[-1][before:]
    assert len(fed) > 10
    for line in fed:
        assert twin.handle(line.now_s, line.event).canonical_json() == line.effects
    assert twin.snapshot() == machine.snapshot()
