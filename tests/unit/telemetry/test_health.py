"""The health pages stop with their service, whatever a client does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flexpipe.cli.ports import instance_ports
from flexpipe.kernel.errors import Unavailable
from flexpipe.telemetry import health
from flexpipe.telemetry.health import serving


@pytest.fixture
def port() -> Iterator[int]:
    """A port that is this test's alone."""
    with instance_ports(1) as ports:
        yield ports.service()


async def test_a_request_that_does_not_end_is_cut_off_at_the_stop(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setattr(health, "STOP_LIMIT_S", 0.2)
    begun = asyncio.Event()

    async def endless(_: Request) -> Response:
        begun.set()
        await asyncio.Event().wait()
        return Response()

    before = asyncio.all_tasks()
    async with asyncio.timeout(20):
        async with serving(Starlette(routes=[Route("/", endless)]), "127.0.0.1", port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await begun.wait()
    served = {task for task in asyncio.all_tasks() - before if "_serve" in repr(task)}
    assert not served
    writer.close()


async def test_a_port_that_is_taken_is_named(port: int) -> None:
    async with serving(Starlette(), "127.0.0.1", port):
        with pytest.raises(Unavailable, match=f"port {port} on 127.0.0.1"):
            async with serving(Starlette(), "127.0.0.1", port):
                pass


async def test_an_idle_connection_is_the_client_s_to_close(port: int) -> None:
    """Five seconds are what servers and clients usually have: they must not both close it then."""
    pages = Starlette(routes=[Route("/", lambda _: Response("here"))])
    async with serving(pages, "127.0.0.1", port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(request)
        await reader.readuntil(b"\r\n\r\nhere")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.5):
                await reader.read(1)
        writer.write(request)
        await reader.readuntil(b"\r\n\r\nhere")
        writer.close()
        await writer.wait_closed()
