"""Who is alive, in virtual time: agent and monitor on a world, with silence, outages, evidence and restarts."""

from __future__ import annotations

import pytest

from flexpipe.events.fleet import SampleAsked
from flexpipe.fragments.inputs import NodesGiven
from flexpipe.kernel.machine import Span
from flexpipe.model.fence import Fence
from flexpipe.model.route import PlanState, RoutedPlan, RouteEntry
from flexpipe.testing.builders import QUICK_POLICY, a_deployment, a_plan, device
from flexpipe.testing.fleets import twenty_seven, twenty_seven_spec
from flexpipe.testing.world import World
from flexpipe.testing.world_agents import AGENT, MONITOR, FleetWorld

LOST_WITHIN_S = 2.0


def a_fleet() -> FleetWorld:
    scene = FleetWorld(World(), twenty_seven_spec())
    scene.ready()
    scene.world.run_for(3.0)
    return scene


def state(scene: FleetWorld, name: str) -> str:
    node = scene.fleet.node(name)
    assert node is not None
    return node.state


def blocks_of(scene: FleetWorld, domain: str) -> dict[str, tuple[str, ...]]:
    return {
        block.id: tuple(map(str, block.devices))
        for block in scene.fleet.blocks
        if block.id.split(".")[0] == domain
    }


def route_to(*devices: str) -> RouteEntry:
    plan = a_plan(*devices)
    fence = Fence(deployment="toy", term=1, shift=1, step=1)
    routed = RoutedPlan(plan=plan, front="http://x", admit=1.0, state=PlanState.ACTIVE, fence=fence)
    return RouteEntry(
        deployment="toy",
        model=a_deployment().model,
        policy=QUICK_POLICY,
        term=1,
        shift=1,
        plans=(routed,),
    )


def test_a_fleet_that_starts_is_the_one_that_was_declared() -> None:
    scene = a_fleet()
    assert scene.fleet.blocks == twenty_seven().blocks
    assert [node.address for node in scene.fleet.nodes] == ["127.0.0.1"] * 9
    assert len({node.first_port for node in scene.fleet.nodes}) == 9


def test_nothing_is_written_while_nothing_changes() -> None:
    scene = a_fleet()
    revision = scene.fleet.revision
    scene.world.run_for(60.0)
    assert scene.fleet.revision == revision


def test_a_node_that_falls_silent_is_lost_within_two_seconds() -> None:
    scene = a_fleet()
    scene.silent_agents.add("a2")
    scene.silent_workers.add("a2")
    scene.world.run_until(lambda: state(scene, "a2") == "lost", 10.0)
    said = scene.changes[-1]
    assert 1.75 <= said.at_s - said.seen_s <= LOST_WITHIN_S
    assert said.urgent
    assert "all 4 devices of a2 left (node a2 is lost)" in said.sentence
    assert {change.what for change in said.changes} == {"left"}
    assert scene.fleet.device(device("a2/g0")) is None
    assert blocks_of(scene, "a")["a"] == tuple(
        f"{node}/g{i}" for node in ("a1", "a3") for i in range(4)
    )


def test_a_trace_begins_with_the_last_sign_of_what_was() -> None:
    scene = a_fleet()
    scene.alter("a2", "fail")
    scene.world.run_until(lambda: state(scene, "a2") == "lost", 10.0)
    said = scene.changes[-1]
    span = next(s for s in scene.world.spans if s.span_id == said.span_id)
    assert isinstance(span, Span)
    assert (span.trace_id, span.name, span.start_s) == (said.trace_id, "fleet changed", said.seen_s)
    assert span.attributes["fleet.revision"] == said.revision


def test_an_agent_that_stops_for_less_than_the_limit_costs_nothing() -> None:
    scene = a_fleet()
    revision = scene.fleet.revision
    scene.silent_agents.add("a2")
    scene.world.run_for(0.9)
    scene.silent_agents.clear()
    scene.world.run_for(5.0)
    assert scene.fleet.revision == revision


def test_a_node_whose_worker_still_beats_is_unobserved_and_takes_nothing_new() -> None:
    scene = a_fleet()
    scene.silent_agents.add("a2")
    scene.world.run_until(lambda: state(scene, "a2") != "observed", 10.0)
    assert state(scene, "a2") == "unobserved"
    assert scene.fleet.device(device("a2/g0")) is not None, "plans stay where they are"
    assert scene.fleet.closed(device("a2/g0")) == "nobody observes node a2"
    assert "a.4-1" not in blocks_of(scene, "a")
    scene.silent_agents.clear()
    scene.world.run_until(lambda: state(scene, "a2") == "observed", 10.0)
    assert scene.fleet.blocks == twenty_seven().blocks


def test_a_node_whose_engines_answer_routers_is_unobserved_until_they_stop() -> None:
    scene = a_fleet()
    entry = route_to("a2/g0", "a2/g1")
    scene.world.write("routes", "toy", entry.canonical_json())
    scene.answered = (entry.plans[0].plan.id,)
    scene.silent_agents.add("a2")
    scene.silent_workers.add("a2")
    scene.world.run_for(5.0)
    assert state(scene, "a2") == "unobserved"
    scene.answered = ()
    scene.world.run_for(1.5)
    assert state(scene, "a2") == "lost"


def test_tokens_of_another_node_s_engines_are_no_evidence() -> None:
    scene = a_fleet()
    entry = route_to("a3/g0", "a3/g1")
    scene.world.write("routes", "toy", entry.canonical_json())
    scene.answered = (entry.plans[0].plan.id,)
    scene.silent_agents.add("a2")
    scene.silent_workers.add("a2")
    scene.world.run_for(2.5)
    assert state(scene, "a2") == "lost"


@pytest.mark.parametrize("away_s", [1.5, 2.0, 30.0])
def test_an_outage_of_the_bus_costs_no_node(away_s: float) -> None:
    scene = a_fleet()
    revision = scene.fleet.revision
    scene.outage = True
    scene.world.run_for(away_s)
    scene.outage = False
    scene.world.run_for(10.0)
    assert scene.fleet.revision == revision


def test_a_node_that_died_during_an_outage_is_lost_one_silence_after_it() -> None:
    scene = a_fleet()
    scene.outage = True
    scene.silent_agents.add("b1")
    scene.silent_workers.add("b1")
    scene.world.run_for(10.0)
    scene.outage = False
    back_s = scene.world.now_s
    scene.world.run_until(lambda: state(scene, "b1") == "lost", 10.0)
    assert 1.75 <= scene.world.now_s - back_s <= 2.5


def test_a_monitor_that_stood_still_judges_nobody_by_what_it_did_not_hear() -> None:
    scene = a_fleet()
    revision = scene.fleet.revision
    machine = scene.world.mounts[MONITOR].machine
    scene.world.mounts[MONITOR].machine = None
    scene.world.run_for(20.0)
    scene.world.mounts[MONITOR].machine = machine
    scene.world.run_for(10.0)
    assert scene.fleet.revision == revision


def test_a_failed_node_says_nothing_until_it_is_restored() -> None:
    scene = a_fleet()
    scene.alter("b2", "fail")
    scene.world.run_until(lambda: state(scene, "b2") == "lost", 10.0)
    scene.alter("b2", "preempt", "g0")
    scene.world.run_for(5.0)
    assert state(scene, "b2") == "lost"
    scene.alter("b2", "restore")
    scene.world.run_until(lambda: state(scene, "b2") == "observed", 10.0)
    scene.world.run_for(1.0)
    assert scene.fleet.blocks == twenty_seven().blocks
    assert any(
        change.what in ("joined", "opened")
        for said in scene.changes[-2:]
        for change in said.changes
    )


def test_a_lost_node_that_beats_again_is_back_with_its_full_picture() -> None:
    scene = a_fleet()
    scene.silent_agents.add("b2")
    scene.silent_workers.add("b2")
    scene.world.run_until(lambda: state(scene, "b2") == "lost", 10.0)
    scene.silent_agents.clear()
    scene.silent_workers.clear()
    scene.world.run_until(lambda: state(scene, "b2") == "observed", 10.0)
    assert any(asked.node == "b2" for asked in scene.world.post.of(SampleAsked))
    scene.world.run_for(1.0)
    assert scene.fleet.blocks == twenty_seven().blocks


def test_a_silent_worker_closes_its_node_and_keeps_it_observed() -> None:
    scene = a_fleet()
    scene.silent_workers.add("c1")
    scene.world.run_until(lambda: scene.fleet.closed(device("c1/g0")), 10.0)
    assert scene.fleet.closed(device("c1/g0")) == "the worker of node c1 is silent"
    assert state(scene, "c1") == "observed"
    scene.silent_workers.clear()
    scene.world.run_until(lambda: scene.fleet.closed(device("c1/g0")) is None, 10.0)


def test_a_monitor_started_anew_takes_over_what_it_finds() -> None:
    scene = a_fleet()
    revision = scene.fleet.revision
    scene.world.kill(MONITOR)
    scene.world.run_for(5.0)
    scene.world.start(MONITOR)
    scene.world.run_for(10.0)
    assert scene.fleet.revision == revision, "nothing has changed, nothing is written"
    assert scene.changes[-1].sentence.startswith("The monitor was started anew")
    scene.alter("a2", "preempt", "g1")
    scene.world.run_until(lambda: scene.fleet.device(device("a2/g1")) is None, 5.0)
    assert scene.fleet.revision == revision + 1
    assert set(blocks_of(scene, "a")["a.8-0"]) == {
        f"{node}/g{i}" for node in ("a1", "a3") for i in range(4)
    }


def test_a_node_that_a_new_monitor_never_hears_becomes_lost() -> None:
    scene = a_fleet()
    scene.world.kill(MONITOR)
    scene.silent_agents.add("a1")
    scene.silent_workers.add("a1")
    scene.world.run_for(5.0)
    started_s = scene.world.now_s
    scene.world.start(MONITOR)
    scene.world.run_until(lambda: state(scene, "a1") == "lost", 10.0)
    assert scene.world.now_s - started_s >= 1.75, "it had a full silence limit"
    assert [node.state for node in scene.fleet.nodes].count("lost") == 1
    assert scene.fleet.node("a2") is not None


def test_what_happened_while_the_monitor_was_away_is_one_revision() -> None:
    scene = a_fleet()
    scene.world.kill(MONITOR)
    scene.alter("a2", "preempt")
    scene.alter("b1", "degrade", "g0", factor=0.2)
    scene.world.run_for(5.0)
    revision = scene.fleet.revision
    scene.world.start(MONITOR)
    scene.world.run_for(5.0)
    assert scene.fleet.revision == revision + 1
    assert scene.fleet.device(device("a2/g3")) is None
    assert [b.kind for b in scene.fleet.blocks if b.id == "b1/g0"] == ["network"]


def test_a_rack_that_is_taken_at_once_is_one_revision() -> None:
    scene = a_fleet()
    revision = scene.fleet.revision
    for name in ("a1", "a2", "a3"):
        scene.alter(name, "preempt", "g0")
    scene.world.run_for(2.0)
    assert scene.fleet.revision == revision + 1
    assert [str(change.device) for change in scene.changes[-1].changes] == [
        "a1/g0",
        "a2/g0",
        "a3/g0",
    ]


def test_an_agent_started_anew_without_memory_is_the_same_node() -> None:
    scene = a_fleet()
    revision = scene.fleet.revision
    scene.world.kill(AGENT)
    scene.world.run_for(0.3)
    scene.world.start(AGENT)
    scene.world.feed(AGENT, NodesGiven(nodes=scene.spec.nodes))
    scene.world.run_for(10.0)
    assert scene.fleet.revision == revision


def test_an_agent_that_was_away_long_enough_to_be_missed_opens_its_nodes_again() -> None:
    """Its full sample comes before its first beat, and tells nothing new."""
    scene = a_fleet()
    scene.world.kill(AGENT)
    scene.world.run_until(lambda: state(scene, "a1") == "unobserved", 5.0)
    scene.world.start(AGENT)
    scene.world.feed(AGENT, NodesGiven(nodes=scene.spec.nodes))
    scene.world.run_until(lambda: scene.fleet.closed(device("a1/g0")) is None, 5.0)
    assert {node.state for node in scene.fleet.nodes} == {"observed"}
