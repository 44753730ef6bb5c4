"""The placer on real processes: groups that end, that resist, that their worker leaves behind."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from flexpipe.engines.port import LaunchSpec
from flexpipe.kernel.errors import Unavailable
from flexpipe.testing.nats import until
from flexpipe.worker.placer import NotPlaced
from flexpipe.worker.processes import TAIL_CHARS, TAIL_LINES, Processes, log_tail

pytestmark = pytest.mark.processes


def python(code: str, **env: str) -> LaunchSpec:
    return LaunchSpec(argv=(sys.executable, "-c", textwrap.dedent(code)), env=env, front=None)


STUBBORN = """
    import signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("child", child.pid, flush=True)
    time.sleep(600)
"""
"""A leader that ignores SIGTERM, with a child that founded a session of its own."""


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    placer = Processes(tmp_path, tmp_path / "logs")
    await placer.sweep()
    yield placer
    await placer.close()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_group_that_ends_by_itself_says_how_and_what_it_wrote(processes: Processes) -> None:
    placed = await processes.place("g1", python("print('last words'); raise SystemExit(3)"), ())
    assert await placed.ended() == "exit code 3"
    assert placed.log_tail() == "last words"


async def test_a_killed_group_says_by_what(processes: Processes) -> None:
    placed = await processes.place("g1", python("import time; time.sleep(600)"), ())
    os.kill(placed.pid, signal.SIGKILL)
    assert await placed.ended() == "killed by SIGKILL"


async def test_a_group_that_obeys_is_not_killed(processes: Processes) -> None:
    placed = await processes.place("g1", python("import time; time.sleep(600)"), ())
    assert await placed.end(10.0, 20.0) == ()
    assert await placed.ended() == "killed by SIGTERM"


async def test_a_group_that_resists_is_killed_with_all_that_descends_from_it(
    processes: Processes,
) -> None:
    placed = await processes.place("g1", python(STUBBORN), ())
    await until(lambda: "child" in placed.log_tail())
    child = int(placed.log_tail().split()[1])
    assert await placed.end(0.2, 20.0) == ()
    assert await placed.ended() == "killed by SIGKILL"
    assert not alive(child)


async def test_what_is_left_at_the_limit_is_named(processes: Processes) -> None:
    placed = await processes.place("g1", python(STUBBORN), ())
    await until(lambda: "child" in placed.log_tail())
    assert placed.pid in await placed.end(5.0, 0.2)
    assert await placed.end(0.0, 20.0) == ()


async def test_a_program_that_is_not_there_is_not_placed(processes: Processes) -> None:
    with pytest.raises(NotPlaced, match="/no/such/python is not there"):
        await processes.place("g1", LaunchSpec(argv=("/no/such/python",), env={}, front=None), ())


async def test_an_address_of_another_machine_is_not_listened_on(processes: Processes) -> None:
    with pytest.raises(NotPlaced, match="FLEXPIPE_WORKER_ADDRESS"):
        await processes.place("g1", python("pass"), (("192.0.2.7", 31_000),))


async def test_an_engine_does_not_see_the_workers_password(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXPIPE_BUS_PASSWORD", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    spec = python("import os; print(sorted(os.environ))", MINE="1")
    placed = await processes.place("g1", spec, ())
    await placed.ended()
    assert "'MINE'" in placed.log_tail()
    assert "'LANG'" in placed.log_tail()
    assert "FLEXPIPE_BUS" not in placed.log_tail()


async def test_a_tail_is_the_end_of_a_log_and_bounded(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text("\n".join(f"line {number}" for number in range(100_000)))
    tail = log_tail(log)
    assert tail.endswith("line 99999")
    assert len(tail) <= TAIL_CHARS
    assert len(tail.splitlines()) <= TAIL_LINES


WORKER = """
    import asyncio, sys
    from pathlib import Path
    from flexpipe.engines.port import LaunchSpec
    from flexpipe.worker.processes import Processes

    async def main():
        folder = Path(sys.argv[1])
        placer = Processes(folder, folder / "logs")
        await placer.sweep()
        code = Path(sys.argv[2]).read_text()
        placed = await placer.place("g1", LaunchSpec(argv=(sys.executable, "-c", code), env={}, front=None), ())
        while "child" not in placed.log_tail():
            await asyncio.sleep(0.02)
        print(placed.pid, placed.log_tail().split()[1], flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""

LEADER_WITH_A_CHILD = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


async def test_a_worker_that_is_killed_takes_its_leaders_along_and_the_next_one_ends_the_rest(
    tmp_path: Path,
) -> None:
    code = tmp_path / "engine.py"
    code.write_text(LEADER_WITH_A_CHILD)
    argv = [sys.executable, "-c", textwrap.dedent(WORKER), str(tmp_path), str(code)]
    worker = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    leader, child = map(int, (await worker.stdout.readline()).split())
    worker.kill()
    await worker.communicate()
    await until(lambda: not alive(leader))
    assert alive(child)
    await Processes(tmp_path, tmp_path / "logs").sweep()
    assert not alive(child)


async def test_a_sweep_leaves_a_stranger_alone_that_was_given_a_pid_of_ours(
    tmp_path: Path, processes: Processes
) -> None:
    placed = await processes.place("g1", python("import time; time.sleep(600)"), ())
    records = tmp_path / "groups.json"
    told = records.read_text()
    ticks = told.split('"start_ticks":')[1].split("}")[0]
    records.write_text(told.replace(f'"start_ticks":{ticks}', '"start_ticks":1'))
    await Processes(tmp_path, tmp_path / "logs").sweep()
    assert alive(placed.pid)


async def test_a_record_of_groups_that_cannot_be_read_is_said_aloud(tmp_path: Path) -> None:
    (tmp_path / "groups.json").write_text("{")
    with pytest.raises(Unavailable, match="cannot be read"):
        await Processes(tmp_path, tmp_path / "logs").sweep()
