"""A router as its clients and the executor meet it: the real service on a real bus, in front of emulated engines."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from flexpipe.bus import Bus, Hearing, connect
from flexpipe.bus.server import EmbeddedServer
from flexpipe.engines.client import EngineClient, engine_http
from flexpipe.engines.emulated.arguments import parse_arguments
from flexpipe.engines.emulated.oracle import Oracle
from flexpipe.events.outgoing import publish
from flexpipe.events.route import BatchHandedOver, MoveSequences, RouteApplied, SequenceClosed
from flexpipe.kernel.machine import Put
from flexpipe.model.deployment import ModelFacts, ModelRef, Policy
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.plan import LayerRange, Plan, Stage
from flexpipe.model.route import PlanState, RoutedPlan, RouteEntry
from flexpipe.router.app import serve
from flexpipe.router.settings import Settings
from flexpipe.routing.text.tokenizer import TextTokenizer
from flexpipe.testing.nats import until

MODEL = "toy"
DEPLOYMENT = "chat"
ROUTER = "router-1"
WAIT_LIMIT_S = 20.0
STEP_MS = 8
TABLE = f"""
start_s = 0.0
prefill_tokens_per_s = 50000.0
[decode_step_ms.default]
base = {STEP_MS}
per_sequence = 0.0
"""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def a_plan(device: str) -> Plan:
    """A TP1 plan on one device."""
    ref = DeviceRef(node="node-a", device=device)
    stage = Stage(layers=LayerRange(first=0, end=4), devices=(ref,), rank_bytes=1000)
    return Plan(model=MODEL, engine="emulated", stages=(stage,))


@dataclass
class Engine:
    """One emulated engine process, its gate open."""

    plan: Plan
    port: int
    popen: subprocess.Popen[bytes]
    oracle: Oracle

    @property
    def front(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End it without notice."""
        self.popen.kill()
        self.popen.wait()

    async def requests(self) -> int:
        """The engine's own count of what it holds."""
        async with engine_http() as http:
            return (await EngineClient(http, self.front).loads()).requests


@contextmanager
def engine(folder: Path, device: str, port: int | None = None, **environ: str) -> Iterator[Engine]:
    """Start an engine and wait until it is ready."""
    plan = a_plan(device)
    port = port or free_port()
    table = folder.parent / "table.toml"
    if not table.exists():
        table.write_text(TABLE)
    arguments = ["--model-path", str(folder), "--port", str(port), "--plan-id", plan.id]
    arguments += ["--performance", str(table), "--served-model-name", MODEL]
    popen = subprocess.Popen(
        [sys.executable, "-m", "flexpipe.engines.emulated", *arguments],
        env={**os.environ, "FLEXPIPE_GATE_OPEN": "1", "FLEXPIPE_GATE_FENCE": "1.1.0", **environ},
        start_new_session=True,
    )
    try:
        running = Engine(plan, port, popen, parse_arguments(arguments).oracle)
        _await_ready(running)
        yield running
    finally:
        popen.kill()
        popen.wait()


def _await_ready(running: Engine) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    with httpx.Client(trust_env=False) as http:
        while True:
            assert running.popen.poll() is None, "the engine ended at its start"
            assert time.monotonic() < deadline, "the engine does not get ready"
            try:
                if http.get(f"{running.front}/ready").status_code == 200:
                    return
            except httpx.TransportError:
                # A connect that is refused returns at once; the next one waits for the kernel a little.
                _breathe()


def _breathe() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


@dataclass
class Stream:
    """One streamed answer as its client reads it."""

    frames: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    done: bool = False
    body: bytes = b""
    gaps_ms: list[float] = field(default_factory=list)

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for frame in self.frames for choice in frame.get("choices", ())]

    @property
    def text(self) -> str:
        return "".join(
            choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
            for choice in self.choices
        )

    @property
    def tokens(self) -> list[int]:
        return [token for choice in self.choices for token in choice.get("token_ids") or ()]

    @property
    def prompt(self) -> list[int]:
        return next(f["prompt_token_ids"] for f in self.frames if f.get("prompt_token_ids"))

    @property
    def finishes(self) -> list[str]:
        return [each["finish_reason"] for each in self.choices if each["finish_reason"]]

    @property
    def usages(self) -> list[dict[str, int]]:
        return [frame["usage"] for frame in self.frames if frame.get("usage")]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [frame["error"] for frame in self.frames if "error" in frame]

    @property
    def ids(self) -> set[str]:
        return {frame["id"] for frame in self.frames if "id" in frame}

    @property
    def sequence(self) -> str:
        return self.headers["x-flexpipe-sequence"]


class Scene:
    """One router with its bus, from outside."""

    def __init__(self, url: str, bus: Bus, model_folder: Path) -> None:
        self.url = url
        self.bus = bus
        self.http = httpx.AsyncClient(base_url=url, trust_env=False, timeout=WAIT_LIMIT_S)
        self.text = TextTokenizer.load(model_folder)
        self._folder = model_folder
        self._step = 0
        self.revision = 0
        self.shift = 1

    # -- the executor's part ------------------------------------------------------------------

    async def route(
        self,
        *plans: RoutedPlan,
        in_flight: int | None = None,
        policy: Policy | None = None,
        stopped: bool = False,
        applied: bool = True,
    ) -> RouteEntry:
        """Write the route entry and wait until the router has applied it."""
        entry = self.entry(*plans, in_flight=in_flight, policy=policy, stopped=stopped)
        hearing = [Hearing(RouteApplied, key=DEPLOYMENT)]
        async with self.bus.listen(hearing) as heard:
            now = await self.bus.read("routes", DEPLOYMENT)
            put = Put(
                write_id=uuid.uuid4().hex,
                bucket="routes",
                key=DEPLOYMENT,
                value=entry.canonical_json(),
                expected=now.revision,
            )
            stored = await self.bus.put(put)
            assert stored.outcome == "written"
            self.revision = (await self.bus.read("routes", DEPLOYMENT)).revision
            if applied:
                async with asyncio.timeout(WAIT_LIMIT_S):
                    async for message in heard:
                        if json.loads(message.message)["revision"] >= self.revision:
                            break
        return entry

    def entry(
        self,
        *plans: RoutedPlan,
        in_flight: int | None = None,
        policy: Policy | None = None,
        stopped: bool = False,
    ) -> RouteEntry:
        """A route entry of the present shift."""
        facts = ModelFacts(
            layers=4,
            heads=4,
            kv_heads=2,
            head_dim=32,
            hidden=128,
            vocab=4096,
            context_tokens=2048,
            weights_bytes=1,
            tied_embeddings=False,
            architecture="LlamaForCausalLM",
        )
        return RouteEntry(
            deployment=DEPLOYMENT,
            model=ModelRef(name=MODEL, path=str(self._folder), facts=facts),
            policy=policy or Policy(finish_within_tokens=0),
            term=1,
            shift=self.shift,
            plans=plans,
            in_flight=in_flight,
            stopped=stopped,
        )

    async def move(
        self,
        old: Iterable[Engine] = (),
        new: Iterable[Engine] = (),
        lost: Iterable[Engine] = (),
        **fields: Any,
    ) -> list[BatchHandedOver]:
        """Order a hand-over and wait until nothing remains; every report of it."""
        self._step += 1
        order = MoveSequences(
            router=ROUTER,
            fence=Fence(deployment=DEPLOYMENT, term=1, shift=self.shift, step=self._step),
            from_plans=tuple(each.plan.id for each in old),
            to_plans=tuple(each.plan.id for each in new),
            lost_plans=tuple(each.plan.id for each in lost),
            route_revision=self.revision,
            limit_s=30,
            **fields,
        )
        reports = []
        async with self.bus.listen([Hearing(BatchHandedOver, key=DEPLOYMENT)]) as heard:
            await self.bus.publish(publish(order, str(order.fence)))
            async with asyncio.timeout(WAIT_LIMIT_S):
                async for message in heard:
                    report = BatchHandedOver.model_validate_json(message.message)
                    if report.fence == order.fence:
                        reports.append(report)
                        if report.remaining == 0:
                            break
        return reports

    async def shift_live(self, old: Engine, new: Engine, **fields: Any) -> list[BatchHandedOver]:
        """Freeze, hand over, commit: from one engine to the other."""
        self.shift += 1
        frozen = (routed(old, PlanState.FROZEN, 0), routed(new))
        await self.route(*frozen, in_flight=self.shift, **fields)
        reports = await self.move([old], [new])
        await self.route(routed(old, PlanState.RETIRING, 0), routed(new), **fields)
        return reports

    @asynccontextmanager
    async def closings(self) -> AsyncIterator[dict[str, SequenceClosed]]:
        """Sequences that closed within the block."""
        found: dict[str, SequenceClosed] = {}
        async with self.bus.listen([Hearing(SequenceClosed)]) as heard:

            async def gather() -> None:
                async for message in heard:
                    closed = SequenceClosed.model_validate_json(message.message)
                    found[closed.sequence] = closed

            task = asyncio.create_task(gather())
            try:
                yield found
            finally:
                task.cancel()

    # -- the client's part --------------------------------------------------------------------

    def body(self, **fields: Any) -> dict[str, Any]:
        """A greedy chat request."""
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": "ba be bi"}],
            "temperature": 0,
            "max_tokens": 60,
        } | fields

    async def stream(
        self, into: Stream | None = None, path: str = "/v1/chat/completions", **fields: Any
    ) -> Stream:
        """Read one stream to its end."""
        stream = into if into is not None else Stream()
        body = self.body(stream=True, return_token_ids=True) | fields
        body = {name: value for name, value in body.items() if value is not None}
        async with self.http.stream("POST", path, json=body) as response:
            stream.status, stream.headers = response.status_code, dict(response.headers)
            if response.status_code != 200:
                stream.body = await response.aread()
                return stream
            last_s = time.monotonic()
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    stream.done = True
                elif line.startswith("data: "):
                    now_s = time.monotonic()
                    stream.gaps_ms.append((now_s - last_s) * 1e3)
                    last_s = now_s
                    stream.frames.append(json.loads(line.removeprefix("data: ")))
        return stream

    async def streams(
        self, count: int, tokens: int, **fields: Any
    ) -> tuple[list[Stream], list[asyncio.Task[Stream]]]:
        """Open streams and wait until each has some tokens."""
        streams = [Stream() for _ in range(count)]
        tasks = [
            asyncio.create_task(
                self.stream(each, messages=[{"role": "user", "content": f"ba {index}"}], **fields)
            )
            for index, each in enumerate(streams)
        ]

        def begun() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return all(len(each.tokens) >= tokens for each in streams)

        await until(begun, WAIT_LIMIT_S)
        return streams, tasks

    async def gauge(self, name: str) -> float:
        """The sum of a metric's series."""
        page = (await self.http.get("/metrics")).text
        lines = [line for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def routed(which: Engine, state: PlanState = PlanState.ACTIVE, admit: float = 1.0) -> RoutedPlan:
    """An engine in the route entry."""
    fence = Fence(deployment=DEPLOYMENT, term=1, shift=1, step=1)
    return RoutedPlan(plan=which.plan, front=which.front, admit=admit, state=state, fence=fence)


def expected(oracle: Oracle, stream: Stream) -> list[int]:
    """The tokens that an undisturbed run would have given."""
    return oracle.continuation(stream.prompt, len(stream.tokens))


async def until_true(condition: Any, limit_s: float = WAIT_LIMIT_S) -> None:
    """Wait for an asynchronous condition."""
    deadline = time.monotonic() + limit_s
    while not await condition():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def router(
    server: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any
) -> AsyncIterator[tuple[Scene, asyncio.Event, asyncio.Task[None]]]:
    """The service, up and ready; stopped at the end."""
    for name, value in server.settings("router").environment().items():
        monkeypatch.setenv(name, value)
    settings = Settings(name=ROUTER, port=free_port(), **({"stop_limit_s": 1.0} | fields))
    stop = asyncio.Event()
    running = asyncio.create_task(serve(settings, stop))
    async with connect(server.settings("admin"), service="executor", name="test") as bus:
        scene = Scene(settings.public_url, bus, folder)

        async def is_ready() -> bool:
            if running.done():
                running.result()
            try:
                return (await scene.http.get("/ready")).status_code == 200
            except httpx.TransportError:
                return False

        try:
            await until_true(is_ready)
            yield scene, stop, running
        finally:
            stop.set()
            await scene.http.aclose()
            async with asyncio.timeout(WAIT_LIMIT_S):
                await running
