"""The README's story with emulated engines, as a newcomer runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def flexpipe(*words: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "flexpipe.cli", *words],
        env={**os.environ, "FLEXPIPE_HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_the_demo_shifts_there_and_back_and_every_decision_replays(tmp_path: Path) -> None:
    run = flexpipe("demo", "--engine", "emulated", "--json", home=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    account = json.loads(run.stdout.splitlines()[-1])
    assert account["passed"]
    assert account["identical"] == account["streams"] >= 7
    assert [(each["from"], each["to"]) for each in account["shifts"]] == [
        ("tp1", "pp2"),
        ("pp2", "tp1"),
    ]
    assert all(each["in_flight_at_commit"] >= 6 for each in account["shifts"])
    assert all(each["moved"] >= 1 for each in account["shifts"])

    journals = sorted((tmp_path / "journals").glob("*.jsonl"))
    assert [each.stem for each in journals] == [
        "executor-executor",
        "router-router-1",
        "worker-node-a",
    ]
    for journal in journals:
        reports = [
            flexpipe("replay", str(journal), "--json", home=tmp_path, PYTHONHASHSEED=seed)
            for seed in ("1", "2")
        ]
        for report in reports:
            assert report.returncode == 0, report.stdout + report.stderr
            document = json.loads(report.stdout)
            assert document["differing"] == []
            assert document["events"] > 10


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
