"""The bus is not there, or goes away under a command: one line, never a traceback, and no log of attempts."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from flexpipe.bus.server import EmbeddedServer
from flexpipe.cli import hatch
from flexpipe.testing.builders import a_deployment
from integration.cli.conftest import Terminal
from integration.cli.peers import Peers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LIMIT_S = 60.0


async def test_no_server_is_one_line(environment: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flexpipe.cli", "gears"),
        env={
            **os.environ,
            **environment,
            "FLEXPIPE_BUS_URL": "nats://127.0.0.1:9",
            "FLEXPIPE_BUS_CONNECT_LIMIT_S": "1",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 1
    (line,) = err.decode().splitlines()
    assert line.startswith("flexpipe: no NATS server at nats://127.0.0.1:9")


async def test_a_server_that_goes_away_under_a_command_is_one_line(
    peers: Peers,
    terminal: Terminal,
    nats_server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hatch, "ANSWER_LIMIT_S", 3.0)
    await peers.put("operator", "deployments", "chat", a_deployment("chat"))
    bus = await peers.bus("operator")

    async def cut() -> None:
        """Kill the server once the command waits for an executor that is not there."""
        async with asyncio.timeout(LIMIT_S):
            while not (await bus.main.api("STREAM.INFO.FLEXPIPE_URGENT"))["state"]["messages"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await nats_server.kill()

    line, _ = await asyncio.gather(terminal.refused("downshift", "chat"), cut())
    assert line == "no executor answered within 3 s; is it running?"
