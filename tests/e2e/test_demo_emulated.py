"""The README's story with emulated engines, as a newcomer runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from e2e.story import assert_every_decision_replays, run_demo

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_the_demo_shifts_there_and_back_and_every_decision_replays(tmp_path: Path) -> None:
    account = run_demo("emulated", tmp_path)
    assert account["identical"] == account["streams"]  # a function of all tokens before: no ties
    assert_every_decision_replays(tmp_path)


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    before = _ours(tmp_path)
    assert not before
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "flexpipe.cli", "demo", "--engine", "emulated"],
        env={**os.environ, "FLEXPIPE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "shifting to" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 130
    assert "everything is stopped" in rest
    assert "Traceback" not in rest
    assert not _ours(tmp_path)


def _ours(home: Path) -> list[str]:
    """Command lines of processes that belong to this instance."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FLEXPIPE_HOME") == str(home) or str(home) in " ".join(
                process.cmdline()
            ):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
