"""Engines that all tests of the router share, and a router of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from flexpipe.bus.server import EmbeddedServer
from flexpipe.engines.emulated.checkpoint import write_checkpoint
from integration.router.scene import Engine, Scene, engine, router


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without weights."""
    folder = tmp_path_factory.mktemp("router") / "toy"
    write_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def first(model_folder: Path) -> Iterator[Engine]:
    """An engine that nobody kills."""
    with engine(model_folder, "cpu-0") as running:
        yield running


@pytest.fixture(scope="session")
def second(model_folder: Path) -> Iterator[Engine]:
    """Another one."""
    with engine(model_folder, "cpu-1") as running:
        yield running


@pytest.fixture
async def scene(
    nats_server: EmbeddedServer, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    """A router without a route yet."""
    async with router(nats_server, model_folder, monkeypatch) as (running, _, _):
        yield running
