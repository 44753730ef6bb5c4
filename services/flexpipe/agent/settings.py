"""What one agent is told at its start: environment (prefix `FLEXPIPE_AGENT_`) over one TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from flexpipe.bus import BusSettings
from flexpipe.bus.settings import ServiceSettings
from flexpipe.fragments.declared import NodeSpec
from flexpipe.fragments.fleetfile import read_fleet
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.names import Name

LARGEST_FILE_BYTES: Final = 1 << 20
"""A fleet file is a few pages; anything larger is some other file."""


class Settings(ServiceSettings):
    """One agent. It may stand for several nodes: those named, or all of the file."""

    model_config = SettingsConfigDict(env_prefix="FLEXPIPE_AGENT_", frozen=True, extra="ignore")

    name: Name = "agent"
    fleet: Path  # the fleet file that declares its nodes
    nodes: tuple[Name, ...] = ()
    http_host: str = "127.0.0.1"
    http_port: Annotated[int, Field(ge=0, le=65_535)] = (
        0  # /health, /ready, /metrics; 0: not served
    )
    bus: BusSettings = Field(default_factory=BusSettings)

    def declared(self) -> tuple[NodeSpec, ...]:
        """The nodes it stands for, as declared. Raises InvalidInput."""
        try:
            with self.fleet.open("rb") as file:
                raw = file.read(LARGEST_FILE_BYTES + 1)  # a device has no size and no end
            text = raw.decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            fix = f"{reason}; name a readable fleet file"
            raise InvalidInput("FLEXPIPE_AGENT_FLEET", str(self.fleet), fix) from error
        if len(raw) > LARGEST_FILE_BYTES:
            fix = f"larger than {LARGEST_FILE_BYTES} bytes; name a fleet file"
            raise InvalidInput("FLEXPIPE_AGENT_FLEET", str(self.fleet), fix)
        spec = read_fleet(text, self.fleet.name)
        names = [node.node for node in spec.nodes]
        for name in self.nodes:
            if name not in names:
                fix = f"{self.fleet.name} declares {', '.join(names)}"
                raise InvalidInput("FLEXPIPE_AGENT_NODES", name, fix)
        return tuple(node for node in spec.nodes if not self.nodes or node.node in self.nodes)
