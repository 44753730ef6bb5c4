"""Reads what others told: samples onto pictures, bucket values into nodes, hosts and plans. Pure functions.

Called by the monitor's machine. What cannot be read is as if it were not there: a bucket's reader must not fall over a
value that a later version wrote.
"""

from __future__ import annotations

from flexpipe.events.fleet import NodeSampled
from flexpipe.fragments.memory import Picture
from flexpipe.model.fleet import Host, Node
from flexpipe.model.route import RouteEntry


def with_sample(picture: Picture | None, sample: NodeSampled) -> tuple[Picture | None, bool]:
    """The picture with a sample put in, and whether nothing was missed before it.

    A full sample is the whole truth. Of a delta the devices are true too, even behind a gap; only then more may have
    changed. A delta that is older than the picture, or that comes before any full sample, tells nothing.
    """
    if sample.full:
        return _of(sample), True
    if picture is None:
        return None, False
    if sample.counter <= picture.counter:
        return picture, sample.counter == picture.counter
    told = {device.device: device for device in sample.devices}
    known = {device.device for device in picture.devices}
    follows = sample.counter == picture.counter + 1 and known.issuperset(told)
    devices = tuple(told.get(device.device, device) for device in picture.devices)
    counter = sample.counter if follows else picture.counter
    return _of(sample).model_copy(update={"devices": devices, "counter": counter}), follows


def node_of(value: str | None) -> Node | None:
    """A node of the bucket `fleet`."""
    try:
        return None if value is None else Node.model_validate_json(value)
    except ValueError:
        return None


def host_of(value: str | None) -> Host | None:
    """A host of the bucket `hosts`."""
    try:
        return None if value is None else Host.model_validate_json(value)
    except ValueError:
        return None


def plans_of(value: str | None) -> dict[str, tuple[str, ...]]:
    """Plan → nodes with ranks, of a route entry."""
    try:
        entry = None if value is None else RouteEntry.model_validate_json(value)
    except ValueError:
        return {}
    return {} if entry is None else {routed.plan.id: routed.plan.nodes for routed in entry.plans}


def _of(sample: NodeSampled) -> Picture:
    return Picture(
        counter=sample.counter, devices=sample.devices, fabrics=sample.fabrics, rack=sample.rack
    )
