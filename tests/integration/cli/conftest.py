"""A terminal on an empty bus, and peers that say what a test tells them to."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from flexpipe.bus.server import EmbeddedServer
from flexpipe.cli.app import main
from integration.cli.peers import Peers

LIMIT_S = 30.0
"""Of one command; most take a tenth of a second."""


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard output without line ends and the frames of tables."""
        return " ".join(self.out.replace("│", " ").split())


class Terminal:
    """Runs commands in this process, as `flexpipe` does."""

    async def run(self, *words: str) -> Said:
        """One command to its end."""
        return await asyncio.wait_for(asyncio.to_thread(self._run, words), LIMIT_S)

    async def document(self, *words: str) -> dict[str, Any]:
        """The one JSON document that a command prints."""
        said = await self.run(*words, "--json")
        assert said.code == 0, said
        (line,) = said.out.splitlines()
        document = json.loads(line)
        assert isinstance(document, dict)
        return document

    async def refused(self, *words: str) -> str:
        """The one line with which a command ends that could not do what was asked."""
        said = await self.run(*words)
        assert said.code == 1, said
        (line,) = said.err.splitlines()
        return line.removeprefix("flexpipe: ")

    @staticmethod
    def _run(words: tuple[str, ...]) -> Said:
        out, err, code = io.StringIO(), io.StringIO(), 0
        argv, sys.argv = sys.argv, ["flexpipe", *words]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.argv = argv
        return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture
def environment(nats_server: EmbeddedServer) -> dict[str, str]:
    """Where an operator finds the bus."""
    settings = nats_server.settings("operator")
    return {
        "FLEXPIPE_BUS_URL": nats_server.url,
        "FLEXPIPE_BUS_USER": settings.user,
        "FLEXPIPE_BUS_PASSWORD": settings.password.get_secret_value(),
    }


@pytest.fixture
def terminal(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The command line of that operator."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Terminal()


@pytest.fixture
async def peers(nats_server: EmbeddedServer) -> AsyncIterator[Peers]:
    """Every other service, played by the test, each as its own user."""
    async with contextlib.AsyncExitStack() as stack:
        yield Peers(nats_server, stack)
