"""Gates, synthetic prompts, drains, stops, withdrawn devices, restarts."""

import pytest

from flexpipe.events.plan import (
    CommandSuperseded,
    EngineFailed,
    EngineLost,
    PlanDrained,
    PlanGated,
    PlanStopped,
    PlanStuck,
    PlanWarmed,
)
from flexpipe.hosting import effects, inputs
from flexpipe.hosting.commands import warm_prompt
from flexpipe.hosting.memory import Stage
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.machine import Put
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import DeviceRef
from unit.hosting.bench import (
    Bench,
    asked,
    bench,
    declared,
    fence,
    nothing,
    one,
    only,
    plan,
    said,
    spans,
)


def test_a_gate_is_answered_for_when_it_took_its_state() -> None:
    worker = bench()
    wanted = plan("a0")
    group = worker.run(wanted, fence(1))
    told = worker.gate(wanted, fence(2), admitting=True)
    assert said(told, PlanGated) == []
    order = one(told, effects.SetGate)
    assert (order.front, order.admitting, order.fence) == ("http://127.0.0.1:31000", True, fence(2))
    gated = only(worker.feed(inputs.GateSet(group=group, fence=fence(2))), PlanGated)
    assert (gated.admitting, gated.fence) == (True, fence(2))


def test_a_gate_that_does_not_take_its_state_is_stuck() -> None:
    worker = bench()
    wanted = plan("a0")
    group = worker.run(wanted, fence(1))
    worker.gate(wanted, fence(2), admitting=False)
    told = worker.feed(inputs.GateNotSet(group=group, fence=fence(2), reason="no answer"))
    assert (only(told, PlanStuck).what, only(told, PlanStuck).reason) == ("gate", "no answer")


def test_an_outcome_of_an_older_step_is_not_taken_for_that_of_the_newer() -> None:
    worker = bench()
    wanted = plan("a0")
    group = worker.run(wanted, fence(1))
    worker.gate(wanted, fence(2), admitting=False)
    worker.gate(wanted, fence(3), admitting=True)
    assert nothing(worker.feed(inputs.GateSet(group=group, fence=fence(2))))
    assert only(worker.feed(inputs.GateSet(group=group, fence=fence(3))), PlanGated).admitting


def test_a_gate_of_a_plan_that_does_not_run_is_stuck_and_says_so() -> None:
    assert only(bench().gate(plan("a0"), fence(1), admitting=True), PlanStuck).what == "gate"


def test_synthetic_prompts_are_sent_and_their_outcome_is_told() -> None:
    worker = bench()
    wanted = plan("a0")
    group = worker.run(wanted, fence(1))
    order = one(worker.warm(wanted, fence(2), requests=3), effects.SendPrompts)
    assert len(set(order.prompts)) == 3
    told = worker.feed(
        inputs.PromptsSent(
            group=group,
            fence=fence(2),
            requests=3,
            errors=1,
            reason="engine answered 500",
            ttft_p50_ms=10.0,
            itl_p50_ms=2.0,
        )
    )
    warmed = only(told, PlanWarmed)
    assert (warmed.requests, warmed.errors, warmed.ttft_p50_ms) == (3, 1, 10.0)


def test_synthetic_prompts_to_a_plan_that_does_not_run_are_all_errors() -> None:
    assert only(bench().warm(plan("a0"), fence(1), requests=4), PlanWarmed).errors == 4


@pytest.mark.parametrize("vocab", [8, 300, 49_152])
def test_synthetic_prompts_differ_and_stay_inside_the_vocabulary(vocab: int) -> None:
    prompts = [warm_prompt(index, vocab) for index in range(4)]
    assert len(set(prompts)) == 4
    assert all(0 <= token < vocab for prompt in prompts for token in prompt)


def test_a_drained_plan_is_told_and_a_stuck_drain_says_what_is_left() -> None:
    worker = bench()
    wanted = plan("a0")
    group = worker.run(wanted, fence(1))
    assert one(worker.drain(wanted, fence(2)), effects.WatchDrain).limit_s == 10.0
    left = inputs.NotDrained(group=group, fence=fence(2), reason="2 requests left")
    stuck = only(worker.feed(left), PlanStuck)
    assert (stuck.what, stuck.reason) == ("drain", "2 requests left")
    worker.drain(wanted, fence(3))
    drained = inputs.Drained(group=group, fence=fence(3))
    assert only(worker.feed(drained), PlanDrained).fence == fence(3)


def test_a_plan_that_is_not_there_is_drained_and_stopped() -> None:
    worker = bench()
    assert only(worker.drain(plan("a0"), fence(1)), PlanDrained)
    assert only(worker.stop(plan("a0"), fence(2)), PlanStopped)


def test_a_stop_is_answered_when_the_last_process_is_gone_and_its_memory_free() -> None:
    worker = bench()
    wanted = plan("a0+a1")
    group = worker.run(wanted, fence(1))
    told = worker.stop(wanted, fence(2))
    assert said(told, PlanStopped) == []
    order = one(told, effects.StopRanks)
    assert (order.grace_s, order.limit_s) == (10.0, 30.0)
    assert nothing(worker.feed(inputs.RanksExited(group=group, reason="SIGTERM", log_tail="")))
    worker.now_s += 2
    told = worker.feed(inputs.RanksGone(group=group))
    released = (
        DeviceRef(node="node-a", device="slot-0"),
        DeviceRef(node="node-a", device="slot-1"),
    )
    assert only(told, PlanStopped).released == released
    assert [(span.name, span.end_s - span.start_s) for span in spans(told)] == [("engine stop", 2)]


def test_a_stop_ends_a_start_that_is_under_way() -> None:
    worker = bench()
    wanted = plan("a0")
    group = one(worker.start(wanted, fence(1)), effects.LaunchRanks).group
    assert one(worker.stop(wanted, fence(2)), effects.StopRanks)
    assert nothing(worker.feed(inputs.RanksUp(group=group, pid=1)))
    assert nothing(worker.feed(inputs.FrontReady(group=group)))
    assert only(worker.feed(inputs.RanksGone(group=group)), PlanStopped)


def test_a_stop_takes_a_start_out_of_the_queue() -> None:
    worker = bench()
    worker.start(plan("a0"), fence(1))
    worker.start(plan("a1"), fence(2), front_port=31_008)
    told = worker.stop(plan("a1"), fence(3))
    assert only(told, PlanStopped).plan == plan("a1").id
    assert asked(told, effects.StopRanks) == []


def test_a_process_that_outlives_a_kill_is_named_and_its_memory_stays_held() -> None:
    worker = bench()
    wanted = plan("a0")
    group = worker.run(wanted, fence(1))
    worker.stop(wanted, fence(2))
    told = worker.feed(inputs.RanksLinger(group=group, pids=(77,)))
    assert "pid 77" in only(told, PlanStuck).reason
    assert one(told, effects.StopRanks).group == group
    worker.start(plan("a0+a1"), fence(3), front_port=31_008)
    assert "pid 77 does not end" in only(worker.pass_time(30), EngineFailed).reason


def test_a_stopped_plan_can_be_started_again() -> None:
    worker = bench()
    wanted = plan("a0")
    group = worker.run(wanted, fence(1))
    worker.stop(wanted, fence(2))
    worker.start(wanted, fence(3))
    told = worker.feed(inputs.RanksGone(group=group))
    assert only(told, PlanStopped).fence == fence(2)
    assert one(told, effects.LaunchRanks).group != group


def test_a_worker_declares_its_devices_even_over_what_one_before_it_left() -> None:
    worker = Bench(revision=41)
    assert declared(worker.open()) == ["slot-0", "slot-1"]
    assert worker.revision == 42


def test_two_workers_of_one_name_are_found_out() -> None:
    worker = Bench(rival=True)
    with pytest.raises(BrokenInvariant, match="another worker writes the key node-a"):
        worker.open()


def test_a_withdrawn_device_is_closed_at_once_and_its_plans_end_soon_after() -> None:
    worker = bench()
    wanted = plan("a0+a1")
    group = worker.run(wanted, fence(1))
    told = worker.withdraw("slot-1")
    assert declared(told) == ["slot-0"]
    assert asked(told, effects.StopRanks) == []
    told = worker.pass_time(2)
    assert only(told, EngineLost).reason == "node-a/slot-1 was withdrawn"
    assert one(told, effects.StopRanks).grace_s == 0
    worker.feed(inputs.RanksGone(group=group))
    assert only(worker.start(wanted, fence(2)), EngineFailed).reason == "node-a/slot-1 is withdrawn"


def test_what_runs_on_a_device_that_is_gone_already_is_killed_at_once() -> None:
    worker = bench()
    group = worker.run(plan("a0+a1"), fence(1))
    told = worker.withdraw("slot-1", at_once=True)
    assert declared(told) == ["slot-0"]
    assert only(told, EngineLost).reason == "node-a/slot-1 was withdrawn"
    ended = one(told, effects.StopRanks)
    assert (ended.group, ended.grace_s) == (group, 0)


def test_a_device_that_goes_within_its_grace_takes_its_plans_with_it_at_once() -> None:
    worker = bench()
    worker.run(plan("a0"), fence(1))
    assert asked(worker.withdraw("slot-0"), effects.StopRanks) == []
    assert one(worker.withdraw("slot-0", at_once=True), effects.StopRanks).grace_s == 0
    assert asked(worker.pass_time(5), effects.StopRanks) == []


def test_an_engine_that_is_ending_gets_no_grace_on_a_device_that_is_gone() -> None:
    worker = bench()
    wanted = plan("a0")
    group = worker.run(wanted, fence(1))
    assert one(worker.stop(wanted, fence(2)), effects.StopRanks).grace_s > 0
    assert one(worker.withdraw("slot-0", at_once=True), effects.StopRanks).grace_s == 0
    assert only(worker.feed(inputs.RanksGone(group=group)), PlanStopped).fence == fence(2)


def test_a_node_shows_life_while_its_worker_is_open_unless_all_its_devices_are_withdrawn() -> None:
    worker = Bench()
    assert not worker.worker.beats
    worker.open()
    assert worker.worker.beats
    worker.withdraw("slot-0")
    assert worker.worker.beats
    worker.withdraw("slot-1", at_once=True)
    assert not worker.worker.beats
    worker.withdraw("slot-0", present=True)
    assert worker.worker.beats
    worker.feed(inputs.Closing())
    assert not worker.worker.beats


def test_a_device_that_comes_back_is_declared_once_nothing_of_before_is_on_it() -> None:
    worker = bench()
    group = worker.run(plan("a1"), fence(1))
    worker.withdraw("slot-1")
    assert asked(worker.withdraw("slot-1", present=True), Put) == []
    worker.pass_time(2)
    assert declared(worker.feed(inputs.RanksGone(group=group))) == ["slot-0", "slot-1"]


def test_a_start_that_waits_for_a_withdrawn_device_fails() -> None:
    worker = bench()
    worker.start(plan("a0"), fence(1))
    worker.start(plan("a1"), fence(2), front_port=31_008)
    assert only(worker.withdraw("slot-1"), EngineFailed).reason == "node-a/slot-1 was withdrawn"


def test_a_new_worker_process_reports_what_the_one_before_it_lost() -> None:
    before = bench()
    running, starting = plan("a0"), plan("a1")
    before.run(running, fence(1))
    before.start(starting, fence(2), front_port=31_008)
    kept = asked(before.done, effects.Keep)[-1].memory
    after = Bench(revision=before.revision)
    told = after.open(kept)
    assert only(told, EngineLost).plan == running.id
    assert only(told, EngineFailed).plan == starting.id
    assert declared(told) == ["slot-0", "slot-1"]
    assert after.worker.hosted == ()


def test_a_new_worker_process_still_refuses_what_the_one_before_it_would_have() -> None:
    before = bench()
    before.run(plan("a0"), fence(5))
    kept = asked(before.done, effects.Keep)[-1].memory
    after = Bench(revision=before.revision)
    after.open(kept)
    assert asked(after.start(plan("a0"), fence(4)), effects.LaunchRanks) == []


def test_a_new_worker_process_answers_for_a_stop_that_the_one_before_it_began() -> None:
    before = bench()
    wanted = plan("a0")
    before.run(wanted, fence(1))
    before.stop(wanted, fence(2))
    kept = asked(before.done, effects.Keep)[-1].memory
    assert only(Bench().open(kept), PlanStopped).fence == fence(2)


def test_a_worker_that_is_stopped_ends_its_engines_and_leaves_no_key() -> None:
    worker = bench()
    group = worker.run(plan("a0"), fence(1))
    told = worker.feed(inputs.Closing())
    assert only(told, EngineLost).reason == "the worker of node-a was stopped"
    assert one(told, effects.StopRanks).group == group
    assert asked(told, Put)[-1].value is None
    assert nothing(worker.feed(inputs.RanksGone(group=group)))


def test_what_was_lost_is_said_again_by_the_next_process_until_the_bus_knows() -> None:
    before = bench()
    lost = before.run(plan("a0"), fence(1))
    ended = before.run(plan("a1"), fence(2), front_port=31_008)
    before.stores = False  # the bus is gone, and then so are we
    before.feed(inputs.RanksExited(group=lost, reason="killed", log_tail=""))
    before.feed(inputs.Closing())
    before.feed(inputs.RanksGone(group=ended))
    kept = asked(before.done, effects.Keep)[-1].memory
    again = Bench(stores=False)
    assert {each.fence for each in said(again.open(kept), EngineLost)} == {fence(1), fence(2)}
    kept = asked(again.done, effects.Keep)[-1].memory
    third = Bench()
    assert len(said(third.open(kept), EngineLost)) == 2
    kept = asked(third.done, effects.Keep)[-1].memory
    assert said(Bench().open(kept), EngineLost) == []


def test_what_is_heard_of_a_group_that_is_gone_means_nothing() -> None:
    worker = bench()
    assert nothing(worker.feed(inputs.FrontReady(group="p-1.1.1.1")))


def test_commands_of_another_deployment_do_not_touch_a_plan_of_the_same_id() -> None:
    """Two deployments of one model may lay it over the same devices, one after the other."""
    worker = bench()
    wanted = plan("a0")
    worker.run(wanted, fence(5))
    other = Fence(deployment="other", term=9, shift=9, step=9)
    told = worker.stop(wanted, other)
    assert asked(told, effects.StopRanks) == []
    assert only(told, PlanStopped).fence == other
    assert asked(worker.gate(wanted, other, admitting=False), effects.SetGate) == []
    assert [each.stage for each in worker.worker.hosted] == [Stage.RUNNING]
    stale = only(worker.stop(wanted, fence(4)), CommandSuperseded)
    assert stale.highest == fence(5), (
        "what another deployment was accepted with changes no fence of ours"
    )
