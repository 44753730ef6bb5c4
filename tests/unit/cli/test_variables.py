"""A wrong variable of the environment is one line that names it, and says no more than it must."""

from __future__ import annotations

import pytest

from flexpipe.bus.settings import BusSettings
from flexpipe.cli.variables import log_level, settings_of
from flexpipe.executor.settings import Settings as ExecutorSettings
from flexpipe.kernel.errors import InvalidInput
from flexpipe.worker.settings import Settings as WorkerSettings


@pytest.fixture(autouse=True)
def a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXPIPE_WORKER_NODE", "node-a")
    monkeypatch.setenv("FLEXPIPE_WORKER_STATE_DIR", "state")
    monkeypatch.setenv("FLEXPIPE_BUS_PASSWORD", "secret")


@pytest.mark.parametrize(
    ("cls", "variable", "value", "says"),
    [
        (WorkerSettings, "FLEXPIPE_WORKER_DEVICES", "nonsense", "'nonsense' is not accepted"),
        (WorkerSettings, "FLEXPIPE_WORKER_DEVICES", "[]", "at least 1 item"),
        (WorkerSettings, "FLEXPIPE_WORKER_DEVICES", '[{"device": "cpu0"}]', "DEVICES.0.kind: None"),
        (WorkerSettings, "FLEXPIPE_WORKER_DEVICES", None, "None is not accepted: set it"),
        (ExecutorSettings, "FLEXPIPE_EXECUTOR_HTTP_PORT", "many", "'many' is not accepted"),
        (ExecutorSettings, "FLEXPIPE_BUS_REPLICAS", "77", "'77' is not accepted"),
        (BusSettings, "FLEXPIPE_BUS_REPLICAS", "77", "'77' is not accepted"),
    ],
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch,
    cls: type[BusSettings | ExecutorSettings | WorkerSettings],
    variable: str,
    value: str | None,
    says: str,
) -> None:
    if value is not None:
        monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput) as caught:
        settings_of(cls)
    said = str(caught.value)
    assert said.startswith(variable)
    assert says in said
    assert "\n" not in said
    assert "secret" not in said


def test_a_log_level_that_there_is_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXPIPE_LOG_LEVEL", "loud")
    with pytest.raises(InvalidInput, match="FLEXPIPE_LOG_LEVEL: 'LOUD'"):
        log_level()
    monkeypatch.setenv("FLEXPIPE_LOG_LEVEL", "debug")
    assert log_level() == "DEBUG"
