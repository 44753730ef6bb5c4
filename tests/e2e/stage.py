"""What the end-to-end tests play on: an embedded instance, its operator, and the words a test needs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from flexpipe.bus.connection import Bus, connect
from flexpipe.cli import looking, ordering
from flexpipe.cli.declare import read_deployment
from flexpipe.cli.embedded import Embedded, embedded
from flexpipe.cli.layouts import Layout
from flexpipe.cli.traffic import Answer, Question, Traffic, ask
from flexpipe.events import shift as shift_events
from flexpipe.events.message import Message
from flexpipe.model.deployment import Deployment
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.shift import Phase, ShiftRecord

PATIENCE_S = 60.0
"""Upper limit of a wait for something that takes a second or two on an idle machine."""


EXAMPLE = Path("ops/examples/emulated.toml")
QUICK = {"canary_requests": 2, "canary_synthetic_after_s": 0.2}
"""A policy for tests: a canary of the same kind that does not wait for traffic."""


@dataclass
class Stage:
    """A running instance and what a test says to it."""

    instance: Embedded
    bus: Bus
    http: httpx.AsyncClient
    deployment: Deployment | None = None

    @property
    def name(self) -> str:
        """The deployment's name."""
        assert self.deployment is not None
        return self.deployment.name

    @property
    def model(self) -> str:
        """What clients call it."""
        assert self.deployment is not None
        return self.deployment.model.name

    async def apply(self, file: Path, **changes: object) -> None:
        """Declare a deployment and start it on its baseline."""
        deployment = read_deployment(file)
        policy = deployment.policy.model_copy(update=changes)
        self.deployment = deployment.model_copy(update={"policy": policy})
        await self.store()
        told = await self.shift(self.deployment.baseline)
        assert isinstance(told, shift_events.ShiftCompleted), told

    async def store(self) -> None:
        """Put the deployment, as it now is, into its bucket."""
        assert self.deployment is not None
        await ordering.store_deployment(self.bus, self.deployment)

    async def shift(
        self,
        gear: str,
        tell: Callable[[Message], None] = lambda _: None,
        wait_s: float | None = 300.0,
    ) -> ordering.Outcome | shift_events.ShiftOrdered:
        """Order a shift; its outcome."""
        target = await ordering.resolve(self.bus, self.name, gear)
        return await ordering.order_shift(
            self.bus, self.name, target, f"test: {gear}", tell, wait_s=wait_s
        )

    def traffic(self, questions: list[Question], width: int) -> Traffic:
        """Streams kept in flight through the (first) router."""
        return Traffic(self.instance.router_url, self.model, questions, width)

    async def ask(self, question: Question) -> Answer:
        """One stream."""
        return await ask(self.http, self.model, question)

    async def entry(self) -> RouteEntry:
        """The route entry in force."""
        return next(
            each for each in await looking.read_routes(self.bus) if each.deployment == self.name
        )

    async def record(self, number: int) -> ShiftRecord:
        """One shift's record."""
        return await looking.read_shift(self.bus, number, self.name)

    async def record_in_flight(self) -> ShiftRecord:
        """The record of the shift that holds the slot, or of the newest one."""
        return (await looking.read_shifts(self.bus, self.name))[-1]

    async def closed(self, number: int) -> ShiftRecord:
        """The record once it is closed."""

        async def is_closed() -> bool:
            return (await self.record(number)).phase is Phase.CLOSED

        await until(is_closed, f"shift {number} closes")
        return await self.record(number)

    async def kill(self, name: str, which: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a service."""
        os.kill(self.instance.supervisor.pid(name), which)

    def engine_pids(self, plan: str) -> list[int]:
        """Processes of this instance's workers that serve a plan, the front first."""
        found = []
        for node in self.instance.layout.nodes:
            worker = psutil.Process(self.instance.supervisor.pid(node.name))
            for child in worker.children(recursive=True):
                try:
                    if plan in " ".join(child.cmdline()):
                        found.append(child.pid)
                except psutil.NoSuchProcess:
                    continue
        return found

    async def assert_true_and_clean(self) -> RouteEntry:
        """The entry names what serves; reservations are those of its plans; nothing else runs."""

        async def is_settled() -> bool:
            entry = await self.entry()
            held = {
                one.plan for each in await looking.read_reservations(self.bus) for one in each.held
            }
            records = await looking.read_shifts(self.bus, self.name)
            return (
                entry.in_flight is None
                and all(each.state is PlanState.ACTIVE for each in entry.plans)
                and held == {each.plan.id for each in entry.plans}
                and all(record.phase is Phase.CLOSED for record in records)
            )

        await until(is_settled, "route entry, reservations and records agree")
        entry = await self.entry()
        for routed in entry.plans:
            ready = await self.http.get(f"{routed.front}/ready")
            assert ready.status_code == 200, f"{routed.plan.id} is in the entry and does not answer"
        return entry


@asynccontextmanager
async def staged(layout: Layout) -> AsyncIterator[Stage]:
    """A running instance; everything stops at the end."""
    async with (
        embedded(layout) as instance,
        connect(instance.operator, service="operator", name="test") as bus,
        httpx.AsyncClient(base_url=instance.router_url, trust_env=False) as http,
    ):
        yield Stage(instance, bus, http)


async def until(
    holds: Callable[[], Awaitable[bool]], what: str, limit_s: float = PATIENCE_S
) -> None:
    """Wait for a condition. Fails with what was waited for."""
    try:
        async with asyncio.timeout(limit_s):
            while not await holds():  # noqa: ASYNC110 - the state of other processes
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {limit_s:g} s: {what}") from None
