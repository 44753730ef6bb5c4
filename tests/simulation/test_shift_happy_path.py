"""A smooth shift, seen through the whole protocol: executor, workers and routers on one virtual clock."""

from __future__ import annotations

from flexpipe.events.plan import DrainPlan, GatePlan, StartPlan, StopPlan
from flexpipe.events.route import MoveSequences
from flexpipe.events.shift import PlanRetired, ShiftCompleted, ShiftOrdered, ShiftPhaseChanged
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_deployment, a_gear, a_node, a_plan
from flexpipe.testing.harness import ShiftWorld
from simulation.scenes import BESIDE, NOTHING, ONE, PP2, TP1, TWO, a_scene, a_serving_scene, phases


def test_the_first_start_is_a_shift_from_the_empty_gear_with_synthetic_prompts_only() -> None:
    scene = a_scene()
    record = scene.shift(ONE)
    assert record.outcome is Outcome.COMPLETED
    assert phases(record) == [
        "reserving",
        "preparing",
        "canary",
        "freezing",
        "committing",
        "releasing",
        "closed",
    ]
    assert record.source.id == "g-empty"
    assert scene.states() == {TP1.id: "active"}
    scene.settle()


def test_a_shift_there_and_back_moves_every_stream_and_leaves_nothing_behind() -> None:
    scene = a_serving_scene()
    there = scene.shift(TWO)
    assert phases(there) == [
        "reserving",
        "preparing",
        "canary",
        "freezing",
        "handing-over",
        "committing",
        "retiring",
        "releasing",
        "closed",
    ]
    assert len(there.moved) == 8
    assert {moved.to_plan for moved in there.moved} == {PP2.id}
    scene.settle()
    back = scene.shift(ONE)
    assert back.outcome is Outcome.COMPLETED
    assert scene.states() == {TP1.id: "active"}
    scene.settle()


def test_old_and_new_plan_of_one_shift_may_share_a_device() -> None:
    scene = a_serving_scene()
    order_id = scene.order(a_gear(BESIDE))
    scene.reach(order_id, Phase.CANARY)
    assert set(scene.reservations()["node-a.cpu0"]) == {TP1.id, BESIDE.id}
    assert scene.closed(order_id).outcome is Outcome.COMPLETED
    scene.settle()


def test_a_stop_is_a_shift_to_the_empty_gear_that_lets_every_stream_finish() -> None:
    scene = a_serving_scene()
    record = scene.shift(NOTHING)
    assert "canary" not in phases(record)
    moves = [each for each in scene.world.post.of(MoveSequences) if each.fence.shift == 2]
    assert all(each.finish_all and each.to_plans == () for each in moves)
    entry = scene.entry()
    assert entry is not None
    assert entry.stopped
    assert entry.plans == ()
    scene.settle()
    scene.shift(ONE)
    entry = scene.entry()
    assert entry is not None
    assert not entry.stopped


def test_a_plan_in_both_gears_is_never_frozen_and_only_its_share_changes() -> None:
    scene = a_serving_scene()
    order_id = scene.order(a_gear(TP1, PP2, weights=(1.0, 3.0)))
    seen = set()
    while scene.phase(order_id) is not Phase.CLOSED:
        scene.world.run_for(0.01)
        seen.add(scene.states()[TP1.id])
    assert seen == {"active"}
    entry = scene.entry()
    assert entry is not None
    assert {routed.plan.id: routed.admit for routed in entry.plans} == {TP1.id: 1.0, PP2.id: 3.0}
    scene.settle()
    record = scene.shift(a_gear(TP1, PP2, weights=(1.0, 1.0)))
    assert record.outcome is Outcome.COMPLETED
    scene.settle()


def test_the_canary_takes_its_share_of_new_requests_and_the_old_plan_keeps_its_own() -> None:
    scene = a_serving_scene()
    order_id = scene.order(TWO)
    scene.reach(order_id, Phase.CANARY)
    entry = scene.entry()
    assert entry is not None
    admits = {routed.plan.id: routed.admit for routed in entry.plans}
    assert admits[TP1.id] == 1.0
    assert abs(admits[PP2.id] / sum(admits.values()) - entry.policy.canary_share) < 1e-5


def test_synthetic_prompts_fill_up_a_canary_that_has_too_few_requests() -> None:
    scene = a_serving_scene()
    for router in scene.routers.values():
        router.canary_rate = 0
    record = scene.shift(TWO)
    assert record.outcome is Outcome.COMPLETED
    canary = next(timing for timing in record.timings if timing.phase is Phase.CANARY)
    assert canary.end_s is not None
    assert 1.0 < canary.end_s - canary.start_s < 2.0


def test_every_command_of_a_shift_carries_a_step_higher_than_those_before() -> None:
    scene = a_serving_scene()
    scene.shift(TWO)
    commands: list[int] = []
    post = scene.world.post
    for fences in (
        {each.fence for each in post.of(StartPlan)},
        {each.fence for each in post.of(GatePlan)},
        {each.fence for each in post.of(MoveSequences)},
        {each.fence for each in post.of(DrainPlan)},
        {each.fence for each in post.of(StopPlan)},
    ):
        commands += sorted(fence.step for fence in fences if fence.shift == 2)
    assert len(set(commands)) == len(commands)
    starts = [each.fence.step for each in scene.world.post.of(StartPlan) if each.fence.shift == 2]
    stops = [each.fence.step for each in scene.world.post.of(StopPlan) if each.fence.shift == 2]
    assert max(starts) < min(stops)


def test_a_shift_says_what_happens_in_the_order_in_which_it_happens() -> None:
    scene = a_serving_scene()
    scene.shift(TWO)
    changed = [e for e in scene.world.post.of(ShiftPhaseChanged) if e.shift == 2]
    assert [event.previous for event in changed[1:]] == [event.phase for event in changed[:-1]]
    assert changed[-1].phase is Phase.CLOSED
    assert [event.shift for event in scene.world.post.of(ShiftOrdered)] == [1, 2]
    completed = scene.world.post.of(ShiftCompleted)[-1]
    assert completed.gear == TWO.id
    assert len(completed.moved) == 8
    assert [(event.plan, event.shift) for event in scene.world.post.of(PlanRetired)] == [
        (TP1.id, 2)
    ]


def test_the_closed_shift_leaves_one_trace_with_a_span_a_phase_under_the_root() -> None:
    scene = a_serving_scene()
    scene.world.spans.clear()
    record = scene.shift(TWO)
    root, *children = scene.world.spans
    assert {span.trace_id for span in scene.world.spans} == {record.order.trace_id}
    assert root.start_s == record.order.ordered_at_s
    assert root.end_s == record.closed_at_s
    assert [child.name for child in children] == phases(record)[:-1]
    assert {child.parent_span_id for child in children} == {root.span_id}
    starts = [m for _, _, m in scene.world.post.said if m.type == "StartPlan"]
    preparing = children[1].span_id
    assert starts[-1].traceparent == f"00-{record.order.trace_id}-{preparing}-01"


def test_two_deployments_shift_side_by_side() -> None:
    names = ("toy", "other")
    plans = {
        "toy": (a_plan("node-a/cpu0"), a_plan("node-a/cpu1")),
        "other": (a_plan("node-a/cpu2", model="other"), a_plan("node-b/cpu0", model="other")),
    }
    scene = ShiftWorld(
        nodes=(a_node("node-a"), a_node("node-b")), deployments=map(a_deployment, names)
    )
    for step in (0, 1, 0):
        orders = [scene.order(a_gear(plans[name][step]), name) for name in names]
        records = [scene.closed(order_id) for order_id in orders]
        assert [record.outcome for record in records] == [Outcome.COMPLETED] * 2
        assert records[0].timings[1].start_s == records[1].timings[1].start_s
        scene.settle()


def test_plans_that_start_on_one_node_get_ports_of_their_own() -> None:
    scene = a_scene()
    gear = a_gear(a_plan("node-a/cpu0"), a_plan("node-a/cpu1"), a_plan("node-a/cpu2"))
    scene.shift(gear)
    entry = scene.entry()
    assert entry is not None
    fronts = sorted(routed.front for routed in entry.plans)
    assert fronts == [f"http://127.0.0.1:{31_000 + 8 * index}" for index in range(3)]


def test_a_new_shift_may_begin_while_an_old_plan_is_still_retiring() -> None:
    scene = a_serving_scene()
    scene.workers["node-a"].delays.drain_s = 5.0
    first = scene.order(TWO)
    scene.reach(first, Phase.RETIRING)
    third = a_gear(a_plan("node-b/cpu1"))
    second = scene.order(third)
    scene.reach(second, Phase.PREPARING)
    assert scene.phase(first) is Phase.RETIRING
    assert scene.closed(second).outcome is Outcome.COMPLETED
    assert scene.closed(first).outcome is Outcome.COMPLETED
    scene.settle()


def test_a_retiring_plan_that_is_wanted_again_is_let_in_again_instead_of_started() -> None:
    scene = a_serving_scene()
    scene.workers["node-a"].delays.drain_s = 60.0
    first = scene.order(TWO)
    scene.reach(first, Phase.RETIRING)
    starts = len(scene.world.post.of(StartPlan))
    second = scene.order(ONE)
    scene.reach(second, Phase.RETIRING)
    assert len(scene.world.post.of(StartPlan)) == starts
    assert scene.states() == {TP1.id: "active", PP2.id: "retiring"}
    scene.workers["node-a"].delays.drain_s = 1.0
    assert scene.closed(second).outcome is Outcome.COMPLETED
    assert scene.closed(first).outcome is Outcome.COMPLETED
    retired = {(event.plan, event.shift) for event in scene.world.post.of(PlanRetired)}
    assert retired == {(PP2.id, 3)}
    scene.settle()
