"""Settings of the router, read once at its edge."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from flexpipe.bus.settings import ServiceSettings
from flexpipe.model.names import Name

MIB = 1 << 20


class Settings(ServiceSettings):
    """Environment prefix `FLEXPIPE_ROUTER_`, over one TOML file. Bounds with their reasons beside them."""

    model_config = SettingsConfigDict(env_prefix="FLEXPIPE_ROUTER_", frozen=True, extra="ignore")

    name: Name = "router-1"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65_535)] = 8000
    url: str | None = None  # where clients reach it, if not http://host:port (behind a balancer)

    # A prompt of a million tokens as text is about this long; images come by URL or base64.
    body_limit_bytes: Annotated[int, Field(ge=1024, le=256 * MIB)] = 16 * MIB
    # Sequences held at once, waiting ones included: each costs one connection and some kilobytes.
    sequences_limit: Annotated[int, Field(ge=1, le=100_000)] = 4096
    # Frames that may wait for a slow client before its engine is read no further.
    unread_frames: Annotated[int, Field(ge=1, le=65_536)] = 256
    # Longest silence of an engine within an answer, and longest that a client may read nothing of it.
    silence_limit_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    # Comment frames while nothing else is said. Off: the status stays open for a retry until the first content.
    keepalive_s: Annotated[float, Field(gt=0, le=3600)] | None = None
    # The window of load reports. Shorter where deployments run at a time scale, so that windows hold as much of it.
    load_every_s: Annotated[float, Field(ge=0.5, le=60)] = 5.0
    # How long streams may finish after the order to stop; then each gets one clear error.
    stop_limit_s: Annotated[float, Field(ge=0, le=3600)] = 30.0

    @property
    def public_url(self) -> str:
        """What the roster says."""
        return self.url or f"http://{self.host}:{self.port}"
