"""Where the bus is and who we are on it. Read once at the edge of a service; never inside a machine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


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
