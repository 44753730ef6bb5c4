"""`flexpipe fleet` with a real agent and a real monitor: each thing that can happen is shown in time, and undone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flexpipe.cli import altering
from integration.cli.conftest import Terminal
from integration.fleet.site import Site, a_site

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """Nodes b1 and b2 of four devices each; commands of this process speak as their operator."""
    async with a_site(tmp_path) as site:
        for name, value in site.server.settings("operator").environment().items():
            monkeypatch.setenv(name, value)
        yield site


def device(document: dict[str, Any], node: str, name: str) -> dict[str, Any]:
    """One device of `flexpipe fleet --json`."""
    nodes = {each["node"]: each for each in document["fleet"]["nodes"]}
    found = next(each for each in nodes[node]["devices"] if each["device"] == name)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        (("preempt", "b1/g1"), {"state": "preempted"}),
        (("fail", "b1/g1"), {"state": "failed"}),
        (("degrade", "b1/g1", "--factor", "0.3"), {"link_factor": 0.3}),
        (("reserve", "b1/g1", "--tenant", "research"), {"tenant": "research"}),
        (("notice", "b1.2-0", "--in", "600"), {"state": "present"}),
        (("preempt", "b1"), {"state": "preempted"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
async def test_what_happens_is_shown_and_undone(
    site: Site, words: tuple[str, ...], shows: dict[str, object]
) -> None:
    terminal = Terminal()
    async with site.monitor(), site.agent():
        await site.until_open()
        altered = await terminal.document("fleet", *words)
        assert altered["changes"], "the monitor's word was not waited for"
        seen = await terminal.document("fleet")
        assert seen["revision"] >= altered["revision"]
        g1 = device(seen, "b1", "g1")
        assert {name: g1[name] for name in shows} == shows
        if words[0] != "degrade":
            assert g1["closed"] is not None
        text = (await terminal.run("fleet")).words
        assert "fleet revision" in text
        restored = await terminal.run("fleet", "restore", "b1")
        assert restored.code == 0
        back = device(await terminal.document("fleet"), "b1", "g1")
        assert (back["state"], back["tenant"], back["link_factor"]) == ("present", None, 1.0)


async def test_a_node_that_fails_as_a_whole_is_lost_within_the_limit(site: Site) -> None:
    terminal = Terminal()
    async with site.monitor(), site.agent():
        await site.until_open()
        site.beating.discard("b2")  # what its worker does once every device is withdrawn
        said = await terminal.run("fleet", "fail", "b2")
        assert said.code == 0, said.err
        assert "b2" in said.words
        nodes = (await terminal.document("fleet"))["fleet"]["nodes"]
        assert {each["node"]: each["state"] for each in nodes} == {"b1": "observed", "b2": "lost"}
        site.beating.add("b2")
        assert (await terminal.run("fleet", "restore", "b2")).code == 0


async def test_without_an_agent_the_command_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(altering, "SHOWN_LIMIT_S", 1.0)
    async with site.monitor():
        async with site.agent():
            await site.until_open()
        line = await terminal.refused("fleet", "preempt", "b1/g0")
        assert line.startswith("no agent answered for b1: after 1 s the fleet does not show it")
