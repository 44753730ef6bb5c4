"""The supervisor leaves nothing running and closes nothing twice, whenever the stop comes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from flexpipe.cli import supervisor as module
from flexpipe.cli.supervisor import Child, Supervisor

WAITS = "import sys; sys.stdin.read()"
"""What services do: run until their standard input ends."""


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.01)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    it = Supervisor()
    yield it
    await it.stop()


def child(folder: Path, name: str, *argv: str) -> Child:
    return Child(
        name, argv or (sys.executable, "-c", WAITS), {"CHILD_OF": str(folder)}, folder / "log"
    )


def ours(folder: Path) -> list[int]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.environ().get("CHILD_OF") == str(folder):
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


async def test_a_child_that_died_is_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    await supervisor.start(child(tmp_path, "a"))
    first = supervisor.pid("a")
    os.kill(first, signal.SIGKILL)
    await until(lambda: supervisor.pid("a") != first)
    assert psutil.pid_exists(supervisor.pid("a"))


async def test_a_stop_between_a_death_and_the_next_start_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_PAUSE_S", 0.5)
    supervisor = Supervisor()
    for name in ("older", "dies"):
        await supervisor.start(child(tmp_path, name))
    dead = supervisor.pid("dies")
    os.kill(dead, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(dead))
    read_end, write_end = os.pipe()  # takes numbers that the supervisor has given back
    await supervisor.stop()
    assert ours(tmp_path) == []
    os.fstat(read_end)
    os.fstat(write_end)
    os.close(read_end)
    os.close(write_end)


async def test_a_stop_during_the_next_start_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_PAUSE_S", 0.0)
    supervisor = Supervisor()
    await supervisor.start(child(tmp_path, "dies"))
    spawn, starting = module._spawn, asyncio.Event()

    async def slow(wanted: Child) -> module._Running:
        starting.set()
        running = await spawn(wanted)
        await asyncio.sleep(0.2)
        return running

    monkeypatch.setattr(module, "_spawn", slow)
    os.kill(supervisor.pid("dies"), signal.SIGKILL)
    await asyncio.wait_for(starting.wait(), 20)
    await supervisor.stop()
    assert ours(tmp_path) == []


async def test_a_child_that_cannot_be_started_again_does_not_keep_others_from_being_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_PAUSE_S", 0.0)
    program = tmp_path / "program"
    program.symlink_to(sys.executable)
    supervisor = Supervisor()
    await supervisor.start(child(tmp_path, "older"))
    await supervisor.start(child(tmp_path, "gone", str(program), "-c", WAITS))
    program.unlink()
    os.kill(supervisor.pid("gone"), signal.SIGKILL)
    await until(supervisor._watchers["gone"].done)
    await supervisor.stop()
    assert ours(tmp_path) == []


async def test_a_child_that_dies_too_often_is_given_up_aloud(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTARTS_LIMIT", 1)
    monkeypatch.setattr(module, "RESTART_PAUSE_S", 0.01)
    await supervisor.start(child(tmp_path, "brittle", sys.executable, "-c", "raise SystemExit(3)"))
    why = await asyncio.wait_for(supervisor.lost(), 20)
    assert why == "brittle died 2 times (exit code 3) and stays down"
