"""Settings of services: code over environment over file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexpipe.executor.settings import Settings as ExecutorSettings
from flexpipe.kernel.errors import InvalidInput
from flexpipe.router.settings import Settings as RouterSettings


def test_the_environment_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "router.toml"
    file.write_text('name = "front"\nport = 9000\n')
    monkeypatch.setenv("FLEXPIPE_ROUTER_FILE", str(file))
    monkeypatch.setenv("FLEXPIPE_ROUTER_PORT", "9001")
    settings = RouterSettings()
    assert (settings.name, settings.port) == ("front", 9001)


def test_every_service_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "executor.toml"
    file.write_text("http_port = 9100\n")
    monkeypatch.setenv("FLEXPIPE_EXECUTOR_FILE", str(file))
    assert ExecutorSettings().http_port == 9100
    assert RouterSettings().port == 8000


@pytest.mark.parametrize("content", [None, "port = "], ids=["absent", "broken"])
def test_a_file_that_cannot_be_read_is_named_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "router.toml"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("FLEXPIPE_ROUTER_FILE", str(file))
    with pytest.raises(InvalidInput, match="FLEXPIPE_ROUTER_FILE"):
        RouterSettings()
