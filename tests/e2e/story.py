"""The demo as a newcomer runs it, and what must hold of it whatever the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def flexpipe(
    *words: str, home: Path, limit_s: float = 150.0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "flexpipe.cli", *words],
        env={**os.environ, "FLEXPIPE_HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def tell(*words: str, home: Path, limit_s: float = 170.0) -> dict[str, Any]:
    """The account of a demo that passed."""
    run = flexpipe(*words, "--json", home=home, limit_s=limit_s)
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout[-2000:]
    account: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return account


def run_demo(engine: str, home: Path, limit_s: float = 170.0) -> dict[str, Any]:
    """The demo's account: it passed, there and back, six streams in flight at each commit, some of them moved."""
    account = tell("demo", "--engine", engine, home=home, limit_s=limit_s)
    assert account["passed"]
    assert account["broken"] == []
    assert account["streams"] >= 7
    there_and_back = [(each["from"], each["to"]) for each in account["shifts"]]
    assert there_and_back == [("tp1", "pp2"), ("pp2", "tp1")]
    assert all(each["outcome"] == "completed" for each in account["shifts"])
    assert all(each["in_flight_at_commit"] >= 6 for each in account["shifts"])
    assert all(each["moved"] >= 1 for each in account["shifts"])
    return account


def assert_decisions_replay(home: Path) -> None:
    """Fed its journal, a fresh machine gives the same effects, whatever order hashes have.

    Workers of a fleet are equal: the first of them stands for all.
    """
    journals = sorted((home / "journals").glob("*.jsonl"))
    workers = [each for each in journals if each.stem.startswith("worker")]
    assert {each.stem.partition("-")[0] for each in journals} >= {
        *("agent", "monitor", "executor", "worker", "router"),
    }
    for journal in journals:
        if journal in workers[1:]:
            continue
        for seed in ("1", "2"):
            report = flexpipe("replay", str(journal), "--json", home=home, PYTHONHASHSEED=seed)
            assert report.returncode == 0, report.stdout + report.stderr
            document = json.loads(report.stdout)
            assert document["differing"] == []
            # An agent of a quiet node is told its nodes and asked once or twice.
            assert document["events"] > (1 if journal.stem.startswith("agent") else 5)
