"""`flexpipe run SERVICE`: one service in the foreground, stopped by SIGTERM, SIGINT or the end of its parent."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from flexpipe.cli.loading import loading
from flexpipe.cli.variables import log_level, settings_of
from flexpipe.kernel.errors import FlexPipeError, InvalidInput
from flexpipe.telemetry.logs import configure_logs

SERVICES = ("agent", "estimator", "executor", "monitor", "planner", "router", "worker")
"""Each is a package with `settings.Settings` (from the environment) and `app.serve(settings, stop)`."""

ORPHAN_LIMIT_S = 60.0
"""How long a service may take to stop once its parent is gone: a worker ends its engines within 25 s. There is nobody
left who would kill it."""

_LOG = logging.getLogger(__name__)


def run_in_foreground(service: str, *, exit_with_parent: bool) -> None:
    """Run until stopped. Exits 1 with one log line on an error of ours; other exceptions end the process loudly."""
    if service not in SERVICES:
        raise InvalidInput("service", service, "use one of " + ", ".join(SERVICES))
    configure_logs(service, log_level())
    with loading():
        of_service = import_module(f"flexpipe.{service}.settings").Settings
        serve = import_module(f"flexpipe.{service}.app").serve
    settings = settings_of(of_service)
    try:
        asyncio.run(_until_stopped(serve, settings, exit_with_parent=exit_with_parent))
    except FlexPipeError as error:
        _LOG.error("service stopped", extra={"reason": str(error)})
        sys.exit(1)


async def _until_stopped(
    serve: Callable[[Any, asyncio.Event], Awaitable[None]],
    settings: object,
    *,
    exit_with_parent: bool,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, stop.set)
    if exit_with_parent:
        watcher = threading.Thread(target=_await_end_of_stdin, args=(loop, stop), daemon=True)
        watcher.start()
    await serve(settings, stop)


def _await_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(0, 4096):
        pass
    try:
        loop.call_soon_threadsafe(stop.set)
    except RuntimeError:
        return  # the loop is closed: the service has stopped by itself
    time.sleep(ORPHAN_LIMIT_S)
    sys.stderr.write("nobody is left to stop this service, and it does not end by itself: killed\n")
    os._exit(1)
