"""The three brains as they are, mounted together on one virtual clock: executor, workers and routers of a service.

Only processes, HTTP, clients and eyes on the fleet are played (`world_engines`, `world_streams`, `world_fleet`).
`RealWorld` is the scene; `settle` demands what must hold when all is quiet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final

from flexpipe.bus.hearing import Hearing
from flexpipe.events import catalog
from flexpipe.hosting.worker import Worker
from flexpipe.kernel.machine import Machine
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import Node
from flexpipe.model.route import PlanState
from flexpipe.model.shift import Phase
from flexpipe.routing.machine import Routing
from flexpipe.testing.builders import a_deployment, a_node
from flexpipe.testing.harness import EXECUTOR, Scene
from flexpipe.testing.world import World
from flexpipe.testing.world_engines import Engines, Hands
from flexpipe.testing.world_streams import Stream, Streams

NODES: Final = tuple(
    a_node(name).model_copy(update={"address": f"10.0.0.{index}"})
    for index, name in enumerate(("node-a", "node-b"), start=1)
)
CLIENT_EVERY_S: Final = 0.15
RESTART_S: Final = 0.6

_BY_SERVICE: Final = {
    service: tuple(said.message for said in catalog.MESSAGES if service in said.hears)
    for service in ("worker", "router")
}


class RealWorld(Scene):
    """The scene with the real machines."""

    def __init__(
        self,
        *,
        nodes: Iterable[Node] = NODES,
        deployment: Deployment | None = None,
        routers: Iterable[str] = ("router-0", "router-1"),
        chance: random.Random,
        delays_s: tuple[float, float] = (0.001, 0.001),
    ) -> None:
        super().__init__(World(chance, delays_s))
        self.chance = chance
        declared = deployment or a_deployment()
        self.engines = Engines(self.world)
        self.workers: dict[str, Hands] = {
            node.node: Hands(self.world, self.engines, node) for node in nodes
        }
        self.routers: dict[str, Streams] = {
            name: Streams(self.world, self.engines, name, declared.name) for name in routers
        }
        self.clients = False
        self.declare(declared)
        self.monitored()
        for name, hands in self.workers.items():
            hands.peers = self.workers
            hears = tuple(Hearing(message, key=name) for message in _BY_SERVICE["worker"])
            self.world.mount(name, "worker", Worker, hears=hears, perform=hands.perform)
            hands.open()
        for name, streams in self.routers.items():
            hears = tuple(Hearing(message, key=name) for message in _BY_SERVICE["router"])
            self.world.mount(
                name,
                "router",
                self._remembering(name),
                hears=hears,
                watches=Routing.WATCHES,
                perform=streams.perform,
            )
        self.world.checks.append(self._one_plan_each)
        self.lead()

    def _remembering(self, name: str) -> Callable[[], Machine]:
        """A router's process resumes from its journal."""

        def fresh() -> Machine:
            machine = Routing(name, f"http://{name}")
            for life in self.world.mounts[name].lives if name in self.world.mounts else ():
                for line in life:
                    machine.handle(line.now_s, line.event)
            return machine

        return fresh

    # -- clients ------------------------------------------------------------------------------------

    def open_doors(self) -> None:
        """From now on clients come, until `close_doors`."""
        self.clients = True
        self._next_client()

    def close_doors(self) -> None:
        """Nobody comes any more."""
        self.clients = False

    def _next_client(self) -> None:
        if not self.clients:
            return
        streams = self.routers[self.chance.choice(sorted(self.routers))]
        streams.arrive(
            self.chance.randint(5, 120),
            resumable=self.chance.random() > 0.15,
            priority=self.chance.choice((0, 0, 0, 1)),
        )
        self.world.after(CLIENT_EVERY_S, self._next_client)

    @property
    def streams(self) -> list[Stream]:
        """Every stream there ever was."""
        return [stream for router in self.routers.values() for stream in router.all.values()]

    # -- faults -------------------------------------------------------------------------------------

    def crash_worker(self, node: str) -> None:
        """A worker's process dies and comes back."""
        self.workers[node].crash()
        self.world.after(RESTART_S, lambda: self._reopen(node))

    def _reopen(self, node: str) -> None:
        if not self.world.mounts[node].up:
            self.world.start(node)
            self.workers[node].open()

    def crash_router(self, name: str) -> None:
        """A router's process dies and comes back."""
        self.routers[name].crash()
        self.world.after(RESTART_S, lambda: self._restart(name))

    def _restart(self, name: str) -> None:
        if not self.world.mounts[name].up:
            self.world.start(name)

    def crash_executor(self, after_effects: int = 1) -> None:
        """The executor's process dies right after so many more effects, and comes back."""
        mounted = self.world.mounts[EXECUTOR]
        self.world.kill_after_effects(EXECUTOR, mounted.performed + after_effects)

    # -- laws -------------------------------------------------------------------------------------

    def _one_plan_each(self) -> None:
        """No sequence is in two plans."""
        seen: dict[str, str] = {}
        for plan, requests in self.engines.running().items():
            for rid in requests:
                sequence = rid.rpartition(".")[0]
                assert sequence not in seen, f"{sequence} is in {seen[sequence]} and {plan}"
                seen[sequence] = plan

    def settle(self, limit_s: float = 600.0) -> None:
        """Wait until records are closed and streams are over, then demand what must hold in a quiet world."""
        self.close_doors()
        self.world.run_until(
            lambda: (
                all(r.phase is Phase.CLOSED for r in self.records())
                and not any(router.open for router in self.routers.values())
            ),
            limit_s,
        )
        self.world.run_for(3.0)
        faults = [fault for stream in self.streams for fault in stream.verdicts()]
        assert not faults, faults
        assert not self.engines.running(), "an engine still works for nobody"
        entry = self.entry()
        assert entry is not None
        assert entry.in_flight is None
        wanted: dict[str, dict[str, int]] = {}
        hosted: dict[str, set[str]] = {name: set() for name in self.workers}
        for routed in entry.plans:
            assert routed.state is PlanState.ACTIVE, f"{routed.plan.id} is {routed.state}"
            engine = self.engines.at(routed.front)
            assert engine is not None, f"{routed.plan.id} does not run"
            assert engine.plan == routed.plan.id
            assert engine.gate.state.admitting, f"the gate of {routed.plan.id} is shut"
            for ref, bytes_ in routed.plan.claims():
                wanted.setdefault(ref.key, {})[routed.plan.id] = bytes_
                hosted[ref.node].add(routed.plan.id)
        assert self.reservations() == wanted, "reservations are those of the plans in force"
        assert {name: hands.plans for name, hands in self.workers.items()} == hosted
