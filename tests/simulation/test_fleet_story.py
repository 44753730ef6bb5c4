"""A fleet in trouble: the bucket tells the truth in the end, whenever the monitor died, and a replay says the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexpipe.events.catalog import parse
from flexpipe.events.fleet import NodeSampled
from flexpipe.fragments.blocks import with_blocks
from flexpipe.fragments.monitor import Monitor
from flexpipe.fragments.sampling import Agent
from flexpipe.model.fleet import Fleet
from flexpipe.testing.world_agents import AGENT, MONITOR, FleetWorld
from simulation.fleet_story import play

TESTS = Path(__file__).parents[1]


def told_last(scene: FleetWorld) -> dict[str, dict[str, str]]:
    """Node → device → state, as agents told it, delta upon delta."""
    states: dict[str, dict[str, str]] = {}
    for _, _, message in scene.world.post.said:
        sample = parse(message.type, message.message)
        if isinstance(sample, NodeSampled):
            states.setdefault(sample.node, {}).update(
                {device.device: device.state for device in sample.devices}
            )
    return states


def is_true(scene: FleetWorld) -> None:
    """The bucket says what agents say, failed nodes are lost, and blocks are those of what is in it."""
    fleet = scene.fleet
    agent = scene.world.mounts[AGENT].machine
    assert isinstance(agent, Agent)
    assert {node.node for node in fleet.nodes if node.state == "lost"} == set(agent.failed)
    told = told_last(scene)
    for node in fleet.nodes:
        if node.state == "observed":
            assert {d.device: d.state for d in node.devices} == told[node.node]
    fabrics = {node.node: node.fabrics for node in scene.spec.nodes}
    assert Fleet(nodes=with_blocks(fleet.nodes, fabrics)) == fleet


@pytest.mark.parametrize("seed", range(8))
def test_the_bucket_tells_the_truth_in_the_end(seed: int) -> None:
    is_true(play(seed))


@pytest.mark.parametrize("kill_after", range(1, 30, 3))
def test_a_monitor_may_die_after_any_effect(kill_after: int) -> None:
    scene = play(5, kill_after=kill_after)
    is_true(scene)
    assert len(scene.world.mounts[MONITOR].lives) == 2
    said = {changed.revision for changed in scene.changes}
    assert scene.fleet.revision in said, "the newest revision was told of"


def test_revisions_go_up_by_one_and_each_is_told_of() -> None:
    revisions = [changed.revision for changed in play(7).changes]
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))


def test_a_replay_of_each_life_gives_the_same_effects() -> None:
    scene = play(11, kill_after=20)
    for name, fresh in ((AGENT, Agent), (MONITOR, Monitor)):
        for life in scene.world.mounts[name].lives:
            machine = fresh()
            again = [machine.handle(line.now_s, line.event).canonical_json() for line in life]
            assert again == [line.effects for line in life]


def test_a_machine_restored_on_the_way_goes_on_as_before() -> None:
    scene = play(11)
    for name, fresh in ((AGENT, Agent), (MONITOR, Monitor)):
        (life,) = scene.world.mounts[name].lives
        machine = fresh()
        for line in life:
            restored = fresh()
            restored.restore(machine.snapshot())
            machine = restored
            assert machine.handle(line.now_s, line.event).canonical_json() == line.effects


def test_the_hash_seed_of_the_process_changes_nothing() -> None:
    printed = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)}
        run = subprocess.run(
            [sys.executable, "-m", "simulation.fleet_story"],
            env=environment,
            cwd=TESTS,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        printed.add(run.stdout)
    assert len(printed) == 1
