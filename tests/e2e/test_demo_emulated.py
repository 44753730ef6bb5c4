"""The README's story with emulated engines, as a newcomer runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from e2e.story import assert_decisions_replay, tell
from flexpipe.cli.ports import instance_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_the_fleet_loses_cards_and_the_service_shifts_by_itself(tmp_path: Path) -> None:
    account = tell("demo", "--engine", "emulated", home=tmp_path)
    assert account["passed"]
    assert account["streams"] >= 200
    assert (account["broken"], account["lost_or_doubled"]) == ([], [])
    assert account["figures"] == "emulated"
    by = {(each["what"], each["deployment"]): each for each in account["episodes"]}
    assert len(by) == 4
    taken_out = by["its plan taken out at once", "llama-70b"]
    assert (taken_out["by"], taken_out["outcome"]) == ("executor", "completed")
    taken = by["four cards of block a preempted", "llama-70b"]
    warned = by["notice for the only card", "llama-7b"]
    hatch = by["hatch", "llama-70b"]
    assert [each["by"] for each in (taken, warned, hatch)] == [
        "estimator",
        "estimator",
        "the operator",
    ]
    assert all(each["outcome"] == "completed" for each in by.values())
    for each in (taken, warned):  # the shift's trace begins at the fleet change
        assert each["detected_after_s"] <= each["ordered_after_s"] <= each["committed_after_s"]
    assert account["declined"]
    assert (tmp_path / "fleet-story.svg").read_text().startswith("<?xml")
    assert_decisions_replay(tmp_path)


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
            if "starting llama-70b" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 130
    assert "everything is stopped" in rest
    assert "Traceback" not in rest
    assert not _ours(tmp_path)


def test_an_instance_that_was_killed_leaves_nothing_running_and_its_folder_serves_again(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        with instance_ports(1) as ports, _up(tmp_path, ports.service()) as process:
            process.kill()
        gone_s = (
            time.monotonic() + 40.0
        )  # a worker gives its engines ten seconds, and the bus is away
        while _ours(tmp_path):
            assert time.monotonic() < gone_s, _ours(tmp_path)
            psutil.wait_procs(_processes(tmp_path), timeout=1.0)


def _up(home: Path, port: int) -> subprocess.Popen[str]:
    """`flexpipe up` in a folder, once it says that it is ready."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-m",
            "flexpipe.cli",
            "up",
            "--engine",
            "emulated",
            "--port",
            str(port),
        ],
        env={**os.environ, "FLEXPIPE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("ready"):
            return process
    process.wait(timeout=30)
    raise AssertionError("".join(said))


def _ours(home: Path) -> list[str]:
    """Command lines of processes that belong to this instance."""
    return [" ".join(process.info["cmdline"]) for process in _processes(home)]


def _processes(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        here = (process.info["environ"] or {}).get("FLEXPIPE_HOME") == str(home)
        named = str(home) in " ".join(process.info["cmdline"] or ())
        if (here or named) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
