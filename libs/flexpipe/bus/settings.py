"""Settings of services: the environment over one TOML file, and where the bus is.

Read once at the edge of a service; never inside a machine.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from flexpipe.kernel.errors import InvalidInput


class ServiceSettings(BaseSettings):
    """What one service is told at its start: its environment prefix, over the TOML file that `<PREFIX>FILE` names.

    The file holds the fields by their names. Raises InvalidInput where it is named and cannot be read.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is passed in code, over the environment, over the file."""
        variable = f"{cls.model_config['env_prefix']}FILE"
        return (init_settings, env_settings, InitSettingsSource(settings_cls, _file(variable)))


def _file(variable: str) -> dict[str, Any]:
    name = os.environ.get(variable)
    if not name:
        return {}
    try:
        return tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(variable, name, f"name a readable TOML file: {error}") from error


class BusSettings(BaseSettings):
    """Environment prefix `FLEXPIPE_BUS_`; one user a service (see `flexpipe.bus.users`)."""

    model_config = SettingsConfigDict(env_prefix="FLEXPIPE_BUS_", frozen=True, extra="ignore")

    url: str = "nats://127.0.0.1:4222"  # several servers of one cluster: separated by commas
    user: str = ""
    password: SecretStr = SecretStr("")
    connect_limit_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    replicas: Annotated[int, Field(ge=1, le=5)] = 1  # of streams and buckets, where we create them

    @property
    def servers(self) -> list[str]:
        """The servers of the cluster."""
        return [server.strip() for server in self.url.split(",") if server.strip()]

    def environment(self) -> dict[str, str]:
        """The variables that give another process these settings."""
        return {
            "FLEXPIPE_BUS_URL": self.url,
            "FLEXPIPE_BUS_USER": self.user,
            "FLEXPIPE_BUS_PASSWORD": self.password.get_secret_value(),
            "FLEXPIPE_BUS_CONNECT_LIMIT_S": str(self.connect_limit_s),
            "FLEXPIPE_BUS_REPLICAS": str(self.replicas),
        }
