"""The executor's service on a real bus, with fake workers and routers on shells of their own, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from flexpipe.bus import Bus, MachineShell
from flexpipe.bus.server import EmbeddedServer
from flexpipe.events.outgoing import publish
from flexpipe.executor.app import serve
from flexpipe.executor.settings import Settings
from flexpipe.kernel.machine import Put
from flexpipe.model.gear import Gear
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import DeviceReservations, Phase, ShiftRecord
from flexpipe.testing.builders import QUICK_POLICY, a_deployment, a_node, an_order_to
from flexpipe.testing.killing import when_reached
from flexpipe.testing.nats import Dial
from flexpipe.testing.world_fleet import FakeMonitor
from flexpipe.testing.world_routers import FakeRouter
from flexpipe.testing.world_workers import Delays, FakeWorker
from simulation.scenes import ONE, PP2, TP1, TWO

pytestmark = pytest.mark.processes

QUICK = Delays(start_s=0.2, gate_s=0.01, warm_s=0.05, drain_s=0.2, stop_s=0.05)
PERSISTED = [phase for phase in Phase if phase not in (Phase.UNDOING, Phase.UNWINDING)]


class Scene:
    """A bus with a declared deployment, two workers, a router, and an executor that can be killed."""

    def __init__(self, bus: Bus, start: Callable[[], Awaitable[asyncio.Task[None]]]) -> None:
        self.bus = bus
        self._start = start
        self._executor: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """A new executor process, as it were."""
        self._executor = await self._start()

    def kill(self) -> None:
        """It ends wherever it is."""
        assert self._executor is not None
        self._executor.cancel()

    async def gone(self) -> None:
        """Wait for its end."""
        assert self._executor is not None
        with suppress(asyncio.CancelledError):
            await self._executor

    async def order(self, target: Gear, order_id: str) -> None:
        """`flexpipe shift`."""
        order = an_order_to(target, order_id, at_s=self.bus.clock.now_s())
        await self.bus.publish(publish(order, order_id))

    async def reached(self, shift: int, phase: Phase = Phase.CLOSED) -> ShiftRecord:
        """Wait for a shift to be in a phase."""
        return await when_reached(
            self.bus, phase, lambda: None, deployment="toy", shift=shift, limit_s=30.0
        )

    async def entry(self) -> RouteEntry:
        """The route entry."""
        return RouteEntry.model_validate_json((await self.bus.read("routes", "toy")).value or "")

    async def held(self) -> set[str]:
        """Plans that hold memory anywhere."""
        entries = await self.bus.read_all("reservations")
        devices = [DeviceReservations.model_validate_json(entry.value or "") for entry in entries]
        return {reservation.plan for device in devices for reservation in device.held}


@asynccontextmanager
async def a_scene(server: EmbeddedServer, dial: Dial) -> AsyncIterator[Scene]:
    """Everything but the executor runs."""
    operator = await dial("operator", "test")
    declared = a_deployment(policy=QUICK_POLICY.model_copy(update={"canary_limit_s": 2.0}))
    await operator.put(
        Put(
            write_id="declare",
            bucket="deployments",
            key="toy",
            value=declared.canonical_json(),
            expected=0,
        )
    )
    async with AsyncExitStack() as stack:
        nodes = ("node-a", "node-b")
        bus = await dial("monitor", "main")
        monitor = MachineShell(
            bus,
            machine=FakeMonitor(map(a_node, nodes)),
            service="monitor",
            name="main",
            watches=FakeMonitor.WATCHES,
        )
        await stack.enter_async_context(monitor)
        for name in nodes:
            worker = FakeWorker(a_node(name), delays=QUICK)
            bus = await dial("worker", name)
            shell = MachineShell(
                bus, machine=worker, service="worker", name=name, hears=worker.hears()
            )
            await stack.enter_async_context(shell)
        router = FakeRouter("router-0")
        bus = await dial("router", "router-0")
        shell = MachineShell(
            bus,
            machine=router,
            service="router",
            name="router-0",
            hears=router.hears(),
            watches=router.WATCHES,
        )
        await stack.enter_async_context(shell)
        tasks: list[asyncio.Task[None]] = []

        async def start() -> asyncio.Task[None]:
            settings = Settings(bus=server.settings("executor"))
            task = asyncio.create_task(serve(settings, asyncio.Event()))
            tasks.append(task)
            return task

        try:
            yield Scene(operator, start)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_deployment_starts_and_shifts_on_a_real_bus(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    async with a_scene(nats_server, dial) as scene:
        await scene.start()
        for number, target in enumerate((ONE, TWO, ONE), start=1):
            await scene.order(target, f"order-{number}")
            record = await scene.reached(number)
            assert (record.outcome, record.reason) == ("completed", None)
            entry = await scene.entry()
            assert {routed.plan.id for routed in entry.plans} == {target.plans[0].id}
            assert await scene.held() == {target.plans[0].id}


@pytest.mark.parametrize("phase", PERSISTED)
async def test_an_executor_killed_in_any_persisted_phase_is_followed_by_one_that_goes_on(
    nats_server: EmbeddedServer, dial: Dial, phase: Phase
) -> None:
    async with a_scene(nats_server, dial) as scene:
        await scene.start()
        await scene.order(ONE, "order-1")
        await scene.reached(1)
        killing = asyncio.create_task(
            when_reached(scene.bus, phase, scene.kill, deployment="toy", shift=2, limit_s=30.0)
        )
        await scene.order(TWO, "order-2")
        await killing
        await scene.gone()
        await scene.start()
        record = await scene.reached(2)
        assert record.phase is Phase.CLOSED
        assert (record.outcome, record.reason) == ("completed", None)
        entry = await scene.entry()
        assert {routed.plan.id for routed in entry.plans} == {PP2.id}
        assert entry.in_flight is None
        assert await scene.held() == {PP2.id}
        assert TP1.id not in await scene.held()
