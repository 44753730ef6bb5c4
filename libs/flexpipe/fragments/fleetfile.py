"""Reads a fleet file: TOML to declared nodes, strictly. Called by the agent, by `flexpipe up` and by test fleets.

    name = "two-racks"

    [[nodes]]                      # one table a machine, or `names = [...]` for equal ones
    name = "b1"
    rack = "rack-b"
    address = "127.0.0.1"
    devices = [{ model = "A100-SXM4-80GB", count = 4 }]      # g0 … g3; or `uuids = ["GPU-…", …]`; or kind = "cpu"
    fabric = { kind = "nvlink", gb_s = 300 }                  # joins all devices of the node

    [[fabrics]]                    # joins all devices of these nodes, or the `devices` it names
    name = "b"
    kind = "network"
    gb_s = 25
    nodes = ["b1", "b2"]

    [[links]]                      # instead of a fabric: pairs as they were measured, each from both ends
    from = "b1/g0"
    to = ["b1/g1"]
    kind = "nvlink"
    gb_s = 300

    [[reservations]]
    tenant = "batch"
    devices = ["b1/g3"]

Every fault is one line that names the file, the field, the value and what would be accepted. It opens no file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flexpipe.events.fleet import Fabric
from flexpipe.fragments.declared import FleetSpec, NodeSpec
from flexpipe.fragments.links import Link, fabrics_of, require_symmetry
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.fleet import Device, DeviceRef, LinkKind
from flexpipe.model.names import DeviceId, Name, in_words
from flexpipe.performance.devices import DEVICES

LARGEST_FLEET: Final = 4096
"""Devices of one file. A larger number is a slip of the pen, and would be held in memory several times over."""

KNOWN: Final[Mapping[str, int]] = {name: facts.memory_bytes for name, facts in DEVICES.items()}
"""Bytes of memory by GPU model."""

GB: Final = 1_000_000_000

Positive = Annotated[float, Field(gt=0, le=1e6)]
DeviceName = Annotated[str, Field(pattern=r"^[^/]+/[^/]+$", description="node/device")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class _Devices(_Table):
    kind: Literal["emulated", "cuda", "cpu"] = "emulated"
    model: str | None = None
    count: Annotated[int, Field(ge=1, le=64)] | None = None
    uuids: Annotated[list[DeviceId], Field(min_length=1)] | None = None
    memory_gb: Positive | None = None
    cores: list[Annotated[int, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def _is_plain(self) -> _Devices:
        if self.count is not None and self.uuids is not None:
            raise ValueError("count and uuids exclude each other; keep one of them")
        if self.kind == "cpu" and self.model not in (None, "cpu"):
            raise ValueError("a CPU slot has no GPU model; remove `model`")
        if self.kind != "cpu" and self.model is None:
            raise ValueError("name the GPU model, as in model = 'L40S'")
        if self.kind != "cpu" and self.cores is not None:
            raise ValueError("cores are for CPU slots; remove `cores`")
        if self.cores is not None and len(self.cores) != self.size:
            raise ValueError(f"cores must name one core a slot, that is {self.size}")
        return self

    @property
    def size(self) -> int:
        return len(self.uuids) if self.uuids is not None else self.count or 1


class _NodeFabric(_Table):
    kind: Annotated[LinkKind, Field(strict=False)]
    gb_s: Positive


class _Node(_Table):
    name: Name | None = None
    names: Annotated[list[Name], Field(min_length=1)] | None = None
    rack: Annotated[str, Field(max_length=63)] = ""
    address: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    devices: Annotated[list[_Devices], Field(min_length=1)]
    fabric: _NodeFabric | None = None

    @model_validator(mode="after")
    def _has_a_name(self) -> _Node:
        if (self.name is None) == (self.names is None):
            raise ValueError("give `name`, or `names` for several equal nodes")
        return self

    @property
    def every_name(self) -> list[str]:
        return self.names if self.names is not None else [self.name or ""]


class _Fabric(_Table):
    name: Name
    kind: Annotated[LinkKind, Field(strict=False)]
    gb_s: Positive
    nodes: Annotated[list[Name], Field(min_length=1)] | None = None
    devices: Annotated[list[DeviceName], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _joins_something(self) -> _Fabric:
        if (self.nodes is None) == (self.devices is None):
            raise ValueError("give `nodes` (all of their devices) or `devices`")
        return self


class _Link(_Table):
    from_: Annotated[DeviceName, Field(alias="from")]
    to: Annotated[list[DeviceName], Field(min_length=1)]
    kind: Annotated[LinkKind, Field(strict=False)]
    gb_s: Positive


class _Reservation(_Table):
    tenant: Annotated[str, Field(min_length=1, max_length=100)]
    devices: Annotated[list[DeviceName], Field(min_length=1)]


class _File(_Table):
    name: Name
    nodes: Annotated[list[_Node], Field(min_length=1)]
    fabrics: list[_Fabric] = []
    links: list[_Link] = []
    reservations: list[_Reservation] = []


def read_fleet(text: str, where: str, known: Mapping[str, int] = KNOWN) -> FleetSpec:
    """The fleet that a file's text declares. `where` names it in errors; `known` gives bytes of memory by GPU model.

    Raises InvalidInput with one line.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(where, text, f"not TOML: {error}") from error
    try:
        file = _File.model_validate(table)
    except ValidationError as error:
        raise _first_fault(where, error) from error
    return _Reading(file, where, known).fleet()


class _Reading:
    """One file, checked as a whole."""

    def __init__(self, file: _File, where: str, known: Mapping[str, int]) -> None:
        self._file = file
        self._where = where
        self._known = known

    def fleet(self) -> FleetSpec:
        devices = self._devices()
        fabrics = self._fabrics(devices)
        tenants = self._tenants(devices)
        nodes = [
            NodeSpec(
                node=name,
                rack=node.rack,
                address=node.address,
                devices=tuple(
                    device.model_copy(update={"tenant": tenants.get(f"{name}/{device.device}")})
                    for device in devices[name]
                ),
                fabrics=tuple(fabrics.get(name, ())),
            )
            for node in self._file.nodes
            for name in node.every_name
        ]
        return FleetSpec(
            name=self._file.name, nodes=tuple(sorted(nodes, key=lambda node: node.node))
        )

    # -- devices --------------------------------------------------------------------------------

    def _devices(self) -> dict[str, list[Device]]:
        """Devices by node, in declared order."""
        found: dict[str, list[Device]] = {}
        seen: dict[str, str] = {}
        for index, node in enumerate(self._file.nodes):
            if node.names is not None and any(each.uuids is not None for each in node.devices):
                raise self._fault(
                    f"nodes.{index}.names", node.names, "a UUID is of one node; give each its table"
                )
            for name in node.every_name:
                if name in found:
                    raise self._fault(f"nodes.{index}", name, "this node is declared twice")
                found[name] = list(self._of_node(index, node))
                for device in found[name]:
                    self._once(name, device, node, seen)
        total = sum(map(len, found.values()))
        if total > LARGEST_FLEET:
            raise self._fault("nodes", total, f"at most {LARGEST_FLEET} devices in one file")
        return found

    def _of_node(self, index: int, node: _Node) -> Iterator[Device]:
        numbers = {"g": 0, "cpu": 0}
        for place, devices in enumerate(node.devices):
            model = "cpu" if devices.kind == "cpu" else devices.model or ""
            field = f"nodes.{index}.devices.{place}"
            memory = self._memory_bytes(f"{field}.model", model, devices)
            stem = "cpu" if model == "cpu" else "g"
            for slot in range(devices.size):
                if devices.uuids is not None:
                    id_ = devices.uuids[slot]
                else:
                    id_ = f"{stem}{numbers[stem]}"
                    numbers[stem] += 1
                core = devices.cores[slot] if devices.cores is not None else None
                yield Device(
                    device=id_, kind=devices.kind, memory_bytes=memory, core=core, model=model
                )

    def _memory_bytes(self, field: str, model: str, devices: _Devices) -> int:
        if model not in self._known and model != "cpu":
            fix = "unknown GPU model; use one of " + ", ".join(sorted(self._known))
            raise self._fault(field, model, fix)
        if devices.memory_gb is not None:
            return max(1, int(devices.memory_gb * GB))
        if model not in self._known:
            raise self._fault(field, model, "say how much memory a slot has, as in memory_gb = 8")
        return self._known[model]

    def _once(self, node: str, device: Device, declared: _Node, seen: dict[str, str]) -> None:
        """Numbered devices and CPU slots are unique within their node, UUIDs of GPUs everywhere."""
        uuids = {uuid for each in declared.devices for uuid in each.uuids or ()}
        is_uuid = device.device in uuids and device.model != "cpu"
        key = device.device if is_uuid else f"{node}/{device.device}"
        for taken in (key, f"{node}/{device.device}"):
            if taken in seen:
                fix = f"duplicate: {seen[taken]} has it already; each device has an id of its own"
                raise self._fault(f"node {node}: device", device.device, fix)
        seen[key] = seen[f"{node}/{device.device}"] = f"node {node}"

    # -- what joins them ------------------------------------------------------------------------

    def _fabrics(self, devices: Mapping[str, list[Device]]) -> dict[str, list[Fabric]]:
        found: dict[str, list[Fabric]] = {}
        names: set[str] = set()
        for node in self._file.nodes:
            for name in node.every_name:
                if node.fabric is not None:
                    names.add(name)
                    every = tuple(device.device for device in devices[name])
                    fabric = Fabric(
                        name=name, kind=node.fabric.kind, gb_s=node.fabric.gb_s, devices=every
                    )
                    found.setdefault(name, []).append(fabric)
        for index, declared in enumerate(self._file.fabrics):
            if declared.name in names:
                fix = "another fabric has this name; a node's own is named after the node"
                raise self._fault(f"fabrics.{index}.name", declared.name, fix)
            names.add(declared.name)
            for node_name, ids in self._members(index, declared, devices).items():
                fabric = Fabric(
                    name=declared.name, kind=declared.kind, gb_s=declared.gb_s, devices=tuple(ids)
                )
                found.setdefault(node_name, []).append(fabric)
        for node_name, fabric in fabrics_of(self._links(devices), taken=names):
            found.setdefault(node_name, []).append(fabric)
        return found

    def _members(
        self, index: int, declared: _Fabric, devices: Mapping[str, list[Device]]
    ) -> dict[str, list[str]]:
        members: dict[str, list[str]] = {}
        for node in declared.nodes or ():
            if node not in devices:
                raise self._fault(f"fabrics.{index}.nodes", node, "no such node in this file")
            if node in members:
                raise self._fault(f"fabrics.{index}.nodes", node, "named twice; name it once")
            members[node] = [device.device for device in devices[node]]
        for text in declared.devices or ():
            ref = self._ref(f"fabrics.{index}.devices", text, devices)
            if ref.device in members.setdefault(ref.node, []):
                raise self._fault(f"fabrics.{index}.devices", text, "named twice; name it once")
            members[ref.node].append(ref.device)
        return members

    def _links(self, devices: Mapping[str, list[Device]]) -> list[Link]:
        links: dict[tuple[DeviceRef, DeviceRef], Link] = {}
        for index, declared in enumerate(self._file.links):
            one = self._ref(f"links.{index}.from", declared.from_, devices)
            for text in declared.to:
                other = self._ref(f"links.{index}.to", text, devices)
                if other == one:
                    raise self._fault(f"links.{index}.to", text, "a device has no link to itself")
                if (one, other) in links:
                    raise self._fault(f"links.{index}", f"{one} → {other}", "declared twice")
                links[one, other] = Link(one, other, declared.kind, declared.gb_s)
        require_symmetry(links, self._where)
        return list(links.values())

    def _tenants(self, devices: Mapping[str, list[Device]]) -> dict[str, str]:
        tenants: dict[str, str] = {}
        for index, declared in enumerate(self._file.reservations):
            for text in declared.devices:
                field = f"reservations.{index}.devices"
                self._ref(field, text, devices)
                if text in tenants:
                    fix = f"{tenants[text]!r} has reserved it already; a device has one tenant"
                    raise self._fault(field, text, fix)
                tenants[text] = declared.tenant
        return tenants

    def _ref(self, field: str, text: str, devices: Mapping[str, list[Device]]) -> DeviceRef:
        node, _, device = text.partition("/")
        if node not in devices:
            raise self._fault(field, text, "no such node in this file")
        if all(each.device != device for each in devices[node]):
            has = ", ".join(each.device for each in devices[node][:8])
            raise self._fault(field, text, f"node {node} has no such device; it has {has}")
        return DeviceRef(node=node, device=device)

    def _fault(self, field: str, value: object, fix: str) -> InvalidInput:
        return InvalidInput(f"{self._where}: {field}", value, fix)


def _first_fault(where: str, error: ValidationError) -> InvalidInput:
    fault = error.errors()[0]
    path = ".".join(str(part) for part in fault["loc"])
    field = f"{where}: {path}" if path else where
    match fault["type"]:
        case "extra_forbidden":
            return InvalidInput(
                field, fault["input"], "unknown field; remove it or correct its name"
            )
        case "missing":
            return InvalidInput(field, None, "this field is required")
        case "string_pattern_mismatch":
            return InvalidInput(field, fault["input"], in_words(fault["ctx"]["pattern"]))
        case _:
            return InvalidInput(field, fault["input"], fault["msg"].removeprefix("Value error, "))
