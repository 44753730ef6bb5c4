"""Whole instances for tests: embedded NATS, services as processes, emulated engines, a client that is a stranger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.stage import EXAMPLE, QUICK, Stage, staged
from flexpipe.cli.layouts import Layout, NodeLayout
from flexpipe.cli.models import ensure_model


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """One node with two slots, the emulated example served as tp1."""
    async with _one_node(tmp_path) as it:
        yield it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mistakes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The same, shared by tests that change nothing."""
    async with _one_node(tmp_path_factory.mktemp("mistakes")) as it:
        yield it


@asynccontextmanager
async def _one_node(tmp_path: Path) -> AsyncIterator[Stage]:
    await ensure_model("emulated")
    layout = Layout(
        folder=tmp_path / "instance",
        nodes=(NodeLayout("node-a"),),
        device_kind="emulated",
    )
    async with staged(layout) as it:
        await it.apply(EXAMPLE, **QUICK)
        yield it
