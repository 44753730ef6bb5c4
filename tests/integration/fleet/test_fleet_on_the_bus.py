"""Agent and monitor on a real bus: what is altered shows in the bucket, and who falls silent is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from flexpipe.bus import connect
from flexpipe.bus.journal import read_journal
from flexpipe.bus.replay import replay
from flexpipe.fragments.monitor import Monitor
from flexpipe.fragments.sampling import Agent
from flexpipe.kernel.errors import InvalidInput, Refused
from flexpipe.kernel.machine import Put
from flexpipe.model.fleet import Fleet
from flexpipe.testing.builders import device
from flexpipe.testing.nats import until
from integration.fleet.site import AGENT, Site, a_site

pytestmark = pytest.mark.processes

SILENCE_S = 1.75
DETECTION_S = 2.5
"""Two seconds by design; a test machine's loop may be late by some beats of its own."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with a_site(tmp_path) as site:
        yield site


def block_ids(fleet: Fleet) -> set[str]:
    return {block.id for block in fleet.blocks if block.size > 1}


async def test_what_happens_to_devices_shows_in_the_fleet(site: Site) -> None:
    async with site.monitor(), site.agent():
        fleet = await site.until_open()
        whole = fleet.blocks
        assert block_ids(fleet) == {
            "b",
            *(f"{n}{s}" for n in ("b1", "b2") for s in ("", ".2-0", ".2-1")),
        }

        await site.alter("b1", "preempt", "g1")
        fleet = await site.until(lambda fleet: fleet.device(device("b1/g1")) is None)
        said = await site.until_said(lambda said: any(c.what == "left" for c in said.changes))
        assert said.urgent
        assert said.revision == fleet.revision
        assert "b1/g1 left (it was preempted)" in said.sentence
        assert said.at_s - said.seen_s < SILENCE_S

        await site.alter("b1", "notice", "g2", leaves_in_s=2.0)
        fleet = await site.until(lambda fleet: fleet.closed(device("b1/g2")))
        noticed = fleet.device(device("b1/g2"))
        if noticed is not None:
            assert noticed.leaves_at_s is not None
        await site.until(lambda fleet: fleet.device(device("b1/g2")) is None)

        await site.alter("b2", "degrade", "g0", factor=0.3)
        fleet = await site.until(lambda fleet: "b2/g0" in {block.id for block in fleet.blocks})
        await site.alter("b2", "reserve", "g3", tenant="batch")
        await site.until(lambda fleet: fleet.closed(device("b2/g3")) == "reserved by batch")
        await site.alter("b2", "fail", "g1")
        await site.until(lambda fleet: fleet.device(device("b2/g1")) is None)

        for node in ("b1", "b2"):
            await site.alter(node, "restore")
        assert (await site.until_open()).blocks == whole


async def test_a_change_begins_a_trace_that_operators_can_read(site: Site) -> None:
    async with site.monitor(), site.agent():
        await site.until_open()
        await site.alter("b1", "preempt", "g1")
        said = await site.until_said(lambda said: any(c.what == "left" for c in said.changes))
        await until(lambda: any(each.span.span_id == said.span_id for each in site.spans))
        span = next(each.span for each in site.spans if each.span.span_id == said.span_id)
        assert (span.trace_id, span.name) == (said.trace_id, "fleet changed")


async def test_a_frozen_agent_is_unobserved_while_its_worker_beats_and_lost_when_nobody_does(
    site: Site,
) -> None:
    async with site.monitor(), site.agent_process() as agent:
        await site.until_open()
        agent.send_signal(signal.SIGSTOP)
        fleet = await site.until(lambda fleet: {n.state for n in fleet.nodes} == {"unobserved"})
        assert len(fleet.refs()) == 8, "plans stay where they are"
        site.beating.discard("b2")
        await site.until(lambda fleet: [n.state for n in fleet.nodes] == ["unobserved", "lost"])
        agent.send_signal(signal.SIGCONT)
        await site.until(lambda fleet: {n.state for n in fleet.nodes} == {"observed"})
        await site.host("b2")
        await site.until_open()


async def test_a_node_that_dies_is_lost_within_the_limit_by_the_monitors_own_clock(
    site: Site,
) -> None:
    async with site.monitor(), site.agent():
        await site.until_open()
        await asyncio.sleep(0.6)  # everybody has beaten: the last sign is a beat and not the start
        site.beating.discard("b2")
        await site.alter("b2", "fail")
        await site.until(lambda fleet: fleet.nodes[1].state == "lost")
        said = await site.until_said(lambda said: any(c.what == "left" for c in said.changes))
        assert SILENCE_S <= said.at_s - said.seen_s <= DETECTION_S
        assert {change.device.node for change in said.changes} == {"b2"}


async def test_an_outage_of_the_bus_costs_no_node(site: Site) -> None:
    async with site.monitor(), site.agent():
        fleet = await site.until_open()
        await site.server.kill()
        await asyncio.sleep(3.0)  # longer than any silence limit
        await site.server.start()
        await site.alter("b1", "degrade", "g0", factor=0.9)
        await site.until(lambda now: now.revision > fleet.revision)
        states = [change.what for said in site.said for change in said.changes]
        assert "left" not in states
        assert {node.state for node in (await site.fleet()).nodes} == {"observed"}


async def test_what_was_altered_outlives_an_agent_and_a_monitor(site: Site) -> None:
    async with site.monitor():
        async with site.agent():
            await site.until_open()
            await site.alter("b1", "preempt", "g1")
            await site.alter("b1", "notice", "g2", leaves_in_s=600.0)
            await site.until_open(6)
        async with site.agent():
            await asyncio.sleep(0.5)
            fleet = await site.until_open(6)
            left_s = fleet.nodes[0].devices[2].leaves_at_s
    revision = fleet.revision
    async with site.agent(), site.monitor():
        await site.until_said(lambda said: "started anew" in said.sentence)
        await asyncio.sleep(2.5)  # longer than the silence limit: nobody was forgotten
        fleet = await site.fleet()
        assert fleet.revision == revision
        assert fleet.nodes[0].devices[2].leaves_at_s == left_s
        await site.alter("b1", "restore")
        await site.until_open()


async def test_what_they_decided_on_the_bus_is_what_a_replay_decides(site: Site) -> None:
    async with site.monitor(), site.agent():
        await site.until_open()
        await site.alter("b1", "preempt", "g1")
        await site.until_open(7)
    for service, name, fresh in (("monitor", "monitor", Monitor), ("agent", AGENT, Agent)):
        lines = [line async for line in read_journal(site.people, service, name)]
        report = replay(lines, fresh)
        assert report.events > 3
        assert report.differing == ()


async def test_health_and_metrics_of_the_monitor(site: Site, unused_tcp_port: int) -> None:
    async with site.monitor(http_port=unused_tcp_port), site.agent():
        await site.until_open()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as http:
            assert (await http.get("/ready")).status_code == 200
            page = (await http.get("/metrics")).text
    assert 'flexpipe_monitor_nodes{state="observed"} 2.0' in page
    assert "flexpipe_monitor_placeable_devices 8.0" in page


async def test_only_the_monitor_may_write_the_fleet(site: Site) -> None:
    put = Put(write_id="x", bucket="fleet", key="b1", value="{}", expected=0)
    with pytest.raises(Refused):
        await site.workers.put(put)
    async with connect(
        site.server.settings(f"agent-{AGENT}"), service="agent", name=AGENT
    ) as agent:
        with pytest.raises(Refused):
            await agent.put(put)


async def test_an_agent_of_a_node_that_the_file_does_not_declare_does_not_start(site: Site) -> None:
    settings = site.agent_settings().model_copy(update={"nodes": ("b7",)})
    with pytest.raises(InvalidInput, match=r"pair\.toml declares b1, b2"):
        settings.declared()
    missing = settings.model_copy(update={"fleet": Path("nowhere.toml")})
    with pytest.raises(InvalidInput, match="name a readable fleet file"):
        missing.declared()
