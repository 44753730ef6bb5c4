"""What is there: nodes, their devices, and the blocks that plans are laid over."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, Literal

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


class LinkKind(StrEnum):
    """What joins the devices of a block: its class, which says what groups it can carry."""

    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"
    PCIE = "pcie"
    HOST = "host"  # shared memory of one machine: CPU slots
    NETWORK = "network"


TP_WIDTH_LIMIT: Final[dict[LinkKind, int]] = {
    LinkKind.NVSWITCH: 64,
    LinkKind.NVLINK: 8,
    LinkKind.HOST: 64,
    LinkKind.PCIE: 2,
    LinkKind.NETWORK: 1,
}
"""The widest tensor-parallel group that a class carries. TP4 to TP8 over PCIe gains 2 % (public L40S measurements)."""


class Device(Frozen):
    """Something that can hold one rank of an engine. `model` is a name of the table in `flexpipe.performance`."""

    device: DeviceId
    kind: Literal["cpu", "cuda", "emulated"]
    memory_bytes: Annotated[int, Field(gt=0)]
    core: int | None = None  # CPU core that a rank on a CPU slot is bound to
    model: str = "cpu"
    state: Literal["present", "preempted", "failed"] = "present"
    leaves_at_s: float | None = None  # notice of preemption: when it will be taken, epoch
    tenant: str | None = None  # who else has reserved it
    link_factor: Annotated[float, Field(gt=0, le=1)] = (
        1.0  # measured over nominal bandwidth of its links
    )
    closed: str | None = None  # why nothing new may be placed on it, in words; None where it may


class Block(Frozen):
    """Devices of one model, adjacent, joined by links of one class. Plans claim whole blocks.

    Large blocks are carved into canonical sub-blocks, which are blocks too: `parent` says of which. Two blocks overlap
    only where one lies within the other. `devices` are in the order in which ranks are laid over them.
    """

    id: str
    parent: str | None = None
    model: str
    kind: LinkKind
    gb_s: Annotated[float, Field(gt=0)]  # between two of its devices, one direction
    devices: Annotated[tuple[DeviceRef, ...], Field(min_length=1)]

    @property
    def size(self) -> int:
        """How many devices."""
        return len(self.devices)

    def carries_tp(self, width: int) -> bool:
        """Whether its class carries a tensor-parallel group of that width."""
        return width == 1 or width <= min(self.size, TP_WIDTH_LIMIT[self.kind])


class Host(Frozen):
    """Where a worker places engines; the value of a key in the bucket `hosts`, written by the worker of that node."""

    node: Name
    address: str  # where engines of this node listen on the data plane
    first_port: Annotated[int, Field(ge=1024, le=65_000)] = 31_000
    port_blocks: Annotated[int, Field(ge=1, le=1000)] = (
        64  # blocks of PORTS_PER_PLAN ports for engines
    )
    devices: tuple[
        DeviceId, ...
    ]  # on which it can start something now: not taken, and empty of what was


class Node(Frozen):
    """One machine; the value of a key in the bucket `fleet`, written by the monitor.

    `blocks` are those whose first device lies on this node. `revision` is the fleet revision of its last change.
    """

    node: Name
    address: str = ""  # of its host; empty where no worker is known
    first_port: Annotated[int, Field(ge=1024, le=65_000)] = 31_000
    port_blocks: Annotated[int, Field(ge=1, le=1000)] = 64
    devices: tuple[Device, ...]
    rack: str = ""
    state: Literal["observed", "unobserved", "lost"] = "observed"
    blocks: tuple[Block, ...] = ()
    revision: int = 0

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

    def node(self, name: str) -> Node | None:
        """One node, whatever its state."""
        return next((node for node in self.nodes if node.node == name), None)

    def device(self, ref: DeviceRef) -> Device | None:
        """The device, or None where it is not (or no longer) there: unknown, taken, failed, or on a lost node."""
        node = self.node(ref.node)
        if node is None or node.state == "lost":
            return None
        found = next((device for device in node.devices if device.device == ref.device), None)
        return found if found is not None and found.state == "present" else None

    def closed(self, ref: DeviceRef) -> str | None:
        """Why nothing new may be placed on a device, in words; None where it may."""
        device = self.device(ref)
        return f"{ref} is not in the fleet" if device is None else device.closed

    def goes(self, refs: Iterable[DeviceRef]) -> bool:
        """Whether one of these devices is gone or is to be preempted."""
        devices = (self.device(ref) for ref in refs)
        return any(device is None or device.leaves_at_s is not None for device in devices)

    @cached_property
    def unclosed(self) -> Fleet:
        """This fleet with every device that is there open, and without blocks: those of closed ones are not carved."""
        return Fleet(nodes=tuple(_unclosed(node) for node in self.nodes))

    def refs(self) -> tuple[DeviceRef, ...]:
        """Every device that is there, sorted."""
        every = (
            DeviceRef(node=node.node, device=device.device)
            for node in self.nodes
            for device in node.devices
        )
        return tuple(sorted(ref for ref in every if self.device(ref) is not None))

    @property
    def revision(self) -> int:
        """Of the newest change that is in this picture."""
        return max((node.revision for node in self.nodes), default=0)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every block and sub-block, largest first, then by id."""
        every = [block for node in self.nodes for block in node.blocks]
        return tuple(sorted(every, key=lambda block: (-block.size, block.id)))

    def with_node(self, node: Node) -> Fleet:
        """This fleet with one node put in or replaced."""
        return self.without_node(node.node)._sorted_with(node)

    def without_node(self, name: str) -> Fleet:
        """This fleet without the node of that name."""
        return Fleet(nodes=tuple(node for node in self.nodes if node.node != name))

    def _sorted_with(self, node: Node) -> Fleet:
        return Fleet(nodes=tuple(sorted((*self.nodes, node), key=lambda each: each.node)))


def _unclosed(node: Node) -> Node:
    devices = tuple(device.model_copy(update={"closed": None}) for device in node.devices)
    return node.model_copy(update={"devices": devices, "blocks": ()})
