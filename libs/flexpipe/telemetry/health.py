"""`/health`, `/ready` and `/metrics` of services that have no HTTP of their own.

`/health`: the event loop runs. `/ready`: a real round trip on the bus succeeds and the service has taken up its work; a
socket that is merely open proves neither.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from flexpipe.kernel.errors import Unavailable

READY_LIMIT_S = 2.0
"""A readiness answer later than this counts as not ready: probes give up after a few seconds."""
STOP_LIMIT_S = 5.0
"""Requests to these pages are short; one that is not is cut off when the service stops."""
IDLE_LIMIT_S = 120
"""Longer than clients and load balancers keep an idle connection (5 s in httpx, 60 s in nginx, 90 s in Go): they are to
close it. Where the server does, a request may come at that very moment and break without a word."""

Readiness = Callable[[], Awaitable[None]]
"""Returns when ready; raises, with one line, when not."""
MetricsPage = Callable[[], bytes]


def _process_metrics() -> bytes:
    return generate_latest(REGISTRY)


def health_app(ready: Readiness, metrics_page: MetricsPage = _process_metrics) -> Starlette:
    """The ASGI app."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def is_ready(_: Request) -> Response:
        try:
            await asyncio.wait_for(ready(), READY_LIMIT_S)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the answer is "not ready"
            reason = str(error) or f"no answer within {READY_LIMIT_S:g} s"
            return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)
        return JSONResponse({"status": "ready"})

    async def metrics(_: Request) -> Response:
        return Response(metrics_page(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[Route("/health", health), Route("/ready", is_ready), Route("/metrics", metrics)]
    )


@asynccontextmanager
async def serving_health(
    host: str, port: int, ready: Readiness, metrics_page: MetricsPage = _process_metrics
) -> AsyncIterator[None]:
    """Serve health on host:port while the block runs. Raises Unavailable where the port is taken."""
    async with serving(health_app(ready, metrics_page), host, port):
        yield


@asynccontextmanager
async def serving(app: ASGIApp, host: str, port: int) -> AsyncIterator[None]:
    """Serve an ASGI app on host:port while the block runs. Raises Unavailable where the port is taken.

    The socket is bound here and the signal handlers stay the service's own: uvicorn would end the process for the one
    and take the other.
    """
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        fault = f"port {port} on {host} cannot be had ({error.strerror}); set another one"
        raise Unavailable(fault) from error
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=IDLE_LIMIT_S,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield  # the socket listens already: early requests wait in its backlog
    finally:
        server.should_exit = True
        await asyncio.wait([task], timeout=STOP_LIMIT_S)
        task.cancel()
        await asyncio.wait([task])
        listener.close()
