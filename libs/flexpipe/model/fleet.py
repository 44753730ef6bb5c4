"""What is there: nodes and their devices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.names import DeviceId, Name

PORTS_PER_PLAN = 8
"""HTTP front, rendezvous and what an engine opens for itself: one block of ports a plan."""


class DeviceRef(Frozen):
    """One device of one node. Sorts by node, then device."""

    node: Name
    device: DeviceId

    def __str__(self) -> str:
        return f"{self.node}/{self.device}"

    def __lt__(self, other: DeviceRef) -> bool:
        return (self.node, self.device) < (other.node, other.device)

    @property
    def key(self) -> str:
        """Its key in the bucket `reservations`."""
        return f"{self.node}.{self.device}"


class Device(Frozen):
    """Something that can hold one rank of an engine."""

    device: DeviceId
    kind: Literal["cpu", "cuda", "emulated"]
    memory_bytes: Annotated[int, Field(gt=0)]
    core: int | None = None  # CPU core that a rank on a CPU slot is bound to


class Node(Frozen):
    """One machine as its worker declares it; the value of a key in the bucket `fleet`."""

    node: Name
    address: str  # where engines of this node listen on the data plane
    first_port: Annotated[int, Field(ge=1024, le=65_000)] = 31_000
    port_blocks: Annotated[int, Field(ge=1, le=1000)] = (
        64  # blocks of PORTS_PER_PLAN ports for engines
    )
    devices: tuple[Device, ...]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Node:
        ids = [device.device for device in self.devices]
        doubled = sorted({id_ for id_ in ids if ids.count(id_) > 1})
        if doubled:
            raise ValueError(
                f"devices: {doubled[0]!r} is declared twice; every device id must be unique in its node"
            )
        return self


class Fleet(Frozen):
    """All nodes known, by name."""

    nodes: tuple[Node, ...] = ()

    def device(self, ref: DeviceRef) -> Device | None:
        """The device, or None where it is not (or no longer) part of the fleet."""
        for node in self.nodes:
            if node.node == ref.node:
                return next(
                    (device for device in node.devices if device.device == ref.device), None
                )
        return None

    def refs(self) -> tuple[DeviceRef, ...]:
        """Every device, sorted."""
        return tuple(
            sorted(
                DeviceRef(node=node.node, device=device.device)
                for node in self.nodes
                for device in node.devices
            )
        )

    def with_node(self, node: Node) -> Fleet:
        """This fleet with one node put in or replaced."""
        return self.without_node(node.node)._sorted_with(node)

    def without_node(self, name: str) -> Fleet:
        """This fleet without the node of that name."""
        return Fleet(nodes=tuple(node for node in self.nodes if node.node != name))

    def _sorted_with(self, node: Node) -> Fleet:
        return Fleet(nodes=tuple(sorted((*self.nodes, node), key=lambda each: each.node)))
