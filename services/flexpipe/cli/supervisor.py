"""Runs services as child processes: starts them, starts a dead one again, stops them all.

Used by `flexpipe up` and `flexpipe demo`; compose and Kubernetes do the same job in production. Every child holds the
read end of a pipe as its standard input: when this process dies, by whatever signal, the children see its end and stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flexpipe.kernel.errors import Unavailable

RESTART_PAUSE_S = 0.2
"""Between a service's death and its next start: long enough to not spin, short against every step limit."""
RESTARTS_LIMIT = 20
"""A service that died this often under one supervisor will not be cured by one more start."""
STOP_LIMIT_S = 30.0
"""A worker stops its engines first; an engine takes up to ten seconds to leave."""
TAIL_BYTES = 4000

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Child:
    """What to run: a name for people, an argument list, environment to add, a file for its output."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path


@dataclass(slots=True)
class _Running:
    child: Child
    process: asyncio.subprocess.Process
    pipe_end: int
    restarts: int = 0

    def let_go(self) -> None:
        """Close our end of its standard input, once: the number may be another file's a moment later."""
        if self.pipe_end >= 0:
            os.close(self.pipe_end)
            self.pipe_end = -1


@dataclass(slots=True)
class Supervisor:
    """Children in the order of their start; stopped in the reverse order."""

    _running: dict[str, _Running] = field(default_factory=dict)
    _watchers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _stopping: bool = field(default=False, init=False)
    _lost: asyncio.Queue[str] = field(default_factory=asyncio.Queue, init=False)

    async def start(self, child: Child) -> None:
        """Start one child and watch it from then on."""
        self._running[child.name] = await _spawn(child)
        self._watchers[child.name] = asyncio.create_task(self._watch(child.name))

    async def lost(self) -> str:
        """Wait until a child stays down; the sentence about it."""
        return await self._lost.get()

    def pid(self, name: str) -> int:
        """The present process id of a child."""
        return self._running[name].process.pid

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: running.process.pid for name, running in self._running.items()}

    async def stop(self) -> None:
        """Stop all children, the youngest first: SIGTERM, then SIGKILL at the limit."""
        self._stopping = True
        for name in reversed(list(self._running)):
            await self._stop_one(name)
        self._running.clear()
        self._watchers.clear()

    async def _stop_one(self, name: str) -> None:
        running, watcher = self._running[name], self._watchers[name]
        _send(running.process, signal.SIGTERM)
        running.let_go()
        done, _ = await asyncio.wait([watcher], timeout=STOP_LIMIT_S)
        if not done:
            _LOG.warning("%s did not stop within %g s and is killed", name, STOP_LIMIT_S)
            _send(running.process, signal.SIGKILL)
            await asyncio.wait([watcher])

    async def _watch(self, name: str) -> None:
        while True:
            running = self._running[name]
            code = await running.process.wait()
            if self._stopping:
                return
            running.let_go()
            if running.restarts >= RESTARTS_LIMIT:
                self._give_up(
                    f"{name} died {running.restarts + 1} times (exit code {code}) and stays down"
                )
                return
            _LOG.warning("%s died (exit code %s) and is started again", name, code)
            await asyncio.sleep(RESTART_PAUSE_S)
            if self._stopping:
                return
            try:
                again = await _spawn(running.child)
            except Unavailable as error:
                self._give_up(str(error))
                return
            again.restarts = running.restarts + 1
            self._running[name] = again
            if self._stopping:  # the stop came while it was being started, and saw the dead one
                _send(again.process, signal.SIGTERM)
                again.let_go()

    def _give_up(self, why: str) -> None:
        _LOG.error("%s", why)
        self._lost.put_nowait(why)


async def _spawn(child: Child) -> _Running:
    child.log.parent.mkdir(parents=True, exist_ok=True)
    read_end, write_end = os.pipe()
    try:
        with child.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *child.argv,
                stdin=read_end,
                stdout=log,
                stderr=log,
                env={**os.environ, **child.env},
                start_new_session=True,  # an interrupt at the terminal reaches the supervisor alone
            )
    except OSError as error:
        os.close(write_end)
        raise Unavailable(f"{child.name} cannot be started: {error.strerror}") from error
    finally:
        os.close(read_end)
    return _Running(child, process, write_end)


def _send(process: asyncio.subprocess.Process, which: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(which)


def log_tail(path: Path) -> str:
    """The last lines of a child's output."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace").strip()
