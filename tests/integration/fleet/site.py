"""An agent and a monitor on a real bus, and workers that are only a key and a beat: what these tests stand on."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexpipe.agent.app import serve as serve_agent
from flexpipe.agent.settings import Settings as AgentSettings
from flexpipe.bus import Bus, Hearing, connect
from flexpipe.bus.server import EmbeddedServer
from flexpipe.bus.users import Instance
from flexpipe.events.fleet import AlterNode, FleetChanged, HostHeartbeat
from flexpipe.events.outgoing import publish
from flexpipe.events.trace import SpanEnded
from flexpipe.kernel.machine import Put
from flexpipe.model.fleet import Fleet, Host, Node
from flexpipe.monitor.app import serve as serve_monitor
from flexpipe.monitor.settings import Settings as MonitorSettings
from flexpipe.testing.nats import temporary_nats, until

AGENT = "here"
BEAT_EVERY_S = 0.4
LIMIT_S = 20.0

FLEET = """
name = "pair"
[[nodes]]
names = ["b1", "b2"]
rack = "rack-b"
devices = [{ model = "A100-SXM4-80GB", count = 4 }]
fabric = { kind = "nvlink", gb_s = 300 }
[[fabrics]]
name = "b"
kind = "network"
gb_s = 25
nodes = ["b1", "b2"]
"""

Condition = Callable[[Fleet], object]


@dataclass
class Site:
    """Hands and eyes. Services run as tasks of this process, the agent also as a process of its own."""

    server: EmbeddedServer
    people: Bus
    workers: Bus
    file: Path
    stack: AsyncExitStack
    said: list[FleetChanged] = field(default_factory=list)
    spans: list[SpanEnded] = field(default_factory=list)
    beating: set[str] = field(default_factory=set)
    orders: int = 0

    # -- services -------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self, serve: Callable[..., Awaitable[None]], settings: Any
    ) -> AsyncIterator[None]:
        """A service as a task; stopped as by SIGTERM at the end of the block."""
        stop = asyncio.Event()
        task = asyncio.ensure_future(serve(settings, stop))
        try:
            yield
            assert not task.done(), task.exception()
        finally:
            stop.set()
            await asyncio.wait_for(task, LIMIT_S)

    def monitor(self, **fields: Any) -> Any:
        bus = self.server.settings("monitor")
        return self.running(serve_monitor, MonitorSettings(bus=bus, **fields))

    def agent_settings(self) -> AgentSettings:
        bus = self.server.settings(f"agent-{AGENT}")
        return AgentSettings(name=AGENT, fleet=self.file, bus=bus)

    def agent(self) -> Any:
        return self.running(serve_agent, self.agent_settings())

    @asynccontextmanager
    async def agent_process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """The agent through the command line; killed at the end of the block."""
        env = {
            **os.environ,
            **self.server.settings(f"agent-{AGENT}").environment(),
            "FLEXPIPE_AGENT_NAME": AGENT,
            "FLEXPIPE_AGENT_FLEET": str(self.file),
        }
        argv = (sys.executable, "-m", "flexpipe.cli", "run", "agent")
        process = await asyncio.create_subprocess_exec(*argv, env=env)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    # -- hands ----------------------------------------------------------------------------------

    async def host(self, node: str, devices: tuple[str, ...] = ("g0", "g1", "g2", "g3")) -> None:
        """A worker says what it can place on, and beats from now on."""
        host = Host(node=node, address="127.0.0.1", devices=devices)
        before = await self.people.read("hosts", node)
        put = Put(
            write_id=f"host {node} {before.revision}",
            bucket="hosts",
            key=node,
            value=host.canonical_json(),
            expected=before.revision,
        )
        assert (await self.workers.put(put)).outcome == "written"
        self.beating.add(node)

    async def alter(self, node: str, change: str, *devices: str, **fields: Any) -> None:
        self.orders += 1
        order = AlterNode.model_validate(
            {"node": node, "change": change, "devices": devices, **fields}
        )
        await self.people.publish(publish(order, self.orders))

    # -- eyes -----------------------------------------------------------------------------------

    async def fleet(self) -> Fleet:
        entries = await self.people.read_all("fleet")
        return Fleet(nodes=tuple(Node.model_validate_json(entry.value or "") for entry in entries))

    async def until(self, condition: Condition, limit_s: float = LIMIT_S) -> Fleet:
        """Wait until the fleet is so; gives it."""
        async with asyncio.timeout(limit_s):
            while not condition(fleet := await self.fleet()):  # noqa: ASYNC110 - the bus is asked
                await asyncio.sleep(0.02)
        return fleet

    async def until_open(self, count: int = 8) -> Fleet:
        """Every device takes something new."""
        return await self.until(
            lambda fleet: sum(fleet.closed(ref) is None for ref in fleet.refs()) == count
        )

    async def until_said(self, what: Callable[[FleetChanged], object]) -> FleetChanged:
        """Wait until the monitor has said something; gives the first such word."""
        await until(lambda: any(what(said) for said in self.said), LIMIT_S)
        return next(said for said in self.said if what(said))

    async def beat(self) -> None:
        while True:
            for node in sorted(self.beating):
                await self.workers.beat(HostHeartbeat(node=node))
            await asyncio.sleep(BEAT_EVERY_S)


@asynccontextmanager
async def a_site(folder: Path) -> AsyncIterator[Site]:
    """A bus, an operator who listens, workers for `b1` and `b2`."""
    file = folder / "pair.toml"
    file.write_text(FLEET)
    agent = Instance(service="agent", name=AGENT, keys=("b1", "b2"))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(temporary_nats([agent]))
        people = await stack.enter_async_context(
            connect(server.settings("operator"), service="operator", name="test")
        )
        workers = await stack.enter_async_context(
            connect(server.settings("worker"), service="worker", name="both")
        )
        site = Site(server, people, workers, file, stack)
        changes = await stack.enter_async_context(people.listen([Hearing(FleetChanged)]))
        spans = await stack.enter_async_context(people.listen([Hearing(SpanEnded)]))
        for node in ("b1", "b2"):
            await site.host(node)

        async def hear_changes() -> None:
            async for delivered in changes:
                site.said.append(FleetChanged.model_validate_json(delivered.message))

        async def hear_spans() -> None:
            async for delivered in spans:
                site.spans.append(SpanEnded.model_validate_json(delivered.message))

        tasks = [asyncio.create_task(work) for work in (hear_changes(), hear_spans(), site.beat())]
        try:
            yield site
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
