"""The escape hatch: whatever the service is doing, one message brings the baseline in force and holds it there."""

from __future__ import annotations

import pytest

from flexpipe.events.hatch import DeploymentPinned, DeploymentUnpinned, UrgentAnswered
from flexpipe.events.plan import StartPlan, WarmPlan
from flexpipe.events.route import MoveSequences
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_gear, a_plan
from flexpipe.testing.harness import EXECUTOR, ShiftWorld
from simulation.hands import (
    a_scene_of,
    a_serving_scene_of,
    alter,
    answers,
    back,
    cancel,
    downshift,
    downshifts,
    on_slots,
    pin,
    resolve_baseline,
    says,
    unpin,
)
from simulation.scenes import ONE, PP2, TP1, TWO

ELSEWHERE = a_plan("node-b/cpu1")
PHASES = (Phase.PREPARING, Phase.CANARY, Phase.FREEZING, Phase.HANDING_OVER)


def a_shifted_scene() -> ShiftWorld:
    """PP2 serves; the baseline is TP1, resolved by the planner."""
    scene = a_serving_scene_of(TWO)
    resolve_baseline(scene, ONE)
    return scene


def in_force(scene: ShiftWorld, message_id: str) -> None:
    """The baseline serves, pinned, and who asked was told."""
    scene.world.run_until(lambda: "done" in answers(scene, message_id), 120.0)
    scene.settle()
    assert scene.states() == {TP1.id: "active"}
    held = pin(scene)
    assert held is not None
    assert held.downshift is not None
    assert says(scene, message_id) == "baseline tp1 of toy is in force; it is pinned"


def test_a_downshift_pins_first_and_then_forces_the_resolved_baseline() -> None:
    scene = a_shifted_scene()
    asked = downshift(scene)
    in_force(scene, asked)
    assert answers(scene, asked) == ["under-way", "done"]
    pinned = scene.world.post.of(DeploymentPinned)
    assert [(each.by, each.reason) for each in pinned] == [("anna", "trouble")]
    written = [e for e in scene.world.buckets.history if e.bucket in ("routes", "shifts")]
    first_pin = next(i for i, e in enumerate(written) if '"downshift":"' in (e.value or ""))
    first_record = next(i for i, e in enumerate(written) if e.key == "toy.2")
    assert first_pin < first_record


def test_its_canary_is_synthetic_prompts_alone() -> None:
    scene = a_shifted_scene()
    in_force(scene, downshift(scene))
    (record,) = downshifts(scene)
    assert [w.requests for w in scene.world.post.of(WarmPlan) if w.fence.shift == record.shift]
    written = (e.value for e in scene.world.buckets.history if e.bucket == "routes")
    entries = [RouteEntry.model_validate_json(value) for value in written if value]
    shown = [entry for entry in entries if entry.plan(TP1.id) and entry.shift == record.shift]
    assert shown
    assert all(entry.plan(PP2.id).admit == 0 for entry in shown if entry.plan(PP2.id))  # type: ignore[union-attr]


def test_its_trace_begins_at_the_urgent_message() -> None:
    scene = a_shifted_scene()
    said_s = scene.world.now_s
    in_force(scene, downshift(scene))
    (record,) = downshifts(scene)
    mine = {s.name: s for s in scene.world.spans if s.trace_id == record.order.trace_id}
    first, root = mine["downshift"], mine[f"shift toy {record.shift}"]
    assert first.start_s == root.start_s == said_s
    assert first.parent_span_id is None
    assert root.parent_span_id == first.span_id


def test_a_baseline_in_force_is_pinned_and_nothing_else_happens() -> None:
    scene = a_serving_scene_of(ONE)
    asked = downshift(scene)
    scene.world.run_for(1.0)
    assert answers(scene, asked) == ["done"]
    assert pin(scene) is not None
    assert len(scene.records()) == 1


def test_a_baseline_of_the_declared_form_on_other_devices_counts_as_in_force() -> None:
    scene = a_serving_scene_of(a_gear(ELSEWHERE))
    resolve_baseline(scene, ONE)
    asked = downshift(scene)
    scene.world.run_for(1.0)
    assert answers(scene, asked) == ["done"]
    assert scene.states() == {ELSEWHERE.id: "active"}


def test_a_baseline_on_named_devices_is_only_in_force_there() -> None:
    scene = a_serving_scene_of(a_gear(ELSEWHERE), baseline="tp1@node-a/cpu0")
    asked = downshift(scene)
    scene.world.run_until(lambda: "done" in answers(scene, asked), 120.0)
    scene.settle()
    entry = scene.entry()
    assert entry is not None
    assert [str(ref) for ref in entry.plans[0].plan.devices] == ["node-a/cpu0"]


def test_twice_is_once() -> None:
    scene = a_shifted_scene()
    first = downshift(scene)
    scene.world.run_for(1.0)
    second = downshift(scene, by="boris")
    scene.world.run_for(0.1)
    assert answers(scene, second) == ["under-way"]
    in_force(scene, first)
    assert answers(scene, second) == ["under-way", "done"]
    third = downshift(scene)
    scene.world.run_for(1.0)
    assert answers(scene, third) == ["done"]
    assert len(downshifts(scene)) == 1
    assert len(scene.world.post.of(DeploymentPinned)) == 1


def test_a_message_delivered_again_changes_nothing() -> None:
    scene = a_shifted_scene()
    asked = downshift(scene)
    in_force(scene, asked)
    said = next(m for _, _, m in scene.world.post.said if m.type == "DownshiftDeployment")
    records = len(scene.records())
    scene.world.post._seen.clear()  # long after, say
    scene.world._publish("", said)
    scene.world.run_for(1.0)
    assert len(scene.records()) == records
    assert answers(scene, asked)[-1] == "done"


@pytest.mark.parametrize("phase", PHASES)
def test_a_shift_that_goes_elsewhere_is_undone_and_the_baseline_begins(phase: Phase) -> None:
    scene = a_shifted_scene()
    other = scene.order(a_gear(ELSEWHERE, a_plan("node-b/cpu2")))
    scene.reach(other, phase)
    asked = downshift(scene)
    in_force(scene, asked)
    record = scene.record_of(other)
    assert record is not None
    assert record.outcome is Outcome.ROLLED_BACK
    assert record.reason == "downshift by anna: trouble"
    assert len(downshifts(scene)) == 1


@pytest.mark.parametrize("phase", PHASES)
def test_a_shift_that_goes_to_the_baseline_already_is_kept(phase: Phase) -> None:
    scene = a_shifted_scene()
    mine = scene.order(ONE)
    scene.reach(mine, phase)
    asked = downshift(scene)
    in_force(scene, asked)
    record = scene.record_of(mine)
    assert record is not None
    assert record.outcome is Outcome.COMPLETED
    assert downshifts(scene) == []


@pytest.mark.parametrize("phase", [Phase.FREEZING, Phase.HANDING_OVER])
def test_a_forward_only_shift_runs_to_its_outcome_and_then_the_downshift_starts(
    phase: Phase,
) -> None:
    scene = a_shifted_scene()
    other = scene.order(a_gear(ELSEWHERE, a_plan("node-b/cpu2")))
    scene.reach(other, phase)
    alter(scene, "node-b", "cpu0", leaves_at_s=scene.world.now_s + 60.0)
    scene.world.run_for(0.005)
    asked = downshift(scene)
    scene.world.run_for(0.02)
    assert "runs to its outcome" in says(scene, asked)
    in_force(scene, asked)
    record = scene.record_of(other)
    assert record is not None
    assert record.outcome is Outcome.COMPLETED
    assert len(downshifts(scene)) == 1


def test_a_retiring_baseline_is_let_in_again() -> None:
    scene = a_serving_scene_of(ONE)
    resolve_baseline(scene, ONE)
    scene.workers["node-a"].delays.drain_s = 60.0
    scene.reach(scene.order(TWO), Phase.RETIRING)
    starts = len(scene.world.post.of(StartPlan))
    asked = downshift(scene)
    scene.world.run_for(3.0)
    scene.workers["node-a"].delays.drain_s = 1.0
    in_force(scene, asked)
    assert len(scene.world.post.of(StartPlan)) == starts


def test_a_retiring_baseline_is_let_in_again_where_no_planner_ever_resolved_it() -> None:
    scene = a_serving_scene_of(a_gear(ELSEWHERE))
    scene.workers["node-b"].delays.drain_s = 60.0
    scene.reach(scene.order(TWO), Phase.RETIRING)
    starts = len(scene.world.post.of(StartPlan))
    asked = downshift(scene)
    scene.world.run_until(lambda: "done" in answers(scene, asked), 30.0)
    assert scene.states()[ELSEWHERE.id] == "active"
    assert len(scene.world.post.of(StartPlan)) == starts


def test_a_baseline_whose_stop_was_sent_is_waited_for_and_started_anew() -> None:
    scene = a_serving_scene_of(ONE)
    resolve_baseline(scene, ONE)
    scene.workers["node-a"].faults[TP1.id] = {"stop-slow"}
    first = scene.order(TWO)
    scene.reach(first, Phase.RETIRING)
    scene.world.run_for(1.5)
    asked = downshift(scene)
    scene.world.run_for(0.1)
    assert "has given its devices back" in says(scene, asked)
    in_force(scene, asked)
    assert scene.record_of(first).outcome is Outcome.COMPLETED  # type: ignore[union-attr]


def test_another_retiring_plan_on_its_devices_ends_at_once_and_is_waited_for() -> None:
    scene = a_serving_scene_of(a_gear(a_plan("node-a/cpu0", "node-a/cpu1")))
    resolve_baseline(scene, ONE)
    scene.workers["node-a"].faults["*"] = {"drain-silent"}
    other = scene.order(a_gear(a_plan("node-b/cpu0", "node-b/cpu1")))
    scene.reach(other, Phase.RETIRING)
    scene.world.run_for(0.1)
    begun_s = scene.world.now_s
    asked = downshift(scene)
    scene.world.run_for(0.05)
    forced = [move for move in scene.world.post.of(MoveSequences) if move.forced]
    assert forced, "the deadline of the retiring plan ends now"
    in_force(scene, asked)
    record = scene.record_of(other)
    assert record is not None
    assert any("the baseline of toy needs its devices" in note for note in record.notes)
    assert downshifts(scene)[0].accepted_at_s - begun_s < 2.0


def test_devices_that_are_not_given_back_in_time_are_not_waited_for_for_ever() -> None:
    scene = a_scene_of(on_slots(), devices=2)
    wide = a_gear(a_plan("node-a/cpu0", "node-a/cpu1"))
    assert scene.shift(wide).outcome is Outcome.COMPLETED
    far = a_plan("node-b/cpu0", "node-b/cpu1", copy_bytes=16_000_000_000)
    scene.workers["node-a"].faults["*"] = {"drain-silent"}
    scene.reach(scene.order(a_gear(far)), Phase.RETIRING)
    scene.world.kill("node-a")
    asked = downshift(scene)
    scene.world.run_until(lambda: "refused" in answers(scene, asked), 60.0)
    assert "baseline tp1 does not fit" in says(scene, asked)
    assert says(scene, asked).endswith("toy stays pinned")
    scene.heal()
    scene.world.start("node-a")
    scene.world.run_until(lambda: len(downshifts(scene)) == 1, 60.0)
    scene.settle()
    assert list(scene.states().values()) == ["active"]


def test_a_resolved_baseline_that_does_not_fit_any_more_is_resolved_anew() -> None:
    scene = a_shifted_scene()
    alter(scene, "node-a", "cpu0", state="preempted")
    asked = downshift(scene)
    scene.world.run_until(lambda: "done" in answers(scene, asked), 120.0)
    scene.settle()
    entry = scene.entry()
    assert entry is not None
    assert [str(ref) for ref in entry.plans[0].plan.devices] == ["node-a/cpu2"]


def test_without_a_resolved_baseline_the_declared_one_is_resolved_here() -> None:
    scene = a_serving_scene_of(TWO)
    asked = downshift(scene)
    scene.world.run_until(lambda: "done" in answers(scene, asked), 120.0)
    scene.settle()
    entry = scene.entry()
    assert entry is not None
    assert [routed.plan.shape for routed in entry.plans] == ["tp1"]


def test_a_baseline_that_fits_nowhere_is_refused_with_the_constraint_and_the_pin_stays() -> None:
    scene = a_serving_scene_of(TWO, baseline="tp4")
    resolve_baseline(scene, None, notation="tp4")
    asked = downshift(scene)
    scene.world.run_for(0.1)
    assert answers(scene, asked) == ["refused"]
    assert "stage 0 needs 4 devices of one node" in says(scene, asked)
    assert says(scene, asked).endswith("toy stays pinned")
    assert pin(scene) is not None
    assert scene.states() == {PP2.id: "active"}


def test_a_baseline_that_comes_to_fit_begins_by_itself() -> None:
    scene = a_serving_scene_of(TWO, baseline="tp1@node-a/cpu0")
    alter(scene, "node-a", "cpu0", closed="somebody else has reserved it")
    asked = downshift(scene)
    scene.world.run_for(1.0)
    assert answers(scene, asked) == ["refused"]
    assert "somebody else has reserved it" in says(scene, asked)
    back(scene, "node-a", "cpu0")
    scene.world.run_until(lambda: len(downshifts(scene)) == 1, 5.0)
    scene.settle()
    assert PP2.id not in scene.states()


def test_a_downshift_that_rolls_back_is_not_tried_again_until_it_is_asked_for_again() -> None:
    scene = a_shifted_scene()
    for worker in scene.workers.values():
        worker.faults["*"] = {"start-fails"}
    asked = downshift(scene)
    scene.world.run_until(lambda: "refused" in answers(scene, asked), 120.0)
    assert "did not come about: engine of" in says(scene, asked)
    scene.settle()
    tried = len(downshifts(scene))
    scene.world.run_for(300.0)
    assert len(downshifts(scene)) == tried
    assert scene.states() == {PP2.id: "active"}
    scene.heal()
    in_force(scene, downshift(scene))


def test_a_deployment_that_never_started_is_started_at_its_baseline() -> None:
    scene = a_scene_of()
    resolve_baseline(scene, ONE)
    in_force(scene, downshift(scene))
    entry = scene.entry()
    assert entry is not None
    assert not entry.stopped


def test_while_pinned_every_order_is_refused_until_unpin() -> None:
    scene = a_shifted_scene()
    in_force(scene, downshift(scene))
    order_id = scene.order(TWO)
    scene.world.run_for(0.1)
    assert scene.refusal_of(order_id) == "toy is pinned by anna: trouble; unpin it first"
    freed = unpin(scene)
    scene.world.run_for(0.1)
    assert answers(scene, freed) == ["done"]
    assert pin(scene) is None
    assert [each.by for each in scene.world.post.of(DeploymentUnpinned)] == ["anna"]
    assert scene.shift(TWO).outcome is Outcome.COMPLETED


def test_unpinning_what_is_not_pinned_is_done_already() -> None:
    scene = a_serving_scene_of(ONE)
    asked = unpin(scene)
    scene.world.run_for(0.1)
    assert answers(scene, asked) == ["done"]
    assert says(scene, asked) == "toy is not pinned"
    assert scene.world.post.of(DeploymentUnpinned) == ()


def test_pinned_by_hand_alone_nothing_is_brought_in_force() -> None:
    scene = a_serving_scene_of(ONE)
    entry = scene.entry()
    assert entry is not None
    asked = downshift(scene)
    scene.world.run_for(0.1)
    assert answers(scene, asked) == ["done"]
    held = pin(scene)
    assert held is not None
    by_hand = entry.model_copy(update={"pin": held.model_copy(update={"downshift": None})})
    scene.world.write("routes", "toy", by_hand.canonical_json())
    scene.world.run_for(0.1)
    scene.kill_rank("node-a", TP1.id)
    scene.world.run_for(30.0)
    assert scene.states() == {}


def test_a_pinned_baseline_that_is_lost_is_brought_back_by_itself() -> None:
    scene = a_shifted_scene()
    in_force(scene, downshift(scene))
    scene.kill_rank("node-a", TP1.id)
    scene.world.run_for(0.2)
    assert scene.records()[2].outcome is Outcome.ABANDONED
    scene.world.run_for(30.0)
    scene.settle()
    assert scene.states() == {TP1.id: "active"}
    record = scene.records()[3]
    assert record.order.trigger == "the baseline that anna pinned is brought back: trouble"
    assert record.order.trace_id != scene.records()[1].order.trace_id


def test_a_pinned_baseline_whose_devices_left_comes_back_with_them() -> None:
    scene = a_serving_scene_of(TWO, baseline="tp1@node-a/cpu0")
    asked = downshift(scene)
    scene.world.run_until(lambda: "done" in answers(scene, asked), 60.0)
    scene.settle()
    alter(scene, "node-a", "cpu0", state="preempted")
    scene.world.run_for(60.0)
    scene.settle()
    assert scene.states() == {}
    back(scene, "node-a", "cpu0")
    scene.world.run_for(30.0)
    scene.settle()
    assert list(scene.states().values()) == ["active"]
    assert pin(scene) is not None


def test_a_message_older_than_ten_minutes_is_refused_aloud() -> None:
    scene = a_shifted_scene()
    scene.world.kill(EXECUTOR)
    asked = downshift(scene)
    scene.world.run_for(601.0)
    scene.world.start(EXECUTOR)
    scene.world.run_for(1.0)
    assert answers(scene, asked) == ["refused"]
    assert "601 s ago; an urgent command counts for 600 s" in says(scene, asked)
    assert pin(scene) is None


def test_a_deployment_that_nobody_declared_is_refused() -> None:
    scene = a_scene_of()
    scene.world.write("deployments", "toy", None)
    scene.world.run_for(0.1)
    for asked in (downshift(scene), cancel(scene), unpin(scene)):
        scene.world.run_for(0.1)
        assert answers(scene, asked) == ["refused"]
        assert says(scene, asked) == "deployment toy is not declared"
    assert all(each.deployment == "toy" for each in scene.world.post.of(UrgentAnswered))


# -- cancel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_a_shift_in_flight_is_undone_by_cancel_and_nothing_is_pinned(phase: Phase) -> None:
    scene = a_shifted_scene()
    order_id = scene.order(ONE)
    scene.reach(order_id, phase)
    asked = cancel(scene)
    record = scene.closed(order_id)
    assert (record.outcome, record.reason) == (
        Outcome.ROLLED_BACK,
        "cancelled by anna: a mistake",
    )
    assert answers(scene, asked) == ["under-way"]
    scene.settle()
    assert scene.states() == {PP2.id: "active"}
    assert pin(scene) is None


def test_what_has_committed_is_not_cancelled() -> None:
    scene = a_shifted_scene()
    order_id = scene.order(ONE)
    scene.reach(order_id, Phase.RETIRING)
    asked = cancel(scene)
    scene.world.run_for(0.1)
    assert answers(scene, asked) == ["refused"]
    assert scene.closed(order_id).outcome is Outcome.COMPLETED


def test_a_forward_only_shift_is_not_cancelled() -> None:
    scene = a_shifted_scene()
    order_id = scene.order(ONE)
    scene.reach(order_id, Phase.HANDING_OVER)
    alter(scene, "node-b", "cpu0", leaves_at_s=scene.world.now_s + 60.0)
    scene.world.run_for(0.005)
    asked = cancel(scene)
    scene.world.run_for(0.05)
    assert answers(scene, asked) == ["refused"]
    assert "forward only" in says(scene, asked)
    assert scene.closed(order_id).outcome is Outcome.COMPLETED


def test_a_cancelled_downshift_is_given_up_and_the_pin_stays() -> None:
    scene = a_shifted_scene()
    first = downshift(scene)
    scene.world.run_for(1.0)
    asked = cancel(scene)
    scene.world.run_for(60.0)
    scene.settle()
    assert answers(scene, first) == ["under-way", "refused"]
    assert answers(scene, asked) == ["under-way"]
    assert scene.states() == {PP2.id: "active"}
    held = pin(scene)
    assert held is not None
    assert held.downshift is None
    in_force(scene, downshift(scene))
