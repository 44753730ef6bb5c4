"""Starts: one after another, gangs, failures, repeats."""

import pytest

from flexpipe.events.plan import (
    CommandSuperseded,
    EngineFailed,
    EngineLost,
    EngineReady,
    FenceWorker,
    PlanStopped,
)
from flexpipe.hosting import effects, inputs
from flexpipe.kernel.ids import parse_traceparent
from flexpipe.model.fence import Fence
from unit.hosting.bench import (
    GB,
    TRACEPARENT,
    Bench,
    asked,
    bench,
    fence,
    nothing,
    one,
    only,
    plan,
    said,
    spans,
)


def up(worker: Bench, group: str) -> None:
    worker.feed(inputs.RanksUp(group=group, pid=4711))


def test_the_fence_is_kept_before_ranks_are_launched() -> None:
    kinds = [type(each) for each in bench().start(plan("a0"), fence(1))]
    assert kinds.index(effects.Keep) < kinds.index(effects.LaunchRanks)


def test_a_plan_is_ready_when_its_front_says_so_and_not_before() -> None:
    worker = bench()
    wanted = plan("a0+a1")
    launch = one(worker.start(wanted, fence(1)), effects.LaunchRanks)
    told = worker.feed(inputs.RanksUp(group=launch.group, pid=1))
    assert said(told, EngineReady) == []
    assert one(told, effects.PollReady).front == "http://127.0.0.1:31000"
    worker.now_s += 7
    ready = only(worker.feed(inputs.FrontReady(group=launch.group)), EngineReady)
    assert (ready.plan, ready.fence) == (wanted.id, fence(1))
    assert ready.ready_s - ready.start_s == 7


def test_a_start_is_a_span_under_the_trace_of_its_command() -> None:
    worker = bench()
    group = one(worker.start(plan("a0"), fence(1)), effects.LaunchRanks).group
    up(worker, group)
    worker.now_s += 3
    span = spans(worker.feed(inputs.FrontReady(group=group)))[0]
    assert (span.trace_id, span.parent_span_id) == parse_traceparent(TRACEPARENT)
    assert (span.name, span.end_s - span.start_s) == ("engine start", 3)


def test_ranks_are_bound_to_devices_in_rank_order() -> None:
    launch = one(bench().start(plan("a1+a0"), fence(1)), effects.LaunchRanks)
    assert [ref.device for ref in launch.ranks.plan.devices] == ["slot-1", "slot-0"]
    assert launch.ranks.node_rank == 0


def test_starts_on_cpu_slots_happen_one_after_another() -> None:
    worker = bench()
    first = one(worker.start(plan("a0"), fence(1)), effects.LaunchRanks).group
    assert nothing(worker.start(plan("a1"), fence(2), front_port=31_008))
    up(worker, first)
    told = worker.feed(inputs.FrontReady(group=first))
    assert one(told, effects.LaunchRanks).ranks.front_port == 31_008


def test_gpus_of_one_node_start_their_plans_at_the_same_time() -> None:
    worker = bench(model="L40S")
    one(worker.start(plan("a0"), fence(1)), effects.LaunchRanks)
    told = worker.start(plan("a1"), fence(2), front_port=31_008)
    assert one(told, effects.LaunchRanks).ranks.front_port == 31_008


def test_a_failed_start_lets_the_next_one_begin() -> None:
    worker = bench()
    first = one(worker.start(plan("a0"), fence(1)), effects.LaunchRanks).group
    worker.start(plan("a1"), fence(2), front_port=31_008)
    told = worker.feed(inputs.LaunchFailed(group=first, reason="no such program"))
    assert only(told, EngineFailed).reason == "no such program"
    assert one(told, effects.LaunchRanks).ranks.front_port == 31_008


def test_a_start_whose_turn_does_not_come_in_time_fails() -> None:
    worker = bench()
    worker.start(plan("a0"), fence(1), limit_s=100)
    worker.start(plan("a1"), fence(2), front_port=31_008, limit_s=20)
    assert worker.wake_at_s == 1020
    assert "turn did not come" in only(worker.pass_time(20), EngineFailed).reason


def test_an_engine_that_dies_while_it_starts_has_failed_with_its_last_lines() -> None:
    worker = bench()
    group = one(worker.start(plan("a0"), fence(1)), effects.LaunchRanks).group
    up(worker, group)
    told = worker.feed(
        inputs.RanksExited(group=group, reason="exit code 1", log_tail="out of memory")
    )
    failed = only(told, EngineFailed)
    assert (failed.reason, failed.log_tail) == ("exit code 1", "out of memory")
    assert one(told, effects.StopRanks).group == group
    assert spans(told)[0].error == "exit code 1"


def test_an_engine_that_never_becomes_ready_has_failed_and_is_ended() -> None:
    worker = bench()
    group = one(worker.start(plan("a0"), fence(1), limit_s=60), effects.LaunchRanks).group
    up(worker, group)
    worker.now_s += 60
    told = worker.feed(inputs.FrontSilent(group=group, waited_s=60, log_tail="loading"))
    assert only(told, EngineFailed).reason == "not ready within 60 s of its launch"
    assert one(told, effects.StopRanks).group == group


def test_a_node_without_the_front_is_ready_when_its_ranks_live() -> None:
    worker = bench("node-b")
    wanted = plan("a0", "b0")
    launch = one(worker.start(wanted, fence(1)), effects.LaunchRanks)
    assert launch.ranks.node_rank == 1
    told = worker.feed(inputs.RanksUp(group=launch.group, pid=1))
    assert only(told, EngineReady).node == "node-b"
    assert asked(told, effects.PollReady) == []


def test_a_rank_lost_is_a_plan_lost_and_the_rest_of_its_group_ends() -> None:
    worker = bench()
    wanted = plan("a0+a1")
    group = worker.run(wanted, fence(1))
    told = worker.feed(inputs.RanksExited(group=group, reason="rank 1 died", log_tail="killed"))
    lost = only(told, EngineLost)
    assert (lost.plan, lost.reason, lost.log_tail) == (wanted.id, "rank 1 died", "killed")
    assert one(told, effects.StopRanks).group == group


def test_a_repeated_command_is_answered_with_the_recorded_result() -> None:
    worker = bench()
    wanted = plan("a0")
    worker.run(wanted, fence(1))
    first = said(worker.done, EngineReady)
    told = worker.start(wanted, fence(1))
    assert said(told, EngineReady) == first
    assert asked(told, effects.LaunchRanks) == []


def test_a_repeat_is_a_new_message_so_that_the_bus_does_not_drop_it() -> None:
    worker = bench()
    wanted = plan("a0")
    worker.run(wanted, fence(1))
    before = {each.message_id for each in worker.done if hasattr(each, "message_id")}
    again = [each for each in worker.start(wanted, fence(1)) if hasattr(each, "message_id")]
    assert len(again) == 1
    assert again[0].message_id not in before


def test_a_repeat_of_a_start_under_way_starts_nothing_twice() -> None:
    worker = bench()
    worker.start(plan("a0"), fence(1))
    assert nothing(worker.start(plan("a0"), fence(1)))


def test_a_later_step_that_asks_for_a_running_plan_is_answered_at_once() -> None:
    worker = bench()
    wanted = plan("a0")
    worker.run(wanted, fence(1))
    told = worker.start(wanted, fence(4))
    assert only(told, EngineReady).fence == fence(4)
    assert asked(told, effects.LaunchRanks) == []


def test_a_later_step_that_asks_for_a_starting_plan_gets_the_answer() -> None:
    worker = bench()
    wanted = plan("a0")
    group = one(worker.start(wanted, fence(1)), effects.LaunchRanks).group
    up(worker, group)
    worker.start(wanted, fence(4))
    assert only(worker.feed(inputs.FrontReady(group=group)), EngineReady).fence == fence(4)


@pytest.mark.parametrize("stale", [fence(2), fence(9, shift=0)])
def test_a_stale_order_is_refused(stale: Fence) -> None:
    worker = bench()
    wanted = plan("a0")
    worker.run(wanted, fence(3))
    told = worker.stop(wanted, stale)
    refused = only(told, CommandSuperseded)
    assert (refused.command, refused.fence, refused.highest) == ("StopPlan", stale, fence(3))
    assert asked(told, effects.StopRanks) == []


def test_after_a_new_leaders_first_word_the_old_ones_orders_are_refused() -> None:
    worker = bench()
    worker.tell(FenceWorker(node="node-a", fence=fence(0, shift=0, term=2)))
    told = worker.start(plan("a0"), fence(50, shift=9, term=1))
    assert only(told, CommandSuperseded).highest.term == 2


def test_a_fence_of_one_deployment_does_not_bind_another() -> None:
    worker = bench()
    other = fence(1).model_copy(update={"deployment": "code"})
    worker.tell(FenceWorker(node="node-a", fence=fence(0, shift=0, term=9)))
    assert one(worker.start(plan("a0"), other), effects.LaunchRanks)


def test_a_start_waits_for_memory_that_is_being_freed() -> None:
    worker = bench()
    old, new = plan("a0"), plan("a0+a1")
    group = worker.run(old, fence(1))
    worker.stop(old, fence(2))
    assert asked(worker.start(new, fence(3), front_port=31_008), effects.LaunchRanks) == []
    told = worker.feed(inputs.RanksGone(group=group))
    assert only(told, PlanStopped).plan == old.id
    assert one(told, effects.LaunchRanks).ranks.plan == new


def test_a_start_on_memory_that_is_never_freed_fails_and_names_the_process() -> None:
    worker = bench()
    old = plan("a0")
    worker.run(old, fence(1))
    worker.stop(old, fence(2))
    worker.start(plan("a0+a1"), fence(3), front_port=31_008)
    told = worker.pass_time(30)
    assert f"held by {old.id} (pid 4711)" in only(told, EngineFailed).reason
    assert asked(told, effects.LaunchRanks) == []


def test_a_start_on_memory_that_a_running_plan_holds_fails_at_once() -> None:
    worker = bench()
    worker.run(plan("a0"), fence(1))
    told = worker.start(plan("a0+a1"), fence(2), front_port=31_008)
    assert (
        "node-a/slot-0 has 1000000000 of 4000000000 bytes free" in only(told, EngineFailed).reason
    )


def test_old_and_new_plan_share_a_device_whose_memory_holds_both() -> None:
    worker = bench(memory_bytes=8 * GB)
    worker.run(plan("a0"), fence(1))
    assert one(worker.start(plan("a0+a1"), fence(2), front_port=31_008), effects.LaunchRanks)


def test_a_plan_without_ranks_here_or_with_an_unknown_device_is_refused() -> None:
    assert "no ranks on node-a" in only(bench().start(plan("b0"), fence(1)), EngineFailed).reason
    unknown = only(bench().start(plan("a7"), fence(1)), EngineFailed)
    assert unknown.reason == "node-a/slot-7 is not a device of this node"


def test_commands_that_come_before_the_worker_is_open_are_carried_out_then() -> None:
    fresh = Bench()
    assert fresh.start(plan("a0"), fence(1)) == []
    assert one(fresh.open(), effects.LaunchRanks)


def test_a_snapshot_gives_the_same_machine() -> None:
    worker = bench()
    worker.run(plan("a0"), fence(1))
    twin = Bench(revision=worker.revision, fed=worker.fed)
    twin.worker.restore(worker.worker.snapshot())
    assert twin.stop(plan("a0"), fence(2)) == worker.stop(plan("a0"), fence(2))
    assert twin.worker.snapshot() == worker.worker.snapshot()
