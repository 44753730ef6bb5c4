"""A reading that the catalogue does not allow stops nobody's work."""

from __future__ import annotations

import pytest

from flexpipe.telemetry.meters import Meters

REQUESTS = "flexpipe_router_requests_total"


@pytest.mark.parametrize(
    ("name", "value", "labels"),
    [
        ("flexpipe_router_nonsense_total", 1.0, {}),
        (REQUESTS, 1.0, {"colour": "red"}),
        (REQUESTS, 1.0, {}),
        (REQUESTS, -1.0, {"deployment": "toy", "finish": "stop"}),
    ],
    ids=["name", "label", "no-labels", "value"],
)
def test_a_wrong_reading_is_logged_and_not_raised(
    caplog: pytest.LogCaptureFixture, name: str, value: float, labels: dict[str, str]
) -> None:
    meters = Meters("flexpipe_router_")
    meters.take(name, value, **labels)
    assert name in caplog.text
    meters.take(REQUESTS, 1.0, deployment="toy", finish="stop")
    assert f'{REQUESTS}{{deployment="toy",finish="stop"}} 1.0' in meters.page().decode()
