"""Agent and monitor on a world: a declared fleet that beats in virtual time, can be altered, and falls silent.

Workers stand in as keys of the bucket `hosts` and as beats, unless the world has real ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from flexpipe.bus.hearing import Hearing
from flexpipe.events.fleet import AlterNode, FleetChanged, NodeSampled, SampleAsked
from flexpipe.fragments.declared import FleetSpec
from flexpipe.fragments.inputs import Heard, NodesGiven
from flexpipe.fragments.monitor import Monitor
from flexpipe.fragments.sampling import Agent
from flexpipe.model.fleet import Fleet, Host, Node
from flexpipe.testing.world import World

BEAT_EVERY_S: Final = 0.5
LOOK_EVERY_S: Final = 0.25
AGENT: Final = "agent"
MONITOR: Final = "monitor"


class FleetWorld:
    """See the module. Sets of names say who is silent: `silent_agents`, `silent_workers`; `outage`: the bus is away."""

    def __init__(self, world: World, spec: FleetSpec, *, workers: bool = True) -> None:
        self.world = world
        self.spec = spec
        self.silent_agents: set[str] = set()
        self.silent_workers: set[str] = set()
        self.answered: tuple[str, ...] = ()
        self.outage = False
        self._echo_s = world.now_s
        self._looks = 0
        if workers:
            for index, node in enumerate(spec.nodes):
                self.host(node.node, first_port=31_000 + 512 * index)
        keys = [node.node for node in spec.nodes]
        world.mount(
            AGENT,
            "agent",
            Agent,
            hears=[Hearing(message, key) for key in keys for message in (AlterNode, SampleAsked)],
        )
        world.mount(
            MONITOR,
            "monitor",
            Monitor,
            hears=[Hearing(NodeSampled)],
            watches=("fleet", "hosts", "routes"),
        )
        world.feed(AGENT, NodesGiven(nodes=spec.nodes))
        self._look()

    # -- hands ----------------------------------------------------------------------------------

    def host(self, node: str, devices: Iterable[str] | None = None, **fields: Any) -> None:
        """A worker says on which devices it can place something: all declared ones where none are named."""
        declared = self.spec.node(node)
        assert declared is not None
        every = tuple(device.device for device in declared.devices)
        named = every if devices is None else tuple(devices)
        host = Host(node=node, address=declared.address, devices=named, **fields)
        self.world.write("hosts", node, host.canonical_json())

    def alter(self, node: str, change: str, *devices: str, **fields: Any) -> None:
        """`flexpipe fleet …`."""
        order = {"node": node, "change": change, "devices": devices, **fields}
        self.world.say(AlterNode.model_validate(order), self.world.now_s)

    # -- eyes -----------------------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        """What the bucket holds."""
        entries = self.world.buckets.all("fleet")
        return Fleet(nodes=tuple(Node.model_validate_json(entry.value or "") for entry in entries))

    @property
    def changes(self) -> tuple[FleetChanged, ...]:
        """What the monitor said."""
        return self.world.post.of(FleetChanged)

    def ready(self) -> None:
        """Wait until every declared device is there and open."""
        count = sum(len(node.devices) for node in self.spec.nodes)

        def is_ready() -> bool:
            fleet = self.fleet
            return sum(fleet.closed(ref) is None for ref in fleet.refs()) == count

        self.world.run_until(is_ready, 10.0)

    # -- signs of life --------------------------------------------------------------------------

    def _look(self) -> None:
        """What the monitor's service collects in a quarter of a second; agents and workers beat every second time."""
        if not self.outage:
            self._echo_s = self.world.now_s
        self._looks += 1
        beats_now = self._looks % round(BEAT_EVERY_S / LOOK_EVERY_S) == 0 and not self.outage
        heard = Heard(
            beats=self._beats() if beats_now else {},
            host_beats=self._host_beats() if beats_now else (),
            answered=() if self.outage else self.answered,
            echo_at_s=self._echo_s,
        )
        self.world.feed(MONITOR, heard)
        self.world.after(LOOK_EVERY_S, self._look)

    def _beats(self) -> dict[str, tuple[int, int]]:
        agent = self.world.mounts[AGENT].machine
        every = agent.beats if isinstance(agent, Agent) else ()
        return {
            beat.node: (beat.counter, 0) for beat in every if beat.node not in self.silent_agents
        }

    def _host_beats(self) -> tuple[str, ...]:
        """The worker of a node that has failed as a whole is as silent as its agent."""
        agent = self.world.mounts[AGENT].machine
        failed = set(agent.failed) if isinstance(agent, Agent) else set()
        hosts = (entry.key for entry in self.world.buckets.all("hosts"))
        return tuple(name for name in hosts if name not in self.silent_workers | failed)
