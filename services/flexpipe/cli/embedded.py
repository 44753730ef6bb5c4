"""An instance on this machine: embedded NATS, the services as processes, workers for the nodes of a layout.

`flexpipe up` keeps one running; the demo and the tests start their own. Leaves nothing running, however it is left.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.text import Text

from flexpipe.bus.connection import connect
from flexpipe.bus.server import EmbeddedServer, embedded_server
from flexpipe.bus.settings import BusSettings
from flexpipe.bus.users import Instance
from flexpipe.cli.context import home
from flexpipe.cli.layouts import Layout
from flexpipe.cli.looking import read_fleet
from flexpipe.cli.ports import PLANS_A_NODE, InstancePorts, instance_ports, require_free
from flexpipe.cli.supervisor import Child, Supervisor, log_tail
from flexpipe.fragments.declared import FleetSpec, NodeSpec
from flexpipe.kernel.errors import InvalidInput, Unavailable

READY_LIMIT_S = 30.0
"""Services are ready in two or three seconds; a loaded machine takes ten."""
LOOK_EVERY_S = 0.1
AGENT = "here"
"""The one agent process that speaks for all nodes of this machine."""
EXAMPLES = {
    "sglang": Path("ops/examples/smollm2.toml"),
    "emulated": Path("ops/examples/emulated.toml"),
}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Embedded:
    """A running instance."""

    layout: Layout
    server: EmbeddedServer
    supervisor: Supervisor
    router_urls: tuple[str, ...]

    @property
    def router_url(self) -> str:
        """The (first) router's endpoint."""
        return self.router_urls[0]

    @property
    def operator(self) -> BusSettings:
        """How the operator connects."""
        return self.server.settings("operator")


@asynccontextmanager
async def embedded(layout: Layout, tell: Tell = lambda _: None) -> AsyncIterator[Embedded]:
    """Start everything, wait until it is ready, stop everything at the end of the block. Raises FlexPipeError."""
    folder = layout.folder.absolute()
    fleet = layout.fleet()
    supervisor = Supervisor()
    tell("starting NATS (JetStream, loopback)")
    async with AsyncExitStack() as stack:
        ports = stack.enter_context(instance_ports(len(fleet.nodes)))
        server = await stack.enter_async_context(
            embedded_server(folder / "bus", instances=_instances(layout, fleet))
        )
        cast = _Cast(layout, fleet, folder, server, supervisor, ports)
        try:
            await cast.start_all()
            tell(f"services: {', '.join(supervisor.pids)}")
            await _until_ready(cast.probes, folder)
            await _until_placeable(server, fleet)
            yield Embedded(layout, server, supervisor, cast.router_urls)
        finally:
            tell("stopping")
            await asyncio.shield(supervisor.stop())


def _instances(layout: Layout, fleet: FleetSpec) -> list[Instance]:
    names = tuple(node.node for node in fleet.nodes)
    return [
        Instance(service="agent", name=AGENT, keys=names),
        *(Instance(service="worker", name=name) for name in names),
        *(Instance(service="router", name=name) for name in layout.routers),
    ]


@dataclass(slots=True)
class _Cast:
    """Starts the services of an instance, and knows where each says that it is ready."""

    layout: Layout
    fleet: FleetSpec
    folder: Path
    server: EmbeddedServer
    supervisor: Supervisor
    ports: InstancePorts
    probes: dict[str, str] = field(default_factory=dict)

    @property
    def router_urls(self) -> tuple[str, ...]:
        """Endpoints of the routers, in the layout's order."""
        return tuple(self.probes[name].removesuffix("/ready") for name in self.layout.routers)

    async def start_all(self) -> None:
        """The fleet's own services first: plans need a fleet."""
        fleet_file = self.folder / "fleet.toml"
        fleet_file.write_text(self.layout.fleet_text(), encoding="utf-8")
        await self._start("monitor")
        await self._start(
            "agent", AGENT, {"FLEXPIPE_AGENT_NAME": AGENT, "FLEXPIPE_AGENT_FLEET": str(fleet_file)}
        )
        for node, first_port in zip(self.fleet.nodes, self.ports.engines, strict=True):
            env = _worker_env(node, self.folder / node.node, first_port)
            await self._start("worker", node.node, {**env, **self.layout.env_of(node)})
        await self._start("executor")
        if self.layout.loop:
            await self._start("planner")
            await self._start("estimator")
        for index, name in enumerate(self.layout.routers):
            port = self.layout.router_port + index if self.layout.router_port else None
            if port is not None:
                require_free(port)
            await self._start("router", name, {"FLEXPIPE_ROUTER_NAME": name}, port)

    async def _start(
        self,
        service: str,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        """One service; `name` where it is one of several of its kind."""
        port = port or self.ports.service()
        user = service if name is None else f"{service}-{name}"
        called = name or service
        port_variable = "PORT" if service == "router" else "HTTP_PORT"
        self.probes[called] = f"http://127.0.0.1:{port}/ready"
        await self.supervisor.start(
            Child(
                name=called,
                argv=(sys.executable, "-m", "flexpipe.cli", "run", service, "--exit-with-parent"),
                env={
                    **self.server.settings(user).environment(),
                    "FLEXPIPE_LOG_LEVEL": self.layout.log_level,
                    f"FLEXPIPE_{service.upper()}_{port_variable}": str(port),
                    **(env or {}),
                    **self.layout.env,
                },
                log=self.folder / "logs" / f"{called}.log",
            )
        )


def _worker_env(node: NodeSpec, state: Path, first_port: int) -> dict[str, str]:
    devices = [device.model_dump(mode="json") for device in node.devices]
    return {
        "FLEXPIPE_WORKER_NODE": node.node,
        "FLEXPIPE_WORKER_ADDRESS": node.address,
        "FLEXPIPE_WORKER_DEVICES": json.dumps(devices),
        "FLEXPIPE_WORKER_STATE_DIR": str(state),
        "FLEXPIPE_WORKER_FIRST_PORT": str(first_port),
        "FLEXPIPE_WORKER_PORT_BLOCKS": str(PLANS_A_NODE),
    }


async def _until_placeable(server: EmbeddedServer, fleet: FleetSpec) -> None:
    """Agents were heard and workers are known: every node of the fleet is there, with a worker."""
    wanted = {node.node for node in fleet.nodes}
    async with connect(server.settings("operator"), service="operator", name="up") as bus:
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                while not wanted <= {  # noqa: ASYNC110 - what another process writes
                    node.node for node in (await read_fleet(bus)).nodes if node.address
                }:
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError as error:
            known = {node.node for node in (await read_fleet(bus)).nodes if node.address}
            missing = ", ".join(sorted(wanted - known))
            raise Unavailable(
                f"the fleet does not show {missing} after {READY_LIMIT_S:g} s; see the logs of monitor and agent"
            ) from error


async def _until_ready(probes: dict[str, str], folder: Path) -> None:
    waiting = dict(probes)
    try:
        async with asyncio.timeout(READY_LIMIT_S), httpx.AsyncClient(trust_env=False) as http:
            while waiting:
                for name, url in list(waiting.items()):
                    if await _answers(http, url):
                        del waiting[name]
                await asyncio.sleep(LOOK_EVERY_S if waiting else 0)
    except TimeoutError as error:
        name = next(iter(waiting))
        last = log_tail(folder / "logs" / f"{name}.log").splitlines()[-1:]
        raise Unavailable(
            f"{name} is not ready after {READY_LIMIT_S:g} s: {' '.join(last) or 'it logged nothing'}"
        ) from error


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def run_up(
    engine: str,
    console: Console,
    *,
    port: int,
    fleet: Path | None,
    deploy: Callable[[Embedded], Coroutine[None, None, None]],
) -> None:
    """`flexpipe up`: an instance in `home()` with what `deploy` puts on it, until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, stop.set)
    layout = Layout(
        folder=home(),
        fleet_file=fleet,
        router_port=port,
        device_kind=device_kind(engine),
        loop=True,
    )
    async with embedded(layout, console.print) as instance:
        deploying = asyncio.create_task(deploy(instance))
        lost = asyncio.create_task(instance.supervisor.lost())
        ends = {asyncio.create_task(stop.wait()), lost}
        try:
            await asyncio.wait({deploying, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if deploying.done():
                deploying.result()
                _print_ready(console, instance)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (deploying, *ends):
                task.cancel()
            await asyncio.wait({deploying, *ends})
        if not lost.cancelled():
            raise Unavailable(lost.result())


def _print_ready(console: Console, instance: Embedded) -> None:
    console.print(
        f"[green]ready[/]  endpoint {instance.router_url}/v1   NATS {instance.server.url}"
    )
    logs = Text(f"logs in {instance.layout.folder / 'logs'}; interrupt to stop")
    console.print(logs, soft_wrap=True)


def device_kind(engine: str) -> str:
    """What slots on this machine are called for an engine. Raises InvalidInput for an engine without an example."""
    if engine not in EXAMPLES:
        raise InvalidInput("engine", engine, "use one of " + ", ".join(sorted(EXAMPLES)))
    return "emulated" if engine == "emulated" else "cpu"
