"""Fleets for tests of planning, costing and gears: carved, observed, every device open for new plans.

`twenty_seven` is the fleet of `ops/examples/fleets/twenty-seven.toml`; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from flexpipe.events.fleet import Fabric
from flexpipe.fragments.blocks import with_blocks
from flexpipe.fragments.declared import FleetSpec, NodeSpec
from flexpipe.model.fleet import Device, DeviceRef, Fleet, LinkKind, Node
from flexpipe.performance.devices import device_facts

GB: Final = 1_000_000_000

FIRST_PORT: Final = 31_000
PORTS_A_NODE: Final = 512


def fleet_of(spec: FleetSpec) -> Fleet:
    """A declared fleet as the monitor shows it when every agent and worker is up."""
    nodes = [
        Node(
            node=node.node,
            address=node.address,
            first_port=FIRST_PORT + index * PORTS_A_NODE,
            devices=tuple(
                device.model_copy(update={"closed": f"reserved by {device.tenant}"})
                if device.tenant
                else device
                for device in node.devices
            ),
            rack=node.rack,
            revision=1,
        )
        for index, node in enumerate(spec.nodes)
    ]
    return Fleet(nodes=with_blocks(nodes, {node.node: node.fabrics for node in spec.nodes}))


def twenty_seven() -> Fleet:
    """12 H100 in one NVSwitch domain `a`; 9 A100: `b1`, `b2` of four, `b3` alone; 6 L40S in pairs `c1`, `c2`, `c3`."""
    return fleet_of(twenty_seven_spec())


def twenty_seven_spec() -> FleetSpec:
    """The same as declared."""
    h100 = [
        _node(f"a{i}", "rack-a", "H100-SXM5-80GB", 4, [("a", LinkKind.NVSWITCH, 450.0)])
        for i in (1, 2, 3)
    ]
    over_b, over_c = ("b", LinkKind.NETWORK, 25.0), ("c", LinkKind.NETWORK, 50.0)
    a100 = [
        _node(name, "rack-b", "A100-SXM4-80GB", 4, [(name, LinkKind.NVLINK, 300.0), over_b])
        for name in ("b1", "b2")
    ]
    a100.append(_node("b3", "rack-b", "A100-SXM4-80GB", 1, [over_b]))
    l40s = [
        _node(name, "rack-c", "L40S", 2, [(name, LinkKind.PCIE, 32.0), over_c])
        for name in ("c1", "c2", "c3")
    ]
    return FleetSpec(name="twenty-seven", nodes=(*h100, *a100, *l40s))


def cpu_nodes(
    names: Iterable[str] = ("node-a", "node-b"), *, slots: int = 2, memory_bytes: int = 8 * GB
) -> Fleet:
    """Machines with CPU slots `cpu0`, `cpu1`, … each a block of its own class `host` named after its node."""
    nodes = []
    for name in names:
        devices = tuple(
            Device(device=f"cpu{slot}", kind="cpu", memory_bytes=memory_bytes, core=slot)
            for slot in range(slots)
        )
        fabric = Fabric(
            name=name, kind=LinkKind.HOST, gb_s=10.0, devices=tuple(d.device for d in devices)
        )
        nodes.append(NodeSpec(node=name, devices=devices, fabrics=(fabric,)))
    return fleet_of(
        FleetSpec(name="cpu-nodes", nodes=tuple(sorted(nodes, key=lambda each: each.node)))
    )


def without(fleet: Fleet, spec: FleetSpec, states: Mapping[DeviceRef, str | Device]) -> Fleet:
    """The fleet after some devices changed: to a state (`preempted`, `failed`) or to the device given; carved anew."""
    nodes = [
        node.model_copy(
            update={
                "devices": tuple(
                    _altered(device, states.get(DeviceRef(node=node.node, device=device.device)))
                    for device in node.devices
                )
            }
        )
        for node in fleet.nodes
    ]
    return Fleet(nodes=with_blocks(nodes, {node.node: node.fabrics for node in spec.nodes}))


def _altered(device: Device, change: str | Device | None) -> Device:
    match change:
        case None:
            return device
        case str():
            return device.model_copy(update={"state": change, "closed": f"it was {change}"})
        case Device():
            return change


def _node(
    name: str, rack: str, model: str, count: int, fabrics: Iterable[tuple[str, LinkKind, float]]
) -> NodeSpec:
    devices = tuple(
        Device(
            device=f"g{i}",
            kind="emulated",
            memory_bytes=device_facts(model).memory_bytes,
            model=model,
        )
        for i in range(count)
    )
    ids = tuple(device.device for device in devices)
    joined = tuple(Fabric(name=n, kind=kind, gb_s=gb_s, devices=ids) for n, kind, gb_s in fabrics)
    return NodeSpec(node=name, rack=rack, devices=devices, fabrics=joined)
