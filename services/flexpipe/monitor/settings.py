"""What the monitor is told at its start: environment (prefix `FLEXPIPE_MONITOR_`) over one TOML file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from flexpipe.bus import BusSettings
from flexpipe.bus.settings import ServiceSettings
from flexpipe.model.names import Name


class Settings(ServiceSettings):
    """The monitor. There is one: it is the only writer of the bucket `fleet`."""

    model_config = SettingsConfigDict(env_prefix="FLEXPIPE_MONITOR_", frozen=True, extra="ignore")

    name: Name = "monitor"
    http_host: str = "127.0.0.1"
    http_port: Annotated[int, Field(ge=0, le=65_535)] = (
        0  # /health, /ready, /metrics; 0: not served
    )
    bus: BusSettings = Field(default_factory=BusSettings)
