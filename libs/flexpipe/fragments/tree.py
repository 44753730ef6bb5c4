"""Builds the fleet tree from what the monitor knows: devices with reasons, nodes with states, blocks. Pure functions.

Called by the monitor's machine. It decides nothing about silence and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from flexpipe.fragments.blocks import with_blocks
from flexpipe.fragments.memory import Seen
from flexpipe.model.fleet import Device, Node

DEFAULT_FIRST_PORT = 31_000
DEFAULT_PORT_BLOCKS = 64


def tree_of(seen: Iterable[Seen]) -> tuple[Node, ...]:
    """Every node of the fleet, by name, carved. `revision` is that of its last stored form."""
    every = sorted((each for each in seen if each.in_fleet), key=lambda each: each.node)
    fabrics = {each.node: each.picture.fabrics for each in every if each.picture is not None}
    return with_blocks([_node(each) for each in every], fabrics)


def _node(seen: Seen) -> Node:
    host = seen.host
    declared = _devices(seen)
    return Node(
        node=seen.node,
        address="" if host is None else host.address,
        first_port=DEFAULT_FIRST_PORT if host is None else host.first_port,
        port_blocks=DEFAULT_PORT_BLOCKS if host is None else host.port_blocks,
        devices=tuple(_with_reason(device, seen) for device in declared),
        rack=_rack(seen),
        state=seen.verdict,
        revision=0 if seen.stored is None else seen.stored.revision,
    )


def _devices(seen: Seen) -> tuple[Device, ...]:
    if seen.picture is not None and (seen.told or seen.stored is None):
        return seen.picture.devices
    return () if seen.stored is None else seen.stored.devices


def _rack(seen: Seen) -> str:
    if seen.picture is not None and (seen.told or seen.stored is None):
        return seen.picture.rack
    return "" if seen.stored is None else seen.stored.rack


def _with_reason(device: Device, seen: Seen) -> Device:
    return device.model_copy(update={"closed": _closed(device, seen)})


def _closed(device: Device, seen: Seen) -> str | None:
    """Why nothing new may be placed on a device: the first reason in the order of how much it says."""
    match seen.verdict:
        case "lost":
            return f"node {seen.node} is lost"
        case "unobserved":
            return f"nobody observes node {seen.node}"
        case _:
            pass
    if device.state != "present":
        return "it was preempted" if device.state == "preempted" else "it has failed"
    if device.leaves_at_s is not None:
        return "it is to be preempted"
    if device.tenant is not None:
        return f"reserved by {device.tenant}"
    if seen.host is None:
        return f"no worker of node {seen.node} is known"
    if seen.worker_silent:
        return f"the worker of node {seen.node} is silent"
    if device.device not in seen.host.devices:
        return "its worker cannot place anything on it"
    return None
