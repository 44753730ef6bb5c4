"""What nodes say of themselves, what an emulated fleet is told, and what the monitor makes of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flexpipe.events.message import Command, Event
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.fleet import Device, DeviceRef, LinkKind
from flexpipe.model.names import DeviceId, Name


class Fabric(Frozen):
    """Devices of one node that reach each other at one speed.

    Fabrics of one name on several nodes are one: an NVSwitch domain over nodes.
    """

    name: Name
    kind: LinkKind
    gb_s: Annotated[float, Field(gt=0)]  # between two of its devices, one direction
    devices: Annotated[tuple[DeviceId, ...], Field(min_length=1)]


class NodeSampled(Event):
    """What an agent sees on its node: everything (`full`), or the devices that changed since the sample before.

    `counter` grows by one a sample; heartbeats repeat it, and on a gap the monitor asks for the full picture.
    Fabrics and rack are always whole. `closed` of a device is not the agent's to say.
    """

    node: Name
    counter: Annotated[int, Field(ge=1)]
    full: bool
    devices: tuple[Device, ...]
    fabrics: tuple[Fabric, ...]
    rack: str = ""

    def bus_key(self) -> str:
        return self.node


class NodeHeartbeat(Event):
    """An agent is there. Every half second; sent without headers, at most 60 bytes."""

    node: Name
    counter: int  # of its last sample; 0 before the first

    def bus_key(self) -> str:
        return self.node


class HostHeartbeat(Event):
    """A worker is there and can place engines. As light and as frequent as the agent's."""

    node: Name

    def bus_key(self) -> str:
        return self.node


class PlanAnswered(Event):
    """Plans whose engines gave this router tokens within the last half second. Said only where there are any."""

    router: Name
    plans: Annotated[tuple[str, ...], Field(min_length=1, max_length=256)]

    def bus_key(self) -> str:
        return self.router


class SampleAsked(Event):
    """The monitor missed a sample of a node and asks its agent for the full picture."""

    node: Name

    def bus_key(self) -> str:
        return self.node


class AlterNode(Command):
    """An emulated fleet is told that something happens to devices of a node (none named: to all of it).

    preempt: taken at once. notice: will be taken in `leaves_in_s`. fail: dead; of a whole node: agent and worker fall
    silent too. degrade: links at `factor` of nominal. reserve: another tenant's. restore: as declared again.
    """

    node: Name
    change: Literal["preempt", "notice", "fail", "degrade", "reserve", "restore"]
    devices: tuple[DeviceId, ...] = ()
    leaves_in_s: Annotated[float, Field(ge=0, le=86_400)] | None = None
    factor: Annotated[float, Field(gt=0, le=1)] | None = None
    tenant: Annotated[str, Field(min_length=1, max_length=100)] | None = None

    def bus_key(self) -> str:
        return self.node


class DeviceChange(Frozen):
    """One device as the fleet saw it before and after."""

    device: DeviceRef
    what: Literal["joined", "left", "closed", "opened", "altered"]
    why: str = ""


class FleetChanged(Event):
    """The fleet has a new revision; its nodes are in the bucket `fleet` already.

    `urgent`: the loop should look at once (something left, came back, is to be preempted, changed its health).
    The trace of every shift that this leads to begins here.
    """

    revision: Annotated[int, Field(ge=1)]
    changes: tuple[DeviceChange, ...]
    sentence: str  # for people
    urgent: bool
    at_s: float
    seen_s: float  # when the last sign of the state before was heard: detection took at_s - seen_s
    trace_id: str
    span_id: str

    def bus_key(self) -> str:
        return "fleet"
