"""`run SERVICE` is told apart from the other commands, and loads nothing of theirs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flexpipe.cli.__main__ import HELD, run_of

TERMINAL = ("rich", "typer", "pygments", "opentelemetry.sdk", "google.protobuf")


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (("run", "worker"), ("worker", False)),
        (("run", "worker", HELD), ("worker", True)),
        (("run", HELD, "worker"), ("worker", True)),
        (("run", "no-such-service"), ("no-such-service", False)),
    ],
)
def test_a_service_is_run_without_the_other_commands(
    words: tuple[str, ...], run: tuple[str, bool]
) -> None:
    assert run_of(words) == run


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("run",),
        ("run", "--help"),
        ("run", "worker", "--help"),
        ("run", "worker", "router"),
        ("run", "worker", HELD, HELD),
        ("run", "worker", f"{HELD}=1"),
        ("status",),
        ("apply", "run", "worker"),
    ],
)
def test_whatever_else_is_typed_is_for_the_other_commands(words: tuple[str, ...]) -> None:
    assert run_of(words) is None


@pytest.mark.parametrize(
    "service", ["agent", "estimator", "executor", "monitor", "planner", "worker"]
)
def test_a_service_loads_no_terminal_and_no_exporter(service: str) -> None:
    code = f"""
import sys
from flexpipe.cli.loading import loading
with loading():
    import flexpipe.cli.serving, flexpipe.{service}.settings, flexpipe.{service}.app
print(*[name for name in {TERMINAL!r} if name in sys.modules])
"""
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == []


def test_an_unknown_service_is_one_line() -> None:
    argv = [sys.executable, "-m", "flexpipe.cli", "run", "dancer"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("flexpipe: service: 'dancer' is not accepted: use one of agent, ")


ORPHAN = """
import asyncio, threading
from flexpipe.cli import serving
serving.ORPHAN_LIMIT_S = 0.2
async def hang():
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=serving._await_end_of_stdin, args=(loop, stop), daemon=True).start()
    await asyncio.Event().wait()
asyncio.run(hang())
"""


def test_a_service_that_hangs_after_its_parent_is_gone_ends_all_the_same() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ORPHAN],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 1
    assert "does not end by itself" in run.stderr
