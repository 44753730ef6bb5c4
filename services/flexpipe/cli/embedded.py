"""An instance on this machine: embedded NATS, the services as processes, workers for the nodes of a layout.

`flexpipe up` keeps one running; the demo and the tests start their own. Leaves nothing running, however it is left.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from rich.text import Text

from flexpipe.bus.server import EmbeddedServer, embedded_server
from flexpipe.bus.settings import BusSettings
from flexpipe.bus.users import Instance
from flexpipe.cli.context import home
from flexpipe.cli.ports import engine_ports, free_port, require_free
from flexpipe.cli.supervisor import Child, Supervisor, log_tail
from flexpipe.kernel.errors import InvalidInput, Unavailable

READY_LIMIT_S = 30.0
"""Services are ready in two or three seconds; a loaded machine takes ten."""
LOOK_EVERY_S = 0.1
GIGABYTE = 1_000_000_000
EXAMPLES = {
    "sglang": Path("ops/examples/smollm2.toml"),
    "emulated": Path("ops/examples/emulated.toml"),
}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """One emulated node: a worker with CPU slots of that many bytes.

    Engines over several nodes need an address a node: SGLang opens the same ports on each.
    """

    name: str
    address: str = "127.0.0.1"
    slots: int = 2
    slot_bytes: int = 6 * GIGABYTE
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """What an instance consists of. Port 0 means a free one."""

    folder: Path
    nodes: tuple[NodeLayout, ...] = (NodeLayout("node-a"),)
    router_port: int = 0
    routers: tuple[str, ...] = ("router-1",)
    device_kind: str = "cpu"
    log_level: str = "INFO"
    env: dict[str, str] = field(default_factory=dict)


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
    nodes = [Instance(service="worker", name=node.name) for node in layout.nodes]
    routers = [Instance(service="router", name=name) for name in layout.routers]
    supervisor = Supervisor()
    tell("starting NATS (JetStream, loopback)")
    async with AsyncExitStack() as stack:
        ports = stack.enter_context(engine_ports(len(nodes)))
        server = await stack.enter_async_context(
            embedded_server(folder / "bus", instances=[*nodes, *routers])
        )
        try:
            probes = await _start_services(layout, folder, server, supervisor, ports)
            tell(f"services: {', '.join(supervisor.pids)}")
            await _until_ready(probes, folder)
            urls = tuple(
                url.removesuffix("/ready") for name, url in probes.items() if name in layout.routers
            )
            yield Embedded(layout, server, supervisor, urls)
        finally:
            tell("stopping")
            await asyncio.shield(supervisor.stop())


async def _start_services(
    layout: Layout,
    folder: Path,
    server: EmbeddedServer,
    supervisor: Supervisor,
    engines: tuple[int, ...],
) -> dict[str, str]:
    """Start executor, workers and routers; the readiness address of each by name."""
    probes: dict[str, str] = {}

    async def start(service: str, name: str, settings: BusSettings, env: dict[str, str]) -> None:
        await supervisor.start(
            Child(
                name=name,
                argv=(sys.executable, "-m", "flexpipe.cli", "run", service, "--exit-with-parent"),
                env={
                    **settings.environment(),
                    "FLEXPIPE_LOG_LEVEL": layout.log_level,
                    **env,
                    **layout.env,
                },
                log=folder / "logs" / f"{name}.log",
            )
        )

    port = free_port()
    probes["executor"] = f"http://127.0.0.1:{port}/ready"
    await start(
        "executor",
        "executor",
        server.settings("executor"),
        {"FLEXPIPE_EXECUTOR_HTTP_PORT": str(port)},
    )
    for index, node in enumerate(layout.nodes):
        port = free_port()
        probes[node.name] = f"http://127.0.0.1:{port}/ready"
        env = _worker_env(layout, node, folder / node.name, index, port)
        env["FLEXPIPE_WORKER_FIRST_PORT"] = str(engines[index])
        await start("worker", node.name, server.settings(f"worker-{node.name}"), env)
    for index, name in enumerate(layout.routers):
        port = layout.router_port + index if layout.router_port else free_port()
        require_free(port)
        probes[name] = f"http://127.0.0.1:{port}/ready"
        env = {"FLEXPIPE_ROUTER_NAME": name, "FLEXPIPE_ROUTER_PORT": str(port)}
        await start("router", name, server.settings(f"router-{name}"), env)
    return probes


def _worker_env(
    layout: Layout, node: NodeLayout, state: Path, index: int, port: int
) -> dict[str, str]:
    cores = psutil.cpu_count() or 1
    devices = [
        {
            "device": f"cpu{slot}",
            "kind": layout.device_kind,
            "memory_bytes": node.slot_bytes,
            "core": (index * node.slots + slot) % cores,
        }
        for slot in range(node.slots)
    ]
    return {
        "FLEXPIPE_WORKER_NODE": node.name,
        "FLEXPIPE_WORKER_ADDRESS": node.address,
        "FLEXPIPE_WORKER_DEVICES": json.dumps(devices),
        "FLEXPIPE_WORKER_STATE_DIR": str(state),
        "FLEXPIPE_WORKER_HTTP_PORT": str(port),
        **node.env,
    }


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
    deploy: Callable[[Embedded], Coroutine[None, None, None]],
) -> None:
    """`flexpipe up`: an instance in `home()` with the example deployed on it, until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, stop.set)
    layout = Layout(folder=home(), router_port=port, device_kind=device_kind(engine))
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
