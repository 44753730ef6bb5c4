"""One eventful minute of a fleet, drawn from a seed; run as a program it prints the digest of every answer given."""

from __future__ import annotations

import random

from flexpipe.kernel.frozen import digest
from flexpipe.testing.fleets import twenty_seven_spec
from flexpipe.testing.world import World
from flexpipe.testing.world_agents import AGENT, MONITOR, FleetWorld

EVENTS = 12


def play(seed: int, *, kill_after: int | None = None) -> FleetWorld:
    """Twelve things happen to devices and nodes; messages take their time. `kill_after`: effects of the monitor."""
    chance = random.Random(seed)
    scene = FleetWorld(World(chance, (0.001, 0.2)), twenty_seven_spec())
    scene.ready()
    if kill_after is not None:
        performed = scene.world.mounts[MONITOR].performed
        scene.world.kill_after_effects(MONITOR, performed + kill_after)
    names = [node.node for node in scene.spec.nodes]
    for _ in range(EVENTS):
        node = chance.choice(names)
        spec = scene.spec.node(node)
        assert spec is not None
        devices = [device.device for device in spec.devices]
        some = chance.sample(devices, chance.randint(0, len(devices)))
        change = chance.choice(["preempt", "fail", "degrade", "reserve", "notice", "restore"])
        fields = {"leaves_in_s": chance.uniform(1, 20)} if change == "notice" else {}
        scene.alter(node, change, *some, **fields)
        scene.world.run_for(chance.uniform(0.1, 3.0))
    scene.world.run_for(30.0)
    return scene


def answers() -> str:
    """Digest of all effects of agent and monitor over three seeds."""
    lines = []
    for seed in (3, 11, 42):
        scene = play(seed, kill_after=20)
        for name in (AGENT, MONITOR):
            lines += [line.effects for life in scene.world.mounts[name].lives for line in life]
    return f"{len(lines)} {digest(chr(10).join(lines), 32)}"


if __name__ == "__main__":
    print(answers())
