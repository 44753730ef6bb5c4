"""What one worker is told at its start: environment (prefix `FLEXPIPE_WORKER_`) over one TOML file.

The file, where `FLEXPIPE_WORKER_FILE` names one, holds the fields below by their names; `devices` is an
array of tables (`[[devices]]`) there and JSON in the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from flexpipe.bus import BusSettings
from flexpipe.bus.settings import ServiceSettings
from flexpipe.hosting.memory import HostingLimits
from flexpipe.model.fleet import Device, Node
from flexpipe.model.names import Name


class Settings(ServiceSettings):
    """One worker. `devices` are what it declares to the fleet: its slots on CPUs, its GPUs by UUID."""

    model_config = SettingsConfigDict(
        env_prefix="FLEXPIPE_WORKER_", frozen=True, extra="ignore", populate_by_name=True
    )

    node: Name
    address: str = "127.0.0.1"  # where engines of this node listen on the data plane
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    first_port: Annotated[int, Field(ge=1024, le=65_000)] = 31_000
    port_blocks: Annotated[int, Field(ge=1, le=1000)] = 64
    state_dir: Path  # of this worker alone: its memory and the groups it started
    logs_dir: Path | None = None  # one log a rank group; default: `logs` in `state_dir`
    engine_venv: Path = Field(
        default=Path(".venv-sglang"),
        validation_alias=AliasChoices("engine_venv", "FLEXPIPE_ENGINE_VENV"),
    )
    http_host: str = "127.0.0.1"
    http_port: Annotated[int, Field(ge=0, le=65_535)] = (
        0  # /health, /ready, /metrics; 0: not served
    )
    limits: HostingLimits = HostingLimits()
    bus: BusSettings = Field(default_factory=BusSettings)

    def declared(self) -> Node:
        """The node as configured."""
        return Node(
            node=self.node,
            address=self.address,
            first_port=self.first_port,
            port_blocks=self.port_blocks,
            devices=self.devices,
        )

    def python(self, engine: str) -> str:
        """The interpreter that an engine is started with: its own environment's, or ours for `emulated`."""
        if engine == "emulated":
            return sys.executable
        return str((self.engine_venv / "bin" / "python").absolute())

    @property
    def logs(self) -> Path:
        """Where the logs of rank groups lie."""
        return self.state_dir / "logs" if self.logs_dir is None else self.logs_dir
