"""What one planner is told at its start: environment (prefix `FLEXPIPE_PLANNER_`) over one TOML file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from flexpipe.bus import BusSettings
from flexpipe.bus.settings import ServiceSettings
from flexpipe.model.names import Name


class Settings(ServiceSettings):
    """One planner."""

    model_config = SettingsConfigDict(env_prefix="FLEXPIPE_PLANNER_", frozen=True, extra="ignore")

    name: Name = "planner"
    http_host: str = "127.0.0.1"
    http_port: Annotated[int, Field(ge=0, le=65_535)] = (
        0  # /health, /ready, /metrics; 0: not served
    )
    bus: BusSettings = Field(default_factory=BusSettings)
