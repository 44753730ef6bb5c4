"""The estimator's service on a real bus: a proposal becomes an order or a decline, also across a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from flexpipe.bus import Bus, Hearing, MachineShell
from flexpipe.bus.journal import read_journal
from flexpipe.bus.replay import replay
from flexpipe.bus.server import EmbeddedServer
from flexpipe.cli.ports import free_port
from flexpipe.costing import Estimator
from flexpipe.estimator.app import serve
from flexpipe.estimator.settings import Settings
from flexpipe.events.catalog import parse
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.planning import CandidatesProposed, ShiftDeclined
from flexpipe.events.shift import OrderShift, Seen, ShiftRefused
from flexpipe.events.trace import SpanEnded
from flexpipe.kernel.ids import trace_id
from flexpipe.kernel.machine import Put
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import Candidate, GearOutlook, Load
from flexpipe.model.route import RouteEntry
from flexpipe.testing.nats import Dial, until
from flexpipe.testing.recorder import Recorder
from simulation.looping import CHAT, a_load
from unit.costing.bench import ONE, TWO, candidate, gear_of

pytestmark = pytest.mark.processes

FLEET_TRACE = trace_id("fleet", 3)
SINCE_S = 0.0
"""From the beginning of the log: what is said before a listener has its place counts too."""


class Site:
    """A bus on which `chat` is declared and nothing serves it. Orders are taken from their queue and written down."""

    def __init__(self, server: EmbeddedServer, planner: Bus, operator: Bus, executor: Bus) -> None:
        self.server = server
        self.planner = planner
        self.operator = operator
        self.executor = executor
        self.orders = Recorder()
        self.said: list[Message] = []
        self.port = free_port()
        self.route_revision = 0
        self._stop = asyncio.Event()
        self._service: asyncio.Task[None] | None = None

    async def open(self, stack: AsyncExitStack) -> None:
        """Declare, and listen to what the estimator says."""
        self.route_revision = await self._put(self.executor, "routes", a_route().canonical_json())
        await self._put(self.operator, "deployments", CHAT.canonical_json())
        queue = MachineShell(
            self.executor,
            machine=self.orders,
            service="executor",
            name="main",
            hears=(Hearing(OrderShift),),
        )
        await stack.enter_async_context(queue)
        for kind in (ShiftDeclined, SpanEnded):
            ear = asyncio.create_task(self._hear(kind))
            stack.push_async_callback(asyncio.wait, [ear])
            stack.callback(ear.cancel)

    async def _hear(self, kind: type[Message]) -> None:
        async with self.operator.listen([Hearing(kind)], since_s=SINCE_S) as messages:
            async for delivered in messages:
                self.said.append(parse(delivered.type, delivered.message))

    async def start(self) -> None:
        """A process of the estimator."""
        self._stop = asyncio.Event()
        settings = Settings(bus=self.server.settings("estimator"), http_port=self.port)
        self._service = asyncio.create_task(serve(settings, self._stop))

    async def stop(self) -> None:
        """It ends as on SIGTERM."""
        self._stop.set()
        if self._service is not None:
            await self._service

    async def propose(self, number: int, *gears: Gear, load: Load) -> None:
        """What the planner says."""
        now = Gear()
        proposal = CandidatesProposed(
            deployment="chat",
            proposal=f"proposal-{number}",
            fleet_revision=3,
            trigger="block a came back",
            urgent=True,
            load=load,
            long_load=load,
            current=Candidate(gear=now, outlook=GearOutlook(), stays_s=600.0),
            candidates=tuple(candidate(gear, now=now, load=load) for gear in gears),
            seen=(Seen(bucket="routes", key="chat", revision=self.route_revision),),
            at_s=self.planner.clock.now_s(),
            trace_id=FLEET_TRACE,
            parent_span_id="00f067aa0ba902b7",
        )
        await self.planner.publish(publish(proposal))

    async def heard(self, kind: type[Message], count: int = 1) -> list[Message]:
        """Wait for so many messages of one class, and give all that came."""

        def messages() -> list[Message]:
            ordered = [parse(each.type, each.message) for each in self.orders.delivered]
            return [message for message in (*ordered, *self.said) if isinstance(message, kind)]

        await until(lambda: len(messages()) >= count)
        return messages()

    async def _put(self, bus: Bus, bucket: str, value: str) -> int:
        put = Put(write_id=f"declare {bucket}", bucket=bucket, key="chat", value=value, expected=0)
        return (await bus.put(put)).entries[0].revision


def a_route() -> RouteEntry:
    """Abandoned: started once, and nothing is left of it."""
    return RouteEntry(
        deployment="chat", model=CHAT.model, policy=CHAT.policy, term=1, shift=1, plans=()
    )


@pytest.fixture
async def here(nats_server: EmbeddedServer, dial: Dial) -> AsyncIterator[Site]:
    """A site with a running estimator."""
    async with AsyncExitStack() as stack:
        buses = [await dial(service) for service in ("planner", "operator", "executor")]
        site = Site(nats_server, *buses)
        await site.open(stack)
        await site.start()
        try:
            yield site
        finally:
            await site.stop()


async def test_a_proposal_on_the_bus_leads_to_an_order_on_the_executor_s_lane(here: Site) -> None:
    await here.propose(1, gear_of(TWO), load=a_load(5.0))
    (order,) = await here.heard(OrderShift)
    assert isinstance(order, OrderShift)
    assert (order.order.target, order.order.by) == (gear_of(TWO), "estimator")
    assert order.order.trace_id == FLEET_TRACE
    (ended,) = await here.heard(SpanEnded)
    assert isinstance(ended, SpanEnded)
    assert (ended.service, ended.span.name) == ("estimator", "price")
    assert ended.span.parent_span_id == "00f067aa0ba902b7"
    assert order.order.parent_span_id == ended.span.span_id


async def test_what_failed_is_declined_also_after_a_restart_and_shows_in_metrics(
    here: Site,
) -> None:
    await here.propose(1, gear_of(TWO), load=a_load(5.0))
    (order,) = await here.heard(OrderShift)
    assert isinstance(order, OrderShift)
    refused = ShiftRefused(deployment="chat", order_id=order.order_id, reason="b1/g1 is gone")
    await here.executor.publish(publish(refused))
    await here.propose(2, gear_of(TWO), load=a_load(5.0))
    (said,) = await here.heard(ShiftDeclined)
    assert isinstance(said, ShiftDeclined)
    assert (said.proposal, said.guard) == ("proposal-2", "untried")
    assert "b1/g1 is gone" in said.reason

    await here.stop()
    await here.start()
    await here.propose(3, gear_of(TWO), load=a_load(5.0))
    _, again = await here.heard(ShiftDeclined, 2)
    assert isinstance(again, ShiftDeclined)
    assert (again.proposal, again.guard) == ("proposal-3", "untried")
    await here.propose(4, gear_of(ONE), load=a_load(5.0))
    _, other = await here.heard(OrderShift, 2)
    assert isinstance(other, OrderShift)
    assert other.order.target == gear_of(ONE)

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{here.port}") as http:
        assert (await http.get("/ready")).status_code == 200
        page = (await http.get("/metrics")).text
    assert 'flexpipe_estimator_declines_total{deployment="chat",guard="untried"} 1.0' in page
    assert 'flexpipe_estimator_orders_total{deployment="chat"} 1.0' in page


async def test_the_journal_of_both_lives_gives_the_same_effects_again(here: Site) -> None:
    await here.propose(1, gear_of(TWO), load=a_load(5.0))
    await here.heard(OrderShift)
    await here.stop()
    await here.start()
    await here.propose(2, gear_of(ONE), load=a_load(5.0))
    (said,) = await here.heard(ShiftDeclined)
    assert isinstance(said, ShiftDeclined)
    assert said.guard == "free"  # the order of the life before is not answered yet
    await here.stop()
    lines = [line async for line in read_journal(here.operator, "estimator", "estimator")]
    report = replay(lines, Estimator)
    assert (report.runs, report.differing) == (2, ())
    assert report.events == 4  # a start and a proposal in each
