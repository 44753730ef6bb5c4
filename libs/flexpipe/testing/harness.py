"""The executor on a world with workers and routers: what simulation and property tests run.

`Scene` has hands and eyes; `Laws` watches what must hold at every moment. `ShiftWorld` is the scene with fake workers
and routers, and `settled` says what must hold there when all is quiet; `real_world` mounts the real machines.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from flexpipe.bus.hearing import Hearing
from flexpipe.events import catalog
from flexpipe.events.message import Command
from flexpipe.events.plan import FenceWorker, WithdrawDevice
from flexpipe.events.route import BatchHandedOver
from flexpipe.events.shift import ShiftRefused
from flexpipe.kernel.machine import Machine, Publish, Watched
from flexpipe.model.deployment import Deployment
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Node
from flexpipe.model.gear import Gear
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.shift import DeviceReservations, Outcome, Phase, ShiftRecord
from flexpipe.testing.builders import a_deployment, a_node, an_order_to
from flexpipe.testing.world import World
from flexpipe.testing.world_fleet import FakeMonitor
from flexpipe.testing.world_routers import FakeRouter
from flexpipe.testing.world_workers import FakeWorker, RankDied
from flexpipe.transitions import Executor
from flexpipe.transitions.progress import SLOT_PHASES, Progress

EXECUTOR: Final = "executor"
EXECUTOR_HEARS: Final = tuple(
    Hearing(said.message) for said in catalog.MESSAGES if EXECUTOR in said.hears
)
EXECUTOR_WATCHES: Final = (
    *("deployments", "routes", "shifts", "reservations", "fleet", "roster", "baselines"),
)


class Host(Protocol):
    """One node as the laws see it: what it has, and what its engines take of it."""

    node: Node

    def used_bytes(self, device: str) -> int:
        """Bytes that ranks on a device hold."""
        ...


class Scene:
    """A world with an executor, workers and routers; hands to order shifts, eyes to see what became of them."""

    workers: Mapping[str, Host]
    routers: Mapping[str, object]

    def __init__(self, world: World) -> None:
        self.world = world
        self.orders = 0

    def lead(self, executor: Callable[[], Machine] = Executor) -> None:
        """Mount the executor, when workers and routers are up; the laws are watched from now on."""
        self.world.run_for(0.1)
        self.executor = self.world.mount(
            EXECUTOR, "executor", executor, hears=EXECUTOR_HEARS, watches=EXECUTOR_WATCHES
        )
        laws = Laws(self)
        self.world.checks.append(laws.check)
        self.world.listeners.append(laws.persisted_first)
        self.world.run_for(0.1)

    def monitored(self) -> None:
        """Mount what turns hosts into the fleet."""
        nodes = [worker.node for worker in self.workers.values()]
        self.world.mount(
            "monitor", "monitor", lambda: FakeMonitor(nodes), watches=FakeMonitor.WATCHES
        )

    # -- hands ------------------------------------------------------------------------------------

    def declare(self, deployment: Deployment) -> None:
        """`flexpipe apply`."""
        self.world.write("deployments", deployment.name, deployment.canonical_json())

    def order(self, target: Gear, deployment: str = "toy") -> str:
        """`flexpipe shift`; gives the order's id."""
        self.orders += 1
        order_id = f"order-{self.orders}"
        order = an_order_to(target, order_id, deployment=deployment, at_s=self.world.now_s)
        self.world.say(order)
        return order_id

    def shift(self, target: Gear, deployment: str = "toy") -> ShiftRecord:
        """Order a shift and wait until its record has closed."""
        return self.closed(self.order(target, deployment))

    def withdraw(
        self, node: str, device: str, *, present: bool = False, at_once: bool = False
    ) -> None:
        """Take a device away (without grace: `at_once`), or give it back."""
        fence = Fence(deployment="toy", term=0, shift=0, step=0)
        command = WithdrawDevice(
            node=node, fence=fence, device=device, present=present, at_once=at_once
        )
        self.world.say(command, self.world.now_s)

    # -- eyes ---------------------------------------------------------------------------------------

    def entry(self, deployment: str = "toy") -> RouteEntry | None:
        """The route entry."""
        value = self.world.buckets.get("routes", deployment).value
        return None if value is None else RouteEntry.model_validate_json(value)

    def states(self, deployment: str = "toy") -> dict[str, str]:
        """Plan → state, of the route entry."""
        entry = self.entry(deployment)
        return {} if entry is None else {r.plan.id: str(r.state) for r in entry.plans}

    def records(self) -> list[ShiftRecord]:
        """All shift records, by deployment and number."""
        entries = self.world.buckets.all("shifts")
        records = [ShiftRecord.model_validate_json(entry.value or "") for entry in entries]
        return sorted(records, key=lambda record: (record.deployment, record.shift))

    def record_of(self, order_id: str) -> ShiftRecord | None:
        """The record that an order became."""
        for record in self.records():
            if Progress.model_validate_json(record.progress).order_id == order_id:
                return record
        return None

    def refusal_of(self, order_id: str) -> str | None:
        """Why an order was refused."""
        refused = self.world.post.of(ShiftRefused)
        return next((each.reason for each in refused if each.order_id == order_id), None)

    def phase(self, order_id: str) -> Phase | None:
        """Where the shift of an order stands."""
        record = self.record_of(order_id)
        return None if record is None else record.phase

    def reach(self, order_id: str, phase: Phase, limit_s: float = 300.0) -> None:
        """Wait until a shift is in a phase."""
        self.world.run_until(lambda: self.phase(order_id) is phase, limit_s)

    def closed(self, order_id: str, limit_s: float = 600.0) -> ShiftRecord:
        """Wait until a shift has closed."""
        self.reach(order_id, Phase.CLOSED, limit_s)
        record = self.record_of(order_id)
        assert record is not None
        return record

    def reservations(self) -> dict[str, dict[str, int]]:
        """Device key → plan → bytes, without empty devices."""
        held = {}
        for entry in self.world.buckets.all("reservations"):
            value = DeviceReservations.model_validate_json(entry.value or "")
            if value.held:
                held[entry.key] = {r.plan: r.bytes for r in value.held}
        return held


class Laws:
    """What must hold after every input. Raises AssertionError naming the law that is broken."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._seen = 0
        self._counters: dict[str, tuple[int, int]] = {}
        self._phases: dict[str, Phase] = {}
        memory = {
            f"{node}.{device.device}": device.memory_bytes
            for node, worker in scene.workers.items()
            for device in worker.node.devices
        }
        self._memory = memory

    def check(self) -> None:
        """Look at everything written since the last look."""
        history = self._scene.world.buckets.history
        for entry in history[self._seen :]:
            if entry.value is None:
                continue
            if entry.bucket == "reservations":
                self._reserved(DeviceReservations.model_validate_json(entry.value))
            elif entry.bucket == "routes":
                self._routed(RouteEntry.model_validate_json(entry.value))
            elif entry.bucket == "shifts":
                self._recorded(ShiftRecord.model_validate_json(entry.value))
        fresh = len(history) > self._seen
        self._seen = len(history)
        if fresh:
            self._one_slot()
        for node, worker in self._scene.workers.items():
            for device in worker.node.devices:
                used = worker.used_bytes(device.device)
                assert used <= device.memory_bytes, f"{node}/{device.device}: engines take {used}"

    def persisted_first(self, sender: str, message: Publish) -> None:
        """A command goes out under a step and a term that were stored before it."""
        said = catalog.parse(message.type, message.message)
        fence = getattr(said, "fence", None)
        if sender != EXECUTOR or not isinstance(said, Command) or not isinstance(fence, Fence):
            return
        entry = self._scene.entry(fence.deployment)
        assert entry is not None, f"{message.type} was sent before there is a route entry"
        assert entry.term == fence.term, f"{message.type} under term {fence.term} of {entry.term}"
        value = self._scene.world.buckets.get("shifts", f"{fence.deployment}.{fence.shift}").value
        if not isinstance(said, FenceWorker):
            record = ShiftRecord.model_validate_json(value or "")
            late = f"{message.type} went out before step {fence.step} was stored"
            assert record.step >= fence.step, late

    def _reserved(self, held: DeviceReservations) -> None:
        assert held.total_bytes <= self._memory[held.device.key], f"{held.device} is oversubscribed"
        assert len(held.held) <= 2, f"{held.device} holds more than an old and a new plan"
        assert len({r.deployment for r in held.held}) <= 1, (
            f"{held.device} is shared by deployments"
        )

    def _routed(self, entry: RouteEntry) -> None:
        before = self._counters.get(entry.deployment, (0, 0))
        now = (entry.term, entry.shift)
        assert now[0] >= before[0], f"term of {entry.deployment} went back: {before} → {now}"
        assert now[1] >= before[1], f"shift of {entry.deployment} went back: {before} → {now}"
        self._counters[entry.deployment] = now
        for routed in entry.plans:
            takes = routed.state in (PlanState.ACTIVE, PlanState.CANARY)
            assert (routed.admit > 0) == takes, (
                f"{routed.plan.id} is {routed.state} at {routed.admit}"
            )

    def _recorded(self, record: ShiftRecord) -> None:
        before = self._phases.get(record.key)
        assert before is not Phase.CLOSED, f"shift {record.key} was written after it had closed"
        self._phases[record.key] = record.phase
        if record.phase is Phase.CLOSED:
            assert record.outcome in tuple(Outcome), f"{record.key} closed without an outcome"
            good = record.outcome is Outcome.COMPLETED
            assert good or record.reason, f"{record.key} closed without a reason"
        if record.phase is Phase.COMMITTING and before is not Phase.COMMITTING:
            self._handed_over(record)

    def _handed_over(self, record: ShiftRecord) -> None:
        """Commit waits for the hand-over of every router, unless there is nothing to go back to."""
        target = {plan.id for plan in record.order.target.plans}
        if record.forward_only or {plan.id for plan in record.source.plans} <= target:
            return
        batches = self._scene.world.post.of(BatchHandedOver)
        key = (record.deployment, record.shift)
        done = {
            batch.router
            for batch in batches
            if batch.remaining == 0 and (batch.deployment, batch.fence.shift) == key
        }
        late = set(self._scene.routers) - done
        assert not late, f"shift {record.key} commits before {sorted(late)} handed over"

    def _one_slot(self) -> None:
        holders: dict[str, list[int]] = {}
        for key, phase in self._phases.items():
            deployment, _, shift = key.rpartition(".")
            if phase in SLOT_PHASES:
                holders.setdefault(deployment, []).append(int(shift))
        for deployment, shifts in sorted(holders.items()):
            assert len(shifts) == 1, f"shifts {shifts} of {deployment} hold the slot together"


class ShiftWorld(Scene):
    """The scene with a fake worker a node and fake routers, whose faults are told them."""

    def __init__(
        self,
        *,
        nodes: Iterable[Node] = (a_node("node-a"),),
        deployments: Iterable[Deployment] = (a_deployment(),),
        routers: Iterable[str] = ("router-0",),
        chance: random.Random | None = None,
        delays_s: tuple[float, float] = (0.001, 0.001),
        executor: Callable[[], Machine] = Executor,
    ) -> None:
        super().__init__(World(chance, delays_s))
        self.workers: dict[str, FakeWorker] = {node.node: FakeWorker(node) for node in nodes}
        self.routers: dict[str, FakeRouter] = {name: FakeRouter(name) for name in routers}
        for deployment in deployments:
            self.declare(deployment)
        self.monitored()
        for name, worker in self.workers.items():
            self.world.mount(
                name, "worker", _same(worker), hears=worker.hears(), watches=("hosts",)
            )
        for name, router in self.routers.items():
            self.world.mount(
                name, "router", _same(router), hears=router.hears(), watches=router.WATCHES
            )
        self.lead(executor)

    def kill_rank(self, node: str, plan: str) -> None:
        """A rank dies."""
        self.world.feed(node, RankDied(plan=plan))

    def heal(self) -> None:
        """Nothing goes wrong from now on."""
        for worker in self.workers.values():
            worker.faults.clear()
        for name, router in self.routers.items():
            router.faults.clear()
            for entry in self.world.buckets.all("routes"):
                self.world.feed(name, Watched(entry=entry))  # it looks again

    def settle(self, limit_s: float = 600.0) -> None:
        """Wait until every record has closed, then demand what must hold in a quiet world."""
        self.world.run_until(lambda: all(r.phase is Phase.CLOSED for r in self.records()), limit_s)
        self.world.run_for(1.0)
        settled(self)


def settled(scene: ShiftWorld) -> None:
    """A quiet world: route entries true, reservations right, no engine forgotten, no stream on a plan that is gone."""
    wanted: dict[str, dict[str, int]] = {}
    hosted: dict[str, set[str]] = {name: set() for name in scene.workers}
    for stored in scene.world.buckets.all("routes"):
        entry = RouteEntry.model_validate_json(stored.value or "")
        assert entry.in_flight is None, f"{entry.deployment}: nothing is in flight any more"
        for routed in entry.plans:
            assert routed.state is PlanState.ACTIVE, f"{routed.plan.id} is {routed.state}"
            for ref, bytes_ in routed.plan.claims():
                wanted.setdefault(ref.key, {})[routed.plan.id] = bytes_
            for node in routed.plan.nodes:
                hosted[node].add(routed.plan.id)
        active = {routed.plan.id for routed in entry.plans}
        for router in scene.routers.values():
            for stream, (deployment, plan) in router.streams.items():
                mine = deployment == entry.deployment and plan and not entry.stopped
                assert not mine or plan in active, f"{stream} is on {plan}, which is gone"
        for name, router in scene.routers.items():
            assert router.entries.get(entry.deployment) in (None, entry), (
                f"{name} acts on an old entry"
            )
    assert scene.reservations() == wanted, "reservations are those of the plans in force"
    for node, worker in scene.workers.items():
        assert set(worker.hosted) == hosted[node], (
            f"{node} hosts what the route entry does not name"
        )
        for plan, running in worker.hosted.items():
            assert running.ready, f"{plan} on {node} is not ready"
            front = running.plan.nodes[0] == node
            assert not front or running.admitting, f"the gate of {plan} on {node} is shut"


def _same(machine: Machine) -> Callable[[], Machine]:
    return lambda: machine
