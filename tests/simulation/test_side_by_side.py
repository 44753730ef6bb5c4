"""Several deployments shift at the same time: a device goes to one of them, and nobody waits for a neighbour."""

from __future__ import annotations

from flexpipe.events.hatch import DownshiftDeployment
from flexpipe.events.plan import StartPlan
from flexpipe.model.plan import Plan
from flexpipe.model.shift import Outcome, Phase
from flexpipe.testing.builders import a_gear, a_plan
from flexpipe.testing.harness import EXECUTOR, ShiftWorld
from simulation.hands import a_scene_of, lose_node, on_slots, resolve_baseline


def toy(*devices: str) -> Plan:
    return a_plan(*devices)


def other(*devices: str) -> Plan:
    return a_plan(*devices, model="other")


def both_serving() -> ShiftWorld:
    """`toy` on node-a, `other` on node-b."""
    scene = a_scene_of(on_slots("toy"), on_slots("other"))
    first, second = (
        scene.order(a_gear(toy("node-a/cpu0"))),
        scene.order(a_gear(other("node-b/cpu0")), "other"),
    )
    assert scene.closed(first).outcome is Outcome.COMPLETED
    assert scene.closed(second).outcome is Outcome.COMPLETED
    scene.settle()
    return scene


def test_two_deployments_shift_at_the_same_time() -> None:
    scene = both_serving()
    mine = scene.order(a_gear(toy("node-a/cpu1", "node-b/cpu1")))
    theirs = scene.order(a_gear(other("node-b/cpu2", "node-a/cpu2")), "other")
    scene.reach(mine, Phase.CANARY)
    assert scene.phase(theirs) in (Phase.PREPARING, Phase.CANARY)
    one, two = scene.closed(mine), scene.closed(theirs)
    assert (one.outcome, two.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)
    assert one.accepted_at_s < (two.committed_at_s or 0.0)
    assert two.accepted_at_s < (one.committed_at_s or 0.0)
    scene.settle()


def test_the_same_with_the_executor_killed_in_the_middle() -> None:
    scene = both_serving()
    mine = scene.order(a_gear(toy("node-a/cpu1")))
    theirs = scene.order(a_gear(other("node-b/cpu1")), "other")
    scene.reach(mine, Phase.CANARY)
    scene.world.kill(EXECUTOR)
    scene.world.start(EXECUTOR)
    assert scene.closed(mine).outcome is Outcome.COMPLETED
    assert scene.closed(theirs).outcome is Outcome.COMPLETED
    scene.settle()


def test_of_two_that_want_one_device_the_second_is_told_who_has_it() -> None:
    scene = both_serving()
    mine = scene.order(a_gear(toy("node-a/cpu1", "node-b/cpu1")))
    theirs = scene.order(a_gear(other("node-b/cpu1", "node-b/cpu2")), "other")
    winner, loser = scene.closed(mine), scene.closed(theirs)
    assert winner.outcome is Outcome.COMPLETED
    assert loser.outcome is Outcome.ROLLED_BACK
    plan = winner.order.target.plans[0].id
    assert loser.reason == f"node-b/cpu1 is reserved by toy ({plan}, shift {winner.shift})"
    started = [start for start in scene.world.post.of(StartPlan) if start.fence.shift == 2]
    assert {start.fence.deployment for start in started} == {"toy"}
    scene.settle()
    assert set(scene.states("other").values()) == {"active"}


def test_what_the_winner_gave_back_the_loser_can_have() -> None:
    scene = both_serving()
    mine = scene.order(a_gear(toy("node-b/cpu1")))
    assert scene.closed(mine).outcome is Outcome.COMPLETED
    assert scene.shift(a_gear(toy("node-a/cpu0"))).outcome is Outcome.COMPLETED
    record = scene.shift(a_gear(other("node-b/cpu1")), "other")
    assert record.outcome is Outcome.COMPLETED
    scene.settle()


def test_the_slot_is_free_at_commit_while_the_neighbour_waits_for_what_retires() -> None:
    scene = both_serving()
    scene.workers["node-a"].delays.drain_s = 5.0
    mine = scene.order(a_gear(toy("node-a/cpu1")))
    scene.reach(mine, Phase.RETIRING)
    early = scene.shift(a_gear(other("node-a/cpu0")), "other")
    assert early.outcome is Outcome.ROLLED_BACK
    assert "node-a/cpu0 is reserved by toy" in (early.reason or "")
    again = scene.order(a_gear(toy("node-a/cpu2")))
    scene.reach(again, Phase.PREPARING)
    assert scene.phase(mine) is Phase.RETIRING
    assert scene.closed(again).outcome is Outcome.COMPLETED
    assert scene.closed(mine).outcome is Outcome.COMPLETED
    assert scene.shift(a_gear(other("node-a/cpu0")), "other").outcome is Outcome.COMPLETED
    scene.settle()


def test_one_deployment_s_trouble_is_not_the_other_s() -> None:
    scene = both_serving()
    mine = scene.order(a_gear(toy("node-a/cpu1")))
    theirs = scene.order(a_gear(other("node-b/cpu1")), "other")
    scene.reach(mine, Phase.CANARY)
    lose_node(scene, "node-b")
    assert scene.closed(mine).outcome is Outcome.COMPLETED
    record = scene.closed(theirs)
    assert record.outcome is Outcome.ABANDONED
    assert scene.states("other") == {}
    scene.settle()


def test_a_downshift_ends_the_deadline_of_a_neighbour_s_retiring_plan() -> None:
    scene = both_serving()
    scene.shift(a_gear(toy("node-a/cpu1", "node-a/cpu2")))
    scene.workers["node-b"].faults["*"] = {"drain-silent"}
    theirs = scene.order(a_gear(other("node-b/cpu1")), "other")
    scene.reach(theirs, Phase.RETIRING)
    baseline = toy("node-b/cpu0")
    resolve_baseline(scene, a_gear(baseline))
    begun_s = scene.world.now_s
    scene.world.say(DownshiftDeployment(deployment="toy"))
    scene.world.run_until(lambda: scene.states().get(baseline.id) == "active", 30.0)
    assert scene.world.now_s - begun_s < 8.0, "the neighbour's deadline is not waited for"
    record = scene.record_of(theirs)
    assert record is not None
    assert any("baseline of toy needs its devices" in note for note in record.notes)
    scene.settle()


def test_a_downshift_takes_nothing_that_a_neighbour_serves_with() -> None:
    scene = both_serving()
    scene.shift(a_gear(toy("node-a/cpu1", "node-a/cpu2")))
    resolve_baseline(scene, a_gear(toy("node-b/cpu0")))
    scene.world.say(DownshiftDeployment(deployment="toy"))
    scene.world.run_for(30.0)
    scene.settle()
    assert set(scene.states("other").values()) == {"active"}
    entry = scene.entry()
    assert entry is not None
    (routed,) = entry.plans
    assert routed.plan.shape == "tp1"
    assert str(routed.plan.devices[0]) != "node-b/cpu0", "resolved anew, elsewhere"
