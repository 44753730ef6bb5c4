"""Schedules of trouble by seed: first faults (nothing unsafe ever), then calm (everything comes to rest)."""

from __future__ import annotations

import random
from collections import Counter

from simulation.chaos import drawn, play

SEEDS = 200


def test_after_any_schedule_of_faults_the_world_comes_to_rest_whole() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        chance = random.Random(seed)
        try:
            scene = play(drawn(chance), chance)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        outcomes.update(str(record.outcome) for record in scene.records())
    assert set(outcomes) == {"completed", "rolled_back", "abandoned"}
    assert min(outcomes.values()) > SEEDS // 10, "schedules that end in one way alone prove little"
