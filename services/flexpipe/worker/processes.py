"""The placer for one machine: each rank group is a session of operating-system processes with a log file of its own.

Engines end with their worker. A worker that stops ends them; when it is killed, the kernel kills each leader
(PR_SET_PDEATHSIG), and engines whose leader is gone end their ranks themselves. That signal reaches leaders only, so
leaders and their start times are also kept in a file, and the next worker of this node ends whatever is left of them
before it does anything else.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import signal
import socket
from collections import deque
from pathlib import Path
from typing import Final

import psutil

from flexpipe.engines.port import LaunchSpec
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.frozen import Frozen
from flexpipe.worker.files import write_durably
from flexpipe.worker.placer import Address, NotPlaced
from flexpipe.worker.sessions import boot_id, end_session, members, process_fact

SWEEP_LIMIT_S: Final = 15.0
CLOSE_GRACE_S: Final = 1.0
CLOSE_LIMIT_S: Final = 10.0

TAIL_BYTES: Final = 64 << 10
TAIL_LINES: Final = 40
TAIL_CHARS: Final = 4000
"""A tail travels in a bus message and is read by a person: a traceback fits, a model's progress bars do not."""

LOGS_KEPT: Final = 64
"""Newest logs of groups; older ones are removed when a group is started."""

GROUPS_FILE: Final = "groups.json"
PR_SET_PDEATHSIG: Final = 1
_LIBC = ctypes.CDLL(None)

BUS_VARIABLES: Final = "FLEXPIPE_BUS_"
"""Variables of ours that engines do not get: they never speak to the bus."""


class GroupRecord(Frozen):
    """What finds a group again: its leader's pid counts only with its start time, in the same boot."""

    group: str
    pid: int
    start_ticks: int
    boot: str


class GroupRecords(Frozen):
    """The groups file."""

    groups: tuple[GroupRecord, ...] = ()


class ProcessGroup:
    """One group that this worker started. See `placer.Placed`."""

    def __init__(self, group: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.group = group
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The leader: it founded the session."""
        return self._process.pid

    async def ended(self) -> str:
        """Wait for the leader."""
        code = await self._process.wait()
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def left(self) -> tuple[int, ...]:
        """Every process of the group that is still there."""
        return tuple(members(self.pid))

    async def end(self, grace_s: float, limit_s: float) -> tuple[int, ...]:
        """SIGTERM to all, SIGKILL after the grace, and again to whatever turns up until none is left."""
        return await end_session(self.pid, grace_s, limit_s)

    def log_tail(self) -> str:
        """The last lines of the group's log."""
        return log_tail(self._log)


class Processes:
    """Groups on this machine. `state_dir` belongs to one worker."""

    def __init__(self, state_dir: Path, logs_dir: Path) -> None:
        self._file = state_dir / GROUPS_FILE
        self._logs_dir = logs_dir
        self._records: dict[str, GroupRecord] = {}
        self._groups: dict[str, ProcessGroup] = {}
        self._writing = asyncio.Lock()

    async def sweep(self) -> None:
        """End what an earlier worker of this node left."""
        left: list[int] = []
        for record in _read_records(self._file):
            if _is_ours(record):
                left += await end_session(record.pid, 0.0, SWEEP_LIMIT_S)
        if left:
            raise Unavailable(
                f"engine processes of an earlier worker do not end: pid {', '.join(map(str, left))}"
            )
        await self._write()

    async def place(self, group: str, spec: LaunchSpec, ports: tuple[Address, ...]) -> ProcessGroup:
        """Start a group in a session of its own, its output in `<logs>/<group>.log`."""
        for host, port in ports:
            _require_free(host, port)
        if shutil.which(spec.argv[0]) is None:
            raise NotPlaced(f"{spec.argv[0]} is not there or cannot be run")
        log = self._open_log(group)
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *spec.argv,
                    env={**_environment(), **spec.env},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
        except OSError as error:
            raise NotPlaced(f"{spec.argv[0]} cannot be started: {error.strerror}") from error
        placed = ProcessGroup(group, process, log)
        fact = process_fact(process.pid)
        self._groups[group] = placed
        self._records[group] = GroupRecord(
            group=group,
            pid=process.pid,
            start_ticks=0 if fact is None else fact.start_ticks,
            boot=boot_id(),
        )
        await self._write()
        return placed

    async def close(self) -> None:
        """End whatever is left, so that nothing outlives the worker."""
        ends = [group.end(CLOSE_GRACE_S, CLOSE_LIMIT_S) for group in self._groups.values()]
        await asyncio.gather(*ends)
        await self._write()

    async def _write(self) -> None:
        async with self._writing:
            for name in [name for name, group in self._groups.items() if not group.left()]:
                del self._groups[name], self._records[name]
            records = GroupRecords(groups=tuple(self._records.values()))
            await asyncio.to_thread(write_durably, self._file, records.canonical_json())

    def _open_log(self, group: str) -> Path:
        self._logs_dir.mkdir(parents=True, exist_ok=True)
        logs = sorted(self._logs_dir.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for old in logs[: max(0, len(logs) - LOGS_KEPT + 1)]:
            old.unlink(missing_ok=True)
        return self._logs_dir / f"{group}.log"


def _is_ours(record: GroupRecord) -> bool:
    """Whether the session of that number is still the group we recorded.

    The kernel does not give a pid again while a session of that number has members. So: in the same boot, either the
    leader is still the process that we started, or it is gone and what is in its session was in it before.
    """
    if record.boot != boot_id():
        return False
    leader = process_fact(record.pid)
    return leader is None or leader.start_ticks == record.start_ticks


def _read_records(path: Path) -> tuple[GroupRecord, ...]:
    try:
        return GroupRecords.model_validate_json(path.read_text(encoding="utf-8")).groups
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"{path} cannot be read; remove it once no engine runs: {error}"
        ) from error


# -- starting -----------------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(BUS_VARIABLES)}


def _die_with_parent() -> None:
    """In the child, before it becomes the engine: the kernel ends it when the worker is gone, however it went."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _require_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NotPlaced(
                    f"port {port} is in use by {_listener(port)}; stop it, or give this worker other "
                    "ports (FLEXPIPE_WORKER_FIRST_PORT)"
                ) from error
            raise NotPlaced(
                f"{host}:{port} cannot be listened on ({error.strerror}); set FLEXPIPE_WORKER_ADDRESS "
                "to an address of this machine"
            ) from error


def _listener(port: int) -> str:
    """Who listens on a port, as far as we may see."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.pid and connection.laddr and connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return "another program"


def log_tail(path: Path) -> str:
    """The last lines of a file: at most TAIL_LINES and TAIL_CHARS; empty where it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(deque(text.splitlines(), TAIL_LINES))[-TAIL_CHARS:]
