"""The planner service on a real bus: a fleet in the bucket is proposals within a cycle, and its journal replays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from flexpipe.bus import Bus, Hearing
from flexpipe.bus.journal import read_journal
from flexpipe.bus.replay import replay
from flexpipe.bus.server import EmbeddedServer
from flexpipe.events.catalog import parse
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.planning import Baseline, BaselineResolved, CandidatesProposed
from flexpipe.events.trace import SpanEnded
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Put, PutAll, Span
from flexpipe.model.deployment import Deployment, Policy
from flexpipe.model.fleet import Fleet
from flexpipe.model.plan import Plan
from flexpipe.planner.app import serve
from flexpipe.planner.settings import Settings
from flexpipe.planning import Planner
from flexpipe.testing.nats import Dial, until
from unit.planning.bench import (
    FLEET,
    LLAMA_7B,
    LLAMA_70B,
    changed,
    entry_of,
    fleet_changed,
    held_by,
    load_of,
    plan_on,
)

pytestmark = pytest.mark.processes

PACED = Policy().paced(20)  # a cycle of 0.75 s
LARGE = LLAMA_70B.model_copy(update={"policy": PACED})
SMALL = LLAMA_7B.model_copy(update={"policy": PACED})
TP8_ON_A = plan_on(LARGE, "a.8-0")


@dataclass
class Scene:
    """A planner on the bus, and the others whose words it hears."""

    server: EmbeddedServer
    operator: Bus
    monitor: Bus
    executor: Bus
    router: Bus
    heard: list[Message] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    async def put(self, bus: Bus, bucket: str, key: str, value: Frozen) -> None:
        known = await self.operator.read(bucket, key)
        stored = await bus.put(
            Put(
                write_id=f"{bucket} {key}",
                bucket=bucket,
                key=key,
                value=value.canonical_json(),
                expected=known.revision,
            )
        )
        assert stored.outcome == "written"

    async def put_fleet(self, fleet: Fleet) -> None:
        """One atomic batch, as the monitor writes it."""
        puts = [
            Put(
                write_id=node.node,
                bucket="fleet",
                key=node.node,
                value=node.canonical_json(),
                expected=(await self.operator.read("fleet", node.node)).revision,
            )
            for node in fleet.nodes
        ]
        stored = await self.monitor.put_all(PutAll(write_id="fleet", puts=tuple(puts)))
        assert stored.outcome == "written"

    async def run(self, deployment: Deployment, *plans: Plan) -> None:
        await self.put(self.operator, "deployments", deployment.name, deployment)
        for ref, held in held_by(deployment.name, *plans).items():
            await self.put(self.executor, "reservations", ref.key, held)
        await self.put(self.executor, "routes", deployment.name, entry_of(deployment, *plans))

    async def say(self, bus: Bus, message: Message, *cause: object) -> None:
        await bus.publish(publish(message, *cause))

    def proposals(
        self, deployment: Deployment, condition: Callable[[CandidatesProposed], object] = bool
    ) -> list[CandidatesProposed]:
        return [
            message
            for message in self.heard
            if isinstance(message, CandidatesProposed)
            and message.deployment == deployment.name
            and condition(message)
        ]


@pytest.fixture
async def scene(nats_server: EmbeddedServer, dial: Dial) -> AsyncIterator[Scene]:
    scene = Scene(
        server=nats_server,
        operator=await dial("operator"),
        monitor=await dial("monitor"),
        executor=await dial("executor"),
        router=await dial("router", "router-1"),
    )

    async def hear(*classes: type[Message]) -> None:
        async with scene.operator.listen([Hearing(each) for each in classes]) as messages:
            async for delivered in messages:
                message = parse(delivered.type, delivered.message)
                if isinstance(message, SpanEnded):
                    scene.spans.append(message.span)
                else:
                    scene.heard.append(message)

    ears = [
        asyncio.create_task(hear(CandidatesProposed, BaselineResolved)),
        asyncio.create_task(hear(SpanEnded)),
    ]
    try:
        yield scene
    finally:
        for ear in ears:
            ear.cancel()
        await asyncio.gather(*ears, return_exceptions=True)


@asynccontextmanager
async def planner(scene: Scene, port: int = 0) -> AsyncIterator[None]:
    """The service, until the block ends."""
    stop = asyncio.Event()
    settings = Settings(bus=scene.server.settings("planner"), http_port=port)
    running = asyncio.create_task(serve(settings, stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(running, 20.0)


async def test_a_fleet_in_the_bucket_is_proposals_within_a_cycle(scene: Scene) -> None:
    await scene.put_fleet(FLEET)
    await scene.run(LARGE, TP8_ON_A)
    async with planner(scene):
        await until(lambda: scene.proposals(LARGE))
        for n in range(20):
            await scene.say(scene.router, load_of(LARGE, 300), n)
        await until(lambda: scene.proposals(LARGE, lambda p: p.load.data == "busy"))
        (busy, *_) = scene.proposals(LARGE, lambda p: p.load.data == "busy")
        assert busy.load.arrived_per_s == pytest.approx(60.0)
        assert busy.candidates
        grown = [c for c in busy.candidates if TP8_ON_A.id in [p.id for p in c.gear.plans]]
        assert grown
        for seen in busy.seen:
            assert (await scene.operator.read(seen.bucket, seen.key)).revision >= seen.revision


async def test_a_fleet_change_is_answered_at_once_and_in_its_trace(scene: Scene) -> None:
    slow = LARGE.model_copy(update={"policy": Policy()})  # its cycle is longer than this test
    await scene.put_fleet(FLEET)
    await scene.run(slow, TP8_ON_A)
    async with planner(scene):
        await until(lambda: scene.proposals(slow))
        message = fleet_changed(2, "a2 was preempted", 0.0)
        await scene.say(scene.monitor, message)  # the message overtakes the bucket
        await scene.put_fleet(changed({"a2": "preempted"}))
        await until(lambda: scene.proposals(slow, lambda p: p.urgent))
        (urgent, *_) = scene.proposals(slow, lambda p: p.urgent)
        assert (urgent.fleet_revision, urgent.trigger) == (2, "a2 was preempted")
        assert urgent.current.outlook.plans == ()
        used = {n for c in urgent.candidates for p in c.gear.plans for n in p.nodes}
        assert used
        assert "a2" not in used
        await until(lambda: [s for s in scene.spans if s.span_id == urgent.parent_span_id])
        (span,) = (s for s in scene.spans if s.span_id == urgent.parent_span_id)
        assert (span.trace_id, span.parent_span_id) == (message.trace_id, message.span_id)


async def test_the_baseline_follows_the_fleet(scene: Scene) -> None:
    await scene.put_fleet(FLEET)
    await scene.run(LARGE, TP8_ON_A)

    async def kept(revision: int) -> Baseline:
        async with asyncio.timeout(20.0):
            async for entry in scene.operator.watch("baselines"):
                baseline = Baseline.model_validate_json(entry.value or "")
                if baseline.fleet_revision == revision:
                    return baseline
        raise AssertionError("the watch ended")

    async with planner(scene):
        first = await kept(1)
        assert first.gear is not None
        assert first.gear.label == "tp4"
        lost = dict.fromkeys(("a1", "a2", "a3", "b1", "b2"), "preempted")
        await scene.put_fleet(changed(lost))
        last = await kept(2)
        assert last.gear is None
        assert last.reason

        def said() -> list[bool]:
            resolved = [m for m in scene.heard if isinstance(m, BaselineResolved)]
            return [each.baseline.gear is None for each in resolved]

        await until(lambda: said() == [False, True])


async def test_a_restarted_planner_goes_on(scene: Scene) -> None:
    await scene.put_fleet(FLEET)
    await scene.run(SMALL)
    async with planner(scene):
        await until(lambda: scene.proposals(SMALL))
    before = len(scene.proposals(SMALL))
    await scene.say(scene.router, load_of(SMALL, 10))
    async with planner(scene):
        await until(lambda: len(scene.proposals(SMALL)) > before)
        await until(lambda: scene.proposals(SMALL, lambda p: p.load.data == "busy"))


async def test_its_journal_replays_to_the_same_effects(scene: Scene) -> None:
    await scene.put_fleet(FLEET)
    await scene.run(LARGE, TP8_ON_A)
    await scene.run(SMALL)
    async with planner(scene):
        await until(lambda: len(scene.proposals(LARGE)) >= 2)
        await scene.say(scene.router, load_of(SMALL, 10))
        await scene.put_fleet(changed({"a2": "preempted"}))
        await scene.say(scene.monitor, fleet_changed(2, "a2 was preempted", 0.0))
        await until(lambda: scene.proposals(SMALL, lambda p: p.urgent))
    lines = [line async for line in read_journal(scene.operator, "planner", "planner")]
    report = replay(lines, Planner)
    assert report.events > 10
    assert report.differing == ()


async def test_it_says_when_it_is_ready_and_what_it_counted(
    scene: Scene, unused_tcp_port: int
) -> None:
    await scene.put_fleet(FLEET)
    await scene.run(SMALL)
    async with (
        planner(scene, unused_tcp_port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as http,
    ):
        await until(lambda: scene.proposals(SMALL))
        assert (await http.get("/ready")).status_code == 200
        page = (await http.get("/metrics")).text
        assert 'flexpipe_planner_proposals_total{deployment="llama-7b",reason="cycle"}' in page
