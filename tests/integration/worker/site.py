"""Workers on a real bus with emulated engines: what the tests of the worker stand on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from flexpipe.bus import Bus, Hearing, connect
from flexpipe.bus.crew import Crew
from flexpipe.bus.server import EmbeddedServer
from flexpipe.bus.users import Instance
from flexpipe.engines.emulated.checkpoint import write_checkpoint
from flexpipe.events.catalog import parse
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import (
    CommandSuperseded,
    DrainPlan,
    EngineFailed,
    EngineLost,
    EngineReady,
    GatePlan,
    PlanDrained,
    PlanGated,
    PlanStopped,
    PlanStuck,
    PlanWarmed,
    StartPlan,
    StopPlan,
    WarmPlan,
    WithdrawDevice,
    WorkerCommand,
)
from flexpipe.events.trace import SpanEnded
from flexpipe.hosting.memory import HostingLimits
from flexpipe.kernel.ids import span_id, trace_id, traceparent
from flexpipe.model.deployment import EngineSettings, ModelRef
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Device, DeviceRef, Host
from flexpipe.model.plan import LayerRange, Plan, Stage
from flexpipe.testing.nats import temporary_nats, until
from flexpipe.testing.ports import free_ports
from flexpipe.worker.app import serve
from flexpipe.worker.settings import Settings

HEARD = (
    *(EngineReady, EngineFailed, EngineLost, PlanGated, PlanWarmed, PlanDrained, PlanStopped),
    *(PlanStuck, CommandSuperseded),
)
SLOT_BYTES = 4_000_000_000
TRACE = trace_id("worker-tests")
PARENT = span_id("worker-tests")

Said = TypeVar("Said", bound=Message)


def fence(step: int, shift: int = 1) -> Fence:
    return Fence(deployment="chat", term=1, shift=shift, step=step)


def plan(*stages: str) -> Plan:
    """A plan of the toy model (4 layers) from one word a stage: `a0+a1` is TP2 on two slots of node-a."""
    share = 4 // len(stages)
    return Plan(
        model="toy",
        engine="emulated",
        stages=tuple(
            Stage(
                layers=LayerRange(first=index * share, end=(index + 1) * share),
                devices=tuple(
                    DeviceRef(node=f"node-{word[0]}", device=f"slot-{word[1:]}")
                    for word in stage.split("+")
                ),
                rank_bytes=3_000_000_000,
            )
            for index, stage in enumerate(stages)
        ),
    )


def slots(count: int) -> tuple[Device, ...]:
    """So many emulated devices of a node."""
    return tuple(
        Device(device=f"slot-{index}", kind="emulated", memory_bytes=SLOT_BYTES)
        for index in range(count)
    )


@dataclass
class Site:
    """A bus, a model folder, and workers that the test starts and stops."""

    server: EmbeddedServer
    bus: Bus  # the executor's
    people: Bus  # an operator's
    folder: Path
    first_port: int
    heard: list[Message] = field(default_factory=list)
    spans: list[SpanEnded] = field(default_factory=list)
    stops: dict[str, asyncio.Event] = field(default_factory=dict)
    serving: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    listening: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def model(self) -> ModelRef:
        return ModelRef(name="toy", path=str(self.folder / "model"))

    def settings(self, name: str, **fields: Any) -> Settings:
        values: dict[str, Any] = {
            "node": name,
            "devices": slots(2),
            "first_port": self.first_port,
            "state_dir": self.folder / name,
            "engine_venv": self.folder / "no-venv",
            "limits": HostingLimits(stop_grace_s=3.0, withdraw_grace_s=0.3),
            "bus": self.server.settings(f"worker-{name}"),
            **fields,
        }
        return Settings(**values)

    async def open(self, name: str = "node-a", **fields: Any) -> None:
        """Start a worker; returns when it has said what it can place on."""
        assert name not in self.serving
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(self.settings(name, **fields), stop))
        self.stops[name], self.serving[name] = stop, serving
        await self.until(lambda: self._declared(name))
        assert not serving.done()

    @asynccontextmanager
    async def process(self, name: str = "node-a") -> AsyncIterator[asyncio.subprocess.Process]:
        """The same worker as a process of its own, through the command line; killed at the end of the block."""
        settings = self.settings(name)
        devices = [each.model_dump(mode="json") for each in settings.devices]
        env = {
            **os.environ,
            **settings.bus.environment(),
            "FLEXPIPE_WORKER_NODE": name,
            "FLEXPIPE_WORKER_DEVICES": json.dumps(devices),
            "FLEXPIPE_WORKER_STATE_DIR": str(settings.state_dir),
            "FLEXPIPE_WORKER_FIRST_PORT": str(settings.first_port),
        }
        argv = (sys.executable, "-m", "flexpipe.cli", "run", "worker")
        worker = await asyncio.create_subprocess_exec(*argv, env=env)
        try:

            async def declared() -> bool:
                assert worker.returncode is None
                return bool(await self.devices(name))

            await self.until(declared)
            yield worker
        finally:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()

    async def close(self, name: str = "node-a") -> None:
        self.stops[name].set()
        await asyncio.wait_for(self.serving.pop(name), 30)

    async def _declared(self, name: str) -> bool:
        if self.serving[name].done():
            await self.serving[name]
        return bool(await self.devices(name))

    async def devices(self, name: str = "node-a") -> list[str]:
        """On which devices a node's worker says it can place something."""
        entry = await self.people.read("hosts", name)
        return [] if entry.value is None else list(Host.model_validate_json(entry.value).devices)

    async def until(self, condition: Callable[[], Any], limit_s: float = 20.0) -> None:
        """As `until`, for conditions that must be awaited."""
        async with asyncio.timeout(limit_s):
            while not await condition():  # noqa: ASYNC110 - the bus is asked
                await asyncio.sleep(0.02)

    # -- saying and hearing ---------------------------------------------------------------------

    async def tell(self, command: WorkerCommand, name: str = "again") -> None:
        await self.bus.publish(publish(command, name, traceparent=traceparent(TRACE, PARENT)))

    async def start(self, wanted: Plan, at: Fence, **fields: Any) -> None:
        """StartPlan to every node of a plan."""
        port = fields.pop("front_port", self.first_port)
        values: dict[str, Any] = {
            "engine": EngineSettings(kind="emulated", form="emulated"),
            "model": self.model,
            "limit_s": 20.0,
            **fields,
        }
        for name in wanted.nodes:
            await self.tell(
                StartPlan(
                    node=name,
                    fence=at,
                    plan=wanted,
                    front_port=port,
                    rendezvous=f"127.0.0.1:{port + 1}",
                    **values,
                )
            )

    async def gate(self, wanted: Plan, at: Fence, *, admitting: bool, entry: str = "{}") -> None:
        await self.tell(
            GatePlan(
                node=wanted.nodes[0],
                fence=at,
                plan=wanted.id,
                admitting=admitting,
                route_entry=entry,
            )
        )

    async def warm(self, wanted: Plan, at: Fence, requests: int = 4) -> None:
        await self.tell(
            WarmPlan(
                node=wanted.nodes[0], fence=at, plan=wanted.id, requests=requests, limit_s=10.0
            )
        )

    async def drain(self, wanted: Plan, at: Fence, limit_s: float = 10.0) -> None:
        await self.tell(DrainPlan(node=wanted.nodes[0], fence=at, plan=wanted.id, limit_s=limit_s))

    async def stop(self, wanted: Plan, at: Fence) -> None:
        for name in wanted.nodes:
            await self.tell(StopPlan(node=name, fence=at, plan=wanted.id, limit_s=20.0))

    def said(self, kind: type[Said]) -> list[Said]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def hear(self, kind: type[Said], count: int = 1, limit_s: float = 20.0) -> list[Said]:
        """The first `count` messages of a class, once they are there. Anything that went wrong fails at once."""
        wrong = [each for each in (EngineFailed, EngineLost, PlanStuck) if each is not kind]

        def there() -> bool:
            faults = [message for each in wrong for message in self.said(each)]
            assert not faults, faults
            for task in (*self.listening, *self.serving.values()):
                if task.done():
                    task.result()
            return len(self.said(kind)) >= count

        await until(there, limit_s)
        return self.said(kind)[:count]

    async def withdraw(
        self, device: str, *, present: bool, node: str = "node-a", at_once: bool = False
    ) -> None:
        order = WithdrawDevice(
            node=node, fence=fence(0), device=device, present=present, at_once=at_once
        )
        await self.people.publish(publish(order))

    # -- processes ------------------------------------------------------------------------------

    def engine_pids(self) -> list[int]:
        """Every live engine process of this site, found by its model folder on the command line or its parent."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if str(self.folder / "model") in process.cmdline():
                    found.append(process.pid)
        return sorted(found)

    def leader(self, name: str = "node-a") -> int:
        """The engine leader among the children of this process, of the node's only group."""
        (pid,) = [
            child.pid
            for child in psutil.Process(os.getpid()).children()
            if child.pid in self.engine_pids()
        ]
        return pid

    def log(self) -> str:
        """Logs of all groups."""
        return "\n".join(path.read_text() for path in self.folder.rglob("*.log"))


@asynccontextmanager
async def site(folder: Path, *names: str) -> AsyncIterator[Site]:
    """A bus for these nodes, one place to hear workers from, and a toy model. Workers are the test's to open."""
    nodes = names or ("node-a",)
    write_checkpoint(folder / "model")
    instances = [Instance(service="worker", name=name) for name in nodes]
    async with (
        temporary_nats(instances) as server,
        connect(server.settings("executor"), service="executor", name="main") as bus,
        connect(server.settings("operator"), service="operator", name="main") as people,
        bus.listen([Hearing(kind) for kind in HEARD]) as deliveries,
        people.listen([Hearing(SpanEnded)]) as ended,
    ):
        made = Site(server, bus, people, folder, free_ports())

        async def listen() -> None:
            async for each in deliveries:
                made.heard.append(parse(each.type, each.message))

        async def listen_spans() -> None:
            async for each in ended:
                message = parse(each.type, each.message)
                assert isinstance(message, SpanEnded)
                made.spans.append(message)

        crew = Crew()
        made.listening = [crew.start(listen()), crew.start(listen_spans())]
        try:
            yield made
        finally:
            for name in list(made.serving):
                await made.close(name)
            crew.begin_leaving()
            await crew.cancel()
