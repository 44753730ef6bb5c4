"""Every metric of the catalogue: measured somewhere, a unit in its name, labels that are bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexpipe.model.shift import Phase
from flexpipe.telemetry.catalogue import METRICS, Metric
from flexpipe.telemetry.meters import Meters
from flexpipe.testing.builders import a_gear, a_node, a_plan
from flexpipe.testing.harness import ShiftWorld

SOURCES = {
    path: path.read_text()
    for root in ("libs", "services")
    for path in sorted(Path(root).rglob("*.py"))
    if path.name != "catalogue.py"
}
BOUNDED = {
    "deployment",
    "plan",
    "finish",
    "verdict",
    "reason",
    "source",
    "outcome",
    "phase",
    "start_class",
    "guard",
    "state",
}
UNITS = (
    *("_total", "_seconds", "_bytes", "_in_flight", "_parked", "_ratio"),
    *("_nodes", "_devices", "_revision"),
)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_measured_somewhere_and_names_its_unit(metric: Metric) -> None:
    assert any(f'"{metric.name}"' in text for text in SOURCES.values()), "nobody measures it"
    assert metric.name.endswith(UNITS)
    assert set(metric.labels) <= BOUNDED
    assert metric.says.endswith(".")


def test_a_closed_shift_shows_in_the_executor_s_metrics() -> None:
    scene = ShiftWorld(nodes=(a_node("node-a"),))
    scene.shift(a_gear(a_plan("node-a/cpu0")))
    meters = Meters("flexpipe_executor_")
    for reading in scene.world.measures:
        meters(reading)
    page = meters.page().decode()
    assert (
        'flexpipe_executor_shifts_total{deployment="toy",outcome="completed",start_class="cold"} 1.0'
        in page
    )
    assert f'phase="{Phase.PREPARING}"' in page
