"""`flexpipe up` with a fleet file: a deployment is applied to 27 GPUs, serves, and is pulled to where the user says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from e2e.story import flexpipe
from flexpipe.cli.ports import instance_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

FLEET = "ops/examples/fleets/twenty-seven.toml"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A running instance: its home, and the port of its router."""
    home = tmp_path_factory.mktemp("home")
    with instance_ports(1) as ports:
        port = ports.service()
        words = ("up", "--engine", "emulated", "--fleet", FLEET, "--port", str(port))
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "flexpipe.cli", *words],
            env={**os.environ, "FLEXPIPE_HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("ready"):
                    break
            assert said, "it said nothing"
            assert said[-1].startswith("ready"), "".join(said)
            yield home, port
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            process.wait(timeout=60)


def document(home: Path, *words: str) -> dict[str, object]:
    run = flexpipe(*words, "--json", home=home)
    assert run.returncode == 0, run.stdout + run.stderr
    told: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return told


def test_a_deployment_is_applied_to_the_fleet_and_answers(up: tuple[Path, int]) -> None:
    home, port = up
    told = document(home, "fleet")
    nodes = told["fleet"]["nodes"]  # type: ignore[index]
    assert sum(len(node["devices"]) for node in nodes) == 27
    assert flexpipe("apply", "-f", "ops/examples/llama-7b.toml", home=home).returncode == 0
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json={
            "model": "llama-7b",
            "messages": [{"role": "user", "content": "Which card are you on?"}],
            "max_tokens": 8,
        },
        timeout=60.0,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8


def test_what_fits_nowhere_is_said_with_the_constraint_that_fails(
    up: tuple[Path, int], tmp_path: Path
) -> None:
    home, _ = up
    text = Path("ops/examples/llama-70b.toml").read_text()
    wide = tmp_path / "wide.toml"
    wide.write_text(
        text.replace('"tp4"', '"tp1"').replace('name = "llama-70b"', 'name = "wide"', 1)
    )
    run = flexpipe("apply", "-f", str(wide), home=home)
    assert run.returncode != 0
    (line,) = run.stderr.strip().splitlines()
    assert "a rank needs" in line
    assert "GB" in line
    known = document(home, "gears")["gears"]
    assert "wide" not in [each["deployment"] for each in known]  # type: ignore[index,attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("cooldown_s = 90", "cooldown_s = 20", "policy.cooldown_s"),
        ("hysteresis = 1.4", "hysteresis = 9", "policy.hysteresis"),
    ],
    ids=["cooldown", "hysteresis"],
)
def test_a_policy_outside_its_bounds_is_one_line(
    up: tuple[Path, int], tmp_path: Path, old: str, new: str, says: str
) -> None:
    home, _ = up
    text = Path("ops/examples/llama-7b.toml").read_text() + f"\n[policy]\n{old}\n"
    file = tmp_path / "strange.toml"
    file.write_text(text.replace(old, new))
    run = flexpipe("apply", "-f", str(file), home=home)
    assert run.returncode == 2
    (line,) = run.stderr.strip().splitlines()
    assert says in line


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('model = "L40S"', 'model = "L40X"', "L40X"),
        ('names = ["b1", "b2"]', 'names = ["b1", "b1"]', "b1"),
    ],
    ids=["gpu-model", "node"],
)
def test_a_fleet_file_with_a_mistake_is_one_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(Path(FLEET).read_text().replace(old, new))
    run = flexpipe("up", "--engine", "emulated", "--fleet", str(file), home=tmp_path / "home")
    assert run.returncode == 2
    (line,) = run.stderr.strip().splitlines()
    assert says in line
