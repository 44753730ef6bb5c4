"""Samples and beats on a real server: light, lost without a word where the bus is away, never in anybody's way."""

from __future__ import annotations

import asyncio
import os
import signal

import nats
import pytest
from nats.aio.msg import Msg

from flexpipe.bus import Bus, Hearing, MachineShell, connect
from flexpipe.bus.server import EmbeddedServer
from flexpipe.bus.users import Instance
from flexpipe.events import catalog
from flexpipe.events.fleet import (
    AlterNode,
    HostHeartbeat,
    NodeHeartbeat,
    NodeSampled,
    PlanAnswered,
    SampleAsked,
)
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.shift import OrderShift
from flexpipe.kernel.errors import InvalidInput, Refused
from flexpipe.kernel.machine import Delivered, Effects, Input
from flexpipe.testing.nats import Dial, temporary_nats, until
from flexpipe.testing.recorder import Recorder
from flexpipe.testing.tally import Nudged

pytestmark = pytest.mark.processes

BEATS = (Hearing(NodeHeartbeat), Hearing(HostHeartbeat))
SAMPLE = NodeSampled(node="a1", counter=1, full=True, devices=(), fabrics=())
BEAT = NodeHeartbeat(node="a1", counter=1)


def message_of(heard: Delivered) -> Message:
    return catalog.parse(heard.type, heard.message)


async def test_samples_and_beats_are_heard_as_they_pass(dial: Dial) -> None:
    agent, worker, monitor = await dial("agent", "a1"), await dial("worker"), await dial("monitor")
    async with monitor.overhear((*BEATS, Hearing(NodeSampled))) as heard:
        await agent.publish(publish(SAMPLE, "a test"))
        await agent.beat(BEAT)
        got = [await asyncio.wait_for(anext(heard), 5) for _ in range(2)]
        await worker.beat(HostHeartbeat(node="b1"))
        got.append(await asyncio.wait_for(anext(heard), 5))
    assert [message_of(each) for each in got] == [SAMPLE, BEAT, HostHeartbeat(node="b1")]
    assert got[0].message_id == publish(SAMPLE, "a test").message_id
    assert len({each.message_id for each in got}) == 3
    assert [each.sent_at_s for each in got] == [None] * 3
    with pytest.raises(StopAsyncIteration):
        await anext(heard)


async def test_a_beat_is_a_body_of_sixty_bytes_and_no_header(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    agent, settings = await dial("agent", "a1"), nats_server.settings("admin")
    client = await nats.connect(
        settings.url, user="admin", password=settings.password.get_secret_value()
    )
    passed: list[Msg] = []

    async def note(message: Msg) -> None:
        passed.append(message)

    await client.subscribe("flexpipe.tel.>", cb=note)
    await client.flush()
    await agent.beat(BEAT)
    await until(lambda: passed)
    await client.close()
    assert (passed[0].subject, passed[0].headers) == ("flexpipe.tel.node.heartbeat.a1", None)
    assert passed[0].data == b'{"counter":1,"node":"a1"}'
    with pytest.raises(InvalidInput, match=r"flexpipe.node.heartbeat: .* at most 60 bytes"):
        await agent.beat(NodeHeartbeat(node="a" * 60, counter=1))
    with pytest.raises(InvalidInput, match="a heartbeat of the catalogue"):
        await agent.beat(SAMPLE)


async def test_what_is_stored_is_not_overheard(dial: Dial) -> None:
    monitor = await dial("monitor")
    with pytest.raises(InvalidInput, match="the tel lane only"):
        async with monitor.overhear((Hearing(NodeHeartbeat), Hearing(OrderShift))):
            pass


async def test_what_a_user_may_not_hear_is_refused_at_once(dial: Dial) -> None:
    worker = await dial("worker")
    with pytest.raises(Refused, match=r"no permission to hear flexpipe.tel.node.heartbeat.>"):
        async with worker.overhear((Hearing(NodeHeartbeat),)):
            pass


async def test_an_agent_of_some_nodes_cannot_speak_or_listen_for_another() -> None:
    agent = Instance(service="agent", name="fleet", keys=("a1", "b1"))
    async with (
        temporary_nats((agent,)) as server,
        connect(server.settings("agent-fleet"), service="agent", name="fleet") as bus,
        connect(server.settings("monitor"), service="monitor", name="monitor") as monitor,
        connect(server.settings("operator"), service="operator", name="cli") as operator,
        monitor.overhear(BEATS) as heard,
    ):
        for node in ("c1", "a1", "c1", "b1"):
            await bus.beat(NodeHeartbeat(node=node, counter=0))
        got = [message_of(await asyncio.wait_for(anext(heard), 5)) for _ in range(2)]
        assert got == [NodeHeartbeat(node=node, counter=0) for node in ("a1", "b1")]
        with pytest.raises(Refused):
            async with bus.overhear((Hearing(SampleAsked),)):
                pass

        machine = Recorder()
        hears = [Hearing(kind, node) for kind in (AlterNode, SampleAsked) for node in ("b1", "a1")]
        async with MachineShell(bus, machine=machine, service="agent", name="fleet", hears=hears):
            for node in ("c1", "a1"):
                alter = AlterNode(node=node, change="fail")
                await operator.publish(publish(alter, "a test"))
                await monitor.publish(publish(SampleAsked(node=node), "a test"))
            await until(lambda: len(machine.delivered) == 2)
        assert {message_of(each) for each in machine.delivered} == {
            AlterNode(node="a1", change="fail"),
            SampleAsked(node="a1"),
        }


async def test_a_machine_hears_and_says_what_no_stream_keeps_and_waits_for_nothing(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    monitor, agent = await dial("monitor"), await dial("agent", "a1")
    ask = publish(SampleAsked(node="a1"), "a gap")
    nonsense = ask.model_copy(update={"key": "no key"})

    def answer(_: float, event: Input) -> Effects:
        return Effects(do=(nonsense, ask)) if isinstance(event, Nudged) else Effects()

    asking = Recorder(answer)
    asked = Recorder()
    async with (
        MachineShell(
            agent, machine=asked, service="agent", name="a1", hears=[Hearing(SampleAsked, "a1")]
        ),
        MachineShell(
            monitor, machine=asking, service="monitor", name="monitor", hears=BEATS
        ) as shell,
    ):
        await agent.beat(BEAT)
        await agent.beat(BEAT)
        await until(lambda: len(asking.delivered) == 2)
        await shell.feed(Nudged(text="ask"))
        await until(lambda: asked.delivered)
        os.kill(nats_server.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(2):  # the outbox would wait for an ack
                for _ in range(3):
                    await shell.feed(Nudged(text="ask"))
        finally:
            os.kill(nats_server.pid, signal.SIGCONT)


async def test_nobody_notices_that_the_bus_is_away_and_listeners_hear_again_when_it_is_back(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    agent, monitor = await dial("agent", "a1"), await dial("monitor")
    async with monitor.overhear(BEATS) as heard:
        await nats_server.kill()
        await until(lambda: not agent.main.is_up)
        await agent.beat(BEAT)
        await agent.publish(publish(SAMPLE, "lost"))
        await nats_server.start()
        await until(lambda: agent.main.is_up and monitor.main.is_up)
        beating = asyncio.create_task(keep_beating(agent))
        try:
            again = await asyncio.wait_for(anext(heard), 10)
        finally:
            beating.cancel()
            await asyncio.wait([beating])
    assert message_of(again) == NodeHeartbeat(node="a1", counter=2)


async def keep_beating(agent: Bus) -> None:
    while True:
        await agent.beat(NodeHeartbeat(node="a1", counter=2))
        await asyncio.sleep(0.02)


async def test_of_more_than_is_taken_the_newest_stay_and_the_rest_is_counted(dial: Dial) -> None:
    agent, monitor = await dial("agent", "a1"), await dial("monitor")
    async with monitor.overhear(BEATS, bound=3) as heard:
        for counter in range(10):
            await agent.beat(NodeHeartbeat(node="a1", counter=counter))
        await until(lambda: heard.dropped == 7)
        got = [message_of(await anext(heard)) for _ in range(3)]
    assert got == [NodeHeartbeat(node="a1", counter=counter) for counter in (7, 8, 9)]


async def test_what_cannot_be_read_is_counted_and_passed_over(dial: Dial) -> None:
    agent, router = await dial("agent", "a1"), await dial("router", "router-1")
    monitor = await dial("monitor")
    async with monitor.overhear((*BEATS, Hearing(PlanAnswered))) as heard:
        await agent.main.say("flexpipe.tel.node.heartbeat.a1", b"{}")
        await agent.main.say("flexpipe.tel.node.heartbeat.a1", b"\xff")
        await router.main.say("flexpipe.tel.plan.answered.router-1", b"{}")
        await router.publish(publish(PlanAnswered(router="router-1", plans=("p-1",)), "a test"))
        got = message_of(await asyncio.wait_for(anext(heard), 5))
        await until(lambda: heard.unreadable == 3)
    assert got == PlanAnswered(router="router-1", plans=("p-1",))
