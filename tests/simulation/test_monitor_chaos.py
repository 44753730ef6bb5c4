"""Agents and monitor through restarts, outages and silence in any order: once all is quiet, the fleet is the truth."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from flexpipe.fragments.inputs import NodesGiven
from flexpipe.fragments.monitor import Monitor
from flexpipe.fragments.sampling import Agent
from flexpipe.testing.fleets import twenty_seven, twenty_seven_spec
from flexpipe.testing.world import World
from flexpipe.testing.world_agents import AGENT, MONITOR, FleetWorld

SEEDS = range(16)
BLOWS = 30
NAMES = tuple(node.node for node in twenty_seven_spec().nodes)


class Fate:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        slow_s = self.chance.choice([0.002, 0.05])
        self.scene = FleetWorld(World(random.Random(seed), (0.001, slow_s)), twenty_seven_spec())
        self.scene.ready()

    def strike(self) -> None:
        """A while passes, then something happens."""
        scene, chance = self.scene, self.chance
        scene.world.run_for(chance.choice([0.02, 0.1, 0.4, 1.0, 2.5, 6.0]))
        name = chance.choice(NAMES)
        match chance.choice(["alter", "alter", "restore", "agent", "monitor", "bus", "a", "w"]):
            case "alter":
                self._alter(name)
            case "restore":
                scene.alter(name, "restore")
            case "agent":
                given = NodesGiven(nodes=scene.spec.nodes)
                self._restart(AGENT, Agent, lambda: scene.world.feed(AGENT, given))
            case "monitor":
                self._restart(MONITOR, Monitor, lambda: None)
            case "bus":
                scene.outage = not scene.outage
            case "a":
                scene.silent_agents ^= {name}
            case "w":
                scene.silent_workers ^= {name}

    def _alter(self, name: str) -> None:
        node = self.scene.spec.node(name)
        assert node is not None
        every = [device.device for device in node.devices]
        some = self.chance.sample(every, self.chance.randint(0, len(every)))
        change = self.chance.choice(["preempt", "notice", "fail", "degrade", "reserve"])
        notice = {"leaves_in_s": self.chance.choice([0.5, 3.0, 60.0])}
        self.scene.alter(name, change, *some, **(notice if change == "notice" else {}))

    def _restart(self, name: str, kind: type[Agent | Monitor], then: Callable[[], None]) -> None:
        world, mounted = self.scene.world, self.scene.world.mounts[name]
        if mounted.machine is None:
            return
        known = mounted.machine.snapshot()

        def resumed() -> Agent | Monitor:
            machine = kind()
            machine.restore(known)
            return machine

        def start() -> None:
            world.start(name)
            then()

        mounted.fresh = resumed
        world.kill(name)
        world.after(self.chance.choice([0.2, 1.0, 3.0]), start)

    def calm(self) -> None:
        """Nothing happens any more."""
        self.scene.outage = False
        self.scene.silent_agents.clear()
        self.scene.silent_workers.clear()
        self.scene.world.run_for(15.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_once_all_is_quiet_the_fleet_is_the_truth(seed: int) -> None:
    fate = Fate(seed)
    for _ in range(BLOWS):
        fate.strike()
    fate.calm()
    scene, agent = fate.scene, fate.scene.world.mounts[AGENT].machine
    assert isinstance(agent, Agent)
    for name in NAMES:
        node = scene.fleet.node(name)
        assert node is not None
        assert node.state == ("lost" if name in agent.failed else "observed")
    for name in NAMES:
        scene.alter(name, "restore")
    scene.world.run_for(10.0)
    refs = scene.fleet.refs()
    assert all(scene.fleet.closed(ref) is None for ref in refs)
    assert scene.fleet.blocks == twenty_seven().blocks
    assert max(change.revision for change in scene.changes) == scene.fleet.revision
