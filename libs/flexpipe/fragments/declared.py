"""What a fleet file declares: nodes with devices and the fabrics that join them. Frozen; made by `fleetfile`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexpipe.events.fleet import Fabric
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.fleet import Device
from flexpipe.model.names import Name


class NodeSpec(Frozen):
    """One declared machine."""

    node: Name
    rack: str = ""
    address: str = "127.0.0.1"  # where engines of this node listen on the data plane
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    fabrics: tuple[Fabric, ...] = ()


class FleetSpec(Frozen):
    """All nodes of one file, by name."""

    name: Name
    nodes: Annotated[tuple[NodeSpec, ...], Field(min_length=1)]

    def node(self, name: str) -> NodeSpec | None:
        """One node."""
        return next((node for node in self.nodes if node.node == name), None)
