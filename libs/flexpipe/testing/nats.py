"""A real embedded NATS on a temporary directory, with every stream and user: about a tenth of a second.

Fixtures for pytest (named in `tests/conftest.py`) and an async context manager for everything else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flexpipe.bus import Bus, connect
from flexpipe.bus.server import EmbeddedServer, embedded_server
from flexpipe.bus.users import Instance

Dial = Callable[..., Awaitable[Bus]]
"""`await dial("worker", "node-a", user=…)`: a bus that is closed when the test ends."""

WAIT_LIMIT_S = 20.0
"""On a loaded machine everything that a test waits for takes a fraction of this."""
LOOK_EVERY_S = 0.01


@asynccontextmanager
async def temporary_nats(instances: Iterable[Instance] = ()) -> AsyncIterator[EmbeddedServer]:
    """A server with a store of its own, gone with the block."""
    with TemporaryDirectory(prefix="flexpipe-nats-") as directory:
        async with embedded_server(Path(directory), instances=instances) as server:
            yield server


async def until(condition: Callable[[], object], limit_s: float = WAIT_LIMIT_S) -> None:
    """Wait until a condition holds. Raises AssertionError at the limit: a test waits for nothing without end."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:g} s")
        await asyncio.sleep(LOOK_EVERY_S)


@pytest.fixture
async def nats_server() -> AsyncIterator[EmbeddedServer]:
    """A fresh embedded NATS with all streams, buckets and service users."""
    async with temporary_nats() as server:
        yield server


@pytest.fixture
async def dial(nats_server: EmbeddedServer) -> AsyncIterator[Dial]:
    """Connects services to `nats_server`; closes them at the end."""
    async with AsyncExitStack() as stack:

        async def open_bus(service: str, name: str = "main", *, user: str | None = None) -> Bus:
            settings = nats_server.settings(user or service)
            return await stack.enter_async_context(connect(settings, service=service, name=name))

        yield open_bus
