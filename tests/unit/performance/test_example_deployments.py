"""The example deployments on the fleet of 27: what their comments say of right and wrong gears."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexpipe.cli.declare import read_deployment
from flexpipe.gears.notation import resolve_gear
from flexpipe.model.outlook import GearOutlook
from flexpipe.performance.outlook import gear_outlook
from flexpipe.testing.fleets import twenty_seven
from flexpipe.testing.llamas import a_load

FLEET = twenty_seven()
EXAMPLES = Path("ops/examples").resolve()


def on(count: int, *nodes: str) -> str:
    return "@" + ",".join(f"{node}/g{index}" for node in nodes for index in range(count))


def outlook(
    name: str, gear: str, per_emulated_s: float, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> tuple[GearOutlook, float]:
    """Of an example under prompts of 1,000 and answers of 128; and its good rate in emulated seconds."""
    monkeypatch.chdir(folder)
    deployment = read_deployment(EXAMPLES / f"{name}.toml")
    scale = deployment.engine.time_scale
    load = a_load(per_emulated_s * scale, 1000.0, 128.0)
    seen = gear_outlook(resolve_gear(gear, deployment, FLEET, {}), deployment, load)
    return seen, seen.good_requests_per_s / scale


@pytest.mark.parametrize(
    ("name", "gear", "stated"),
    [
        ("llama-70b", "tp8" + on(4, "a1", "a2"), 16.0),
        ("llama-70b", "tp4" + on(4, "a1"), 8.9),
        ("llama-70b", "tp2" + on(2, "a1"), 3.6),
        ("llama-70b", "tp4pp2" + on(4, "b1", "b2"), 4.2),
        ("llama-70b", "tp4" + on(4, "b1"), 2.4),
        ("llama-70b", "tp2pp2" + on(4, "b1"), 0.0),
        ("llama-70b", "tp2pp3" + on(2, "c1", "c2", "c3"), 0.0),
        ("llama-7b", "tp1" + on(1, "a1"), 19.0),
        ("llama-7b", "tp1" + on(1, "b1"), 7.0),
        ("llama-7b", "tp1" + on(1, "c1"), 2.6),
        ("llama-7b", "tp2" + on(2, "c1"), 5.3),
        ("llama-7b", "pp2" + on(2, "c1"), 4.5),
    ],
)
def test_each_gear_holds_the_objective_up_to_the_rate_that_the_file_states(
    name: str, gear: str, stated: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert outlook(name, gear, 1.0, monkeypatch, tmp_path)[1] == pytest.approx(stated, rel=0.05)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("llama-70b", "tp4" + on(4, "a1"), "tp4" + on(4, "b1")),
        ("llama-7b", "tp1" + on(1, "b1"), "tp1" + on(1, "c1")),
    ],
)
def test_at_four_requests_a_second_the_right_gear_holds_and_the_wrong_one_does_not(
    name: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for gear, holds in ((right, True), (wrong, False)):
        seen, good = outlook(name, gear, 4.0, monkeypatch, tmp_path)
        assert (good > 1.3 * 4.0) is holds
        arrived_tokens = 4.0 * 6 * 128
        assert (seen.good_tokens_per_s == pytest.approx(arrived_tokens)) is holds
