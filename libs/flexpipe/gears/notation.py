"""The words people type for gears, and what they mean on a fleet.

    gear  = share { "+" share }          tp1@node-a/cpu0 + pp2@node-b/cpu0,node-b/cpu1
    share = [ weight "*" ] shape [ "(" layers { "," layers } ")" ] [ "@" device { "," device } ]
    shape = "tp" n | "pp" n | "tp" n "pp" n

Devices come in global rank order, as `node/device` or, where only one node has a device of that name, `device`.
Without devices the lowest free ones that fit are taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flexpipe.gears.layout import check_depth, check_width, cut_layers, facts_in, rank_bytes
from flexpipe.gears.modes import mode_of
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.gear import EMPTY_GEAR, WEIGHT_LIMIT, Gear, PlanShare
from flexpipe.model.plan import LayerRange, Plan

GRAMMAR = "write it like tp1, pp2@node-a/cpu0,node-a/cpu1 or pp2(20,10)"
_SHARE = re.compile(
    r"^(?:(?P<weight>\d+(?:\.\d+)?)\*)?(?:tp(?P<tp>\d+))?(?:pp(?P<pp>\d+))?"
    r"(?:\((?P<layers>\d+(?:,\d+)*)\))?(?:@(?P<devices>[\w./,-]+))?$"
)


def resolve_gear(
    text: str, deployment: Deployment, fleet: Fleet, held_bytes: Mapping[DeviceRef, int]
) -> Gear:
    """The gear that `text` names for this deployment on this fleet.

    `held_bytes`: bytes reserved on devices, by anybody. Raises InvalidInput naming what is wrong with which part.
    """
    if text.strip() == "empty":
        return EMPTY_GEAR
    shares: dict[str, PlanShare] = {}
    taken = dict(held_bytes)
    for part in text.replace(" ", "").split("+"):
        share = _resolve_share(part, deployment, fleet, taken)
        if share.plan.id in shares:
            raise InvalidInput("gear", text, "a plan appears twice; give it one weight instead")
        shares[share.plan.id] = share
        for ref, need in share.plan.claims():
            taken[ref] = taken.get(ref, 0) + need
    return Gear(shares=tuple(shares[id_] for id_ in sorted(shares)))


def _resolve_share(
    part: str, deployment: Deployment, fleet: Fleet, taken: Mapping[DeviceRef, int]
) -> PlanShare:
    match = _SHARE.match(part)
    if match is None or (match["tp"] is None and match["pp"] is None):
        raise InvalidInput("gear", part, GRAMMAR)
    tp, pp = int(match["tp"] or 1), int(match["pp"] or 1)
    if tp < 1 or pp < 1:
        raise InvalidInput("gear", part, "widths and depths start at 1")
    counts = [int(count) for count in match["layers"].split(",")] if match["layers"] else None
    facts = facts_in(deployment)
    check_width(facts, tp)
    check_depth(facts, pp)
    ranges = cut_layers(facts, pp, counts)
    if match["devices"]:
        devices = tuple(_device(name, fleet) for name in match["devices"].split(","))
        if len(set(devices)) != len(devices):
            raise InvalidInput(
                "devices", match["devices"], "a device appears twice; a plan uses each device once"
            )
    else:
        devices = _lowest_free(deployment, ranges, tp, fleet, taken)
    plan = mode_of(tp, pp).plan(deployment, devices, tp=tp, pp=pp, counts=counts)
    _require_devices(plan, deployment, fleet)
    weight = float(match["weight"] or 1.0)
    if not 0 < weight <= WEIGHT_LIMIT:
        raise InvalidInput("weight", weight, f"must be above 0 and at most {WEIGHT_LIMIT}")
    return PlanShare(plan=plan, weight=weight)


def _device(name: str, fleet: Fleet) -> DeviceRef:
    candidates = [ref for ref in fleet.refs() if name in (str(ref), ref.device)]
    if not candidates:
        known = ", ".join(map(str, fleet.refs())) or "none"
        raise InvalidInput("device", name, f"no such device in the fleet; there are: {known}")
    if len(candidates) > 1:
        raise InvalidInput("device", name, f"several nodes have it; write {candidates[0]}")
    return candidates[0]


def _require_devices(plan: Plan, deployment: Deployment, fleet: Fleet) -> None:
    """Every device is of the kind that the engine runs on, and large enough."""
    form = deployment.engine.form
    for ref, need in plan.claims():
        device = fleet.device(ref)
        kind = "gone" if device is None else device.kind
        if kind != form:
            raise InvalidInput(
                "device", str(ref), f"it is of kind {kind}, and engine.form is {form}"
            )
        has = 0 if device is None else device.memory_bytes
        if has < need:
            raise InvalidInput(
                "device",
                str(ref),
                f"a rank needs {need / 1e9:.2f} GB and the device has {has / 1e9:.2f} GB",
            )


def _lowest_free(
    deployment: Deployment,
    ranges: tuple[LayerRange, ...],
    tp: int,
    fleet: Fleet,
    taken: Mapping[DeviceRef, int],
) -> tuple[DeviceRef, ...]:
    """Stage by stage, the first node with `tp` devices that have room. Names what is missing otherwise."""
    facts = facts_in(deployment)
    chosen: list[DeviceRef] = []
    for stage, layers in enumerate(ranges):
        need = rank_bytes(deployment, facts, layers, tp)
        groups = [_room(fleet, node.node, need, taken, chosen) for node in fleet.nodes]
        group = next((refs[:tp] for refs in groups if len(refs) >= tp), None)
        if group is None:
            largest = max((len(refs) for refs in groups), default=0)
            raise InvalidInput(
                "gear",
                f"tp{tp}pp{len(ranges)}",
                f"stage {stage} needs {tp} devices of one node with {need / 1e9:.2f} GB free each; "
                f"free in all {sum(map(len, groups))}, most on one node {largest}",
            )
        chosen.extend(group)
    return tuple(chosen)


def _room(
    fleet: Fleet, node: str, need: int, taken: Mapping[DeviceRef, int], chosen: list[DeviceRef]
) -> list[DeviceRef]:
    free = []
    for ref in fleet.refs():
        device = fleet.device(ref)
        if device is None or ref.node != node or ref in chosen:
            continue
        if device.memory_bytes - taken.get(ref, 0) >= need:
            free.append(ref)
    return free
