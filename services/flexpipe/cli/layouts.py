"""What an instance on this machine consists of: nodes with their devices, routers, and which services run.

Used by `embedded`, the demo and the tests. It starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flexpipe.fragments.declared import FleetSpec, NodeSpec
from flexpipe.fragments.fleetfile import read_fleet
from flexpipe.kernel.errors import InvalidInput
from flexpipe.performance.devices import DEVICES

GIGABYTE = 1_000_000_000
FLEET_LARGEST_BYTES = 1 << 20
"""A fleet file is a few pages; anything larger is some other file."""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """One node played by this machine, with that many slots of that many bytes.

    Engines over several nodes need an address a node: SGLang opens the same ports on each.
    """

    name: str
    address: str = "127.0.0.1"
    slots: int = 2
    slot_bytes: int = 6 * GIGABYTE
    env: dict[str, str] = field(default_factory=dict)  # more for its worker


@dataclass(frozen=True, slots=True)
class Layout:
    """What an instance consists of. `fleet_file` declares the nodes in place of `nodes`; port 0 means a free one.

    `loop`: with planner and estimator, which shift by themselves.
    """

    folder: Path
    nodes: tuple[NodeLayout, ...] = (NodeLayout("node-a"),)
    fleet_file: Path | None = None
    router_port: int = 0
    routers: tuple[str, ...] = ("router-1",)
    device_kind: str = "cpu"
    loop: bool = False
    log_level: str = "INFO"
    env: dict[str, str] = field(default_factory=dict)

    def fleet_text(self) -> str:
        """The fleet file: the one named, or one that declares the slots. Raises InvalidInput."""
        if self.fleet_file is None:
            return _slots_file(self.nodes, self.device_kind)
        try:
            if self.fleet_file.stat().st_size > FLEET_LARGEST_BYTES:
                raise InvalidInput("fleet", str(self.fleet_file), "a fleet file is a few pages")
            return self.fleet_file.read_text(encoding="utf-8")
        except OSError as error:
            fix = f"{error.strerror}; name a readable TOML file"
            raise InvalidInput("fleet", str(self.fleet_file), fix) from error
        except UnicodeDecodeError as error:
            raise InvalidInput("fleet", str(self.fleet_file), f"not TOML: {error}") from error

    def fleet(self) -> FleetSpec:
        """What the fleet file declares. Raises InvalidInput."""
        where = "fleet" if self.fleet_file is None else str(self.fleet_file)
        return read_fleet(self.fleet_text(), where, memory_by_model())

    def env_of(self, node: NodeSpec) -> dict[str, str]:
        """More for the worker of a node."""
        return next((each.env for each in self.nodes if each.name == node.node), {})


def memory_by_model() -> dict[str, int]:
    """Bytes of memory of the known device models."""
    return {name: facts.memory_bytes for name, facts in DEVICES.items()}


def _slots_file(nodes: tuple[NodeLayout, ...], kind: str) -> str:
    """TOML for nodes of CPU slots; each is bound to a core, round and round."""
    cores = psutil.cpu_count() or 1
    parts = ['name = "here"\n']
    first = 0
    for node in nodes:
        names = ", ".join(f'"cpu{slot}"' for slot in range(node.slots))
        bound = ", ".join(str((first + slot) % cores) for slot in range(node.slots))
        of = (
            f'kind = "cpu", cores = [{bound}]'
            if kind == "cpu"
            else f'kind = "{kind}", model = "cpu"'
        )
        first += node.slots
        parts.append(
            f'[[nodes]]\nname = "{node.name}"\naddress = "{node.address}"\n'
            f"devices = [{{ {of}, uuids = [{names}], memory_gb = {node.slot_bytes / GIGABYTE:.3f} }}]\n"
            'fabric = { kind = "host", gb_s = 10 }\n'
        )
    return "\n".join(parts)
