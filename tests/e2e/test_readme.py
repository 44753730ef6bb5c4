"""Every command that the README shows is run, as it stands there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

README = Path("README.md").read_text()
ELSEWHERE = {
    "make demo": "test_sglang_demo runs it",
    "make demo ENGINE=emulated": "test_demo_emulated runs it",
    "make test": "is this run",
    "make up": "differs from the emulated one in its engine only, which test_sglang_demo starts",
    "make check": "its parts are this run's unit, property and contract tests; test_house runs its linters",
    "make setup": "what this run stands on",
    "make engine": "what this run stands on",
    "make schemas": "test_catalog holds that it would change nothing",
    "flexpipe up": "make up runs it",
    **{
        f"flexpipe run {service}": "make up runs it"
        for service in (
            *("agent", "monitor", "planner", "estimator"),
            *("executor", "router", "worker"),
        )
    },
    "flexpipe up --engine emulated --fleet ops/examples/fleets/twenty-seven.toml": (
        "test_fleet_up runs it"
    ),
    "flexpipe watch": "never ends; test_loop_commands runs it on a terminal",
    "flexpipe cancel NAME": "has nothing to undo here; test_hatch runs it in the middle of a shift",
    "flexpipe events --follow": "never ends; test_cli_commands runs it for a while",
}
WORDS = {"NAME": "emulated", "GEAR": "tp1", " N": " 2"}


def blocks() -> list[str]:
    """Commands of fenced `sh` blocks, comments cut off."""
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", README, re.S)
        for line in block.splitlines()
    ]
    return [line.split("  #")[0].split(" #")[0].strip() for line in lines if line.strip()]


def inline() -> list[str]:
    """Commands in running text and tables."""
    return re.findall(r"`((?:flexpipe|make) [^`]+)`", README)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """`make up ENGINE=emulated`, ready; the environment in which the other commands find it."""
    env = {
        **os.environ,
        "FLEXPIPE_HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONUNBUFFERED": "1",
    }
    with subprocess.Popen(
        ["make", "up", "ENGINE=emulated"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("ready"):
                break
        assert said, "make up said nothing"
        assert said[-1].startswith("ready"), "".join(said)
        yield env
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.read()
        process.wait(timeout=60)


def test_the_commands_of_the_readme_do_what_it_says(up: dict[str, str], tmp_path: Path) -> None:
    shown = [
        command
        for command in blocks()
        if command not in ELSEWHERE and not command.startswith("make up")
    ]
    told = [
        ".venv/bin/" + _filled(command)
        for command in inline()
        if command not in ELSEWHERE and "make" not in command
    ]
    # `stop` last: the others need something that serves.
    in_order = [*shown, *sorted(told, key=lambda command: " stop " in command)]
    assert len(in_order) >= 12
    for command in in_order:
        run = subprocess.run(
            ["bash", "-c", command],
            env=up,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, f"{command}\n{run.stdout}\n{run.stderr}"
        assert run.stdout.strip() or "export" in command, f"{command} said nothing"


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", Path("Makefile").read_text(), re.M))
    named = {
        command.split()[1] for command in [*blocks(), *inline()] if command.startswith("make ")
    }
    assert named <= targets


def _filled(command: str) -> str:
    for word, value in WORDS.items():
        command = command.replace(word, value)
    return command
