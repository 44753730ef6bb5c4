"""A machine is a function of its inputs: the same journal, the same effects, byte for byte, whatever the hash seed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from flexpipe.testing.harness import ShiftWorld
from flexpipe.testing.world import Line
from flexpipe.transitions import Executor
from simulation.chaos import drawn, play

TESTS = Path(__file__).parents[1]


def a_troubled_scene() -> ShiftWorld:
    chance = random.Random(5)
    return play(drawn(chance, 20), chance)


def replayed(machine: Executor, lines: list[Line]) -> list[str]:
    return [machine.handle(line.now_s, line.event).canonical_json() for line in lines]


def test_the_journal_of_each_life_fed_to_a_fresh_machine_gives_the_same_effects() -> None:
    scene = a_troubled_scene()
    assert len(scene.executor.lives) > 1
    for life in scene.executor.lives:
        assert replayed(Executor(), life) == [line.effects for line in life]


def test_a_machine_restored_from_a_snapshot_goes_on_as_the_one_that_gave_it() -> None:
    life = max(a_troubled_scene().executor.lives, key=len)
    effects = [line.effects for line in life]
    machine = Executor()
    for place, line in enumerate(life):
        machine.handle(line.now_s, line.event)
        if place % 10 == 0:
            again = Executor()
            again.restore(machine.snapshot())
            assert again.snapshot() == machine.snapshot()
            assert replayed(again, life[place + 1 :]) == effects[place + 1 :]


def test_the_hash_seed_of_the_process_changes_nothing() -> None:
    printed = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)}
        run = subprocess.run(
            [sys.executable, "-m", "simulation.canonical"],
            env=environment,
            cwd=TESTS,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        printed.add(run.stdout)
    assert len(printed) == 1
