"""The words people type for gears, and what they mean on a fleet.

    gear  = share { "+" share }          tp1@node-a/cpu0 + pp2@node-b/cpu0,node-b/cpu1
    share = [ weight "*" ] shape [ "(" layers { "," layers } ")" ] [ "@" device { "," device } ]
    shape = "tp" n | "pp" n | "tp" n "pp" n

Devices come in global rank order, as `node/device` or, where only one node has a device of that name, `device`.
Without devices whole free blocks of exactly the width are taken: see `choosing`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from flexpipe.gears.choosing import Wish, choose_devices
from flexpipe.gears.cutting import cut_layers
from flexpipe.gears.layout import check_depth, check_width, facts_in
from flexpipe.gears.modes import mode_of
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.gear import EMPTY_GEAR, WEIGHT_LIMIT, Gear, PlanShare

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


def described(part: str, deployment: Deployment, fleet: Fleet) -> PlanShare | None:
    """What one share of a notation describes, whatever is closed or in use; None where the whole fleet is too small.

    To know a running plan by: it may lie where nothing new may be placed.
    """
    for ground in (fleet, fleet.unclosed):
        try:
            return resolve_gear(part, deployment, ground, {}).shares[0]
        except InvalidInput:
            continue
    return None


class Fit(Frozen):
    """What became of a notation: the gear, or the constraint that failed, in words."""

    gear: Gear | None = None
    reason: str | None = None


def fit_gear(
    text: str, deployment: Deployment, fleet: Fleet, held_bytes: Mapping[DeviceRef, int]
) -> Fit:
    """The same for those who go on without a gear: a deployment is applied, and a baseline kept, that fits nowhere now.

    Raises InvalidInput where the notation itself cannot be: unreadable, or against the model's own numbers.
    """
    check_notation(text, deployment)
    try:
        return Fit(gear=resolve_gear(text, deployment, fleet, held_bytes))
    except InvalidInput as fault:
        return Fit(reason=str(fault))


def check_notation(text: str, deployment: Deployment) -> None:
    """Raises InvalidInput where no fleet could make this gear: its words, or heads, KV heads and layers."""
    if text.strip() == "empty":
        return
    for part in text.replace(" ", "").split("+"):
        _read_share(part, deployment)


class _Words(Frozen):
    """One share as it was typed."""

    tp: int
    pp: int
    counts: tuple[int, ...] | None
    devices: str | None
    weight: float


def _read_share(part: str, deployment: Deployment) -> _Words:
    """The words of one share, checked against the model. Raises InvalidInput."""
    match = _SHARE.match(part)
    if match is None or (match["tp"] is None and match["pp"] is None):
        raise InvalidInput("gear", part, GRAMMAR)
    tp, pp = int(match["tp"] or 1), int(match["pp"] or 1)
    if tp < 1 or pp < 1:
        raise InvalidInput("gear", part, "widths and depths start at 1")
    counts = tuple(int(n) for n in match["layers"].split(",")) if match["layers"] else None
    facts = facts_in(deployment)
    check_width(facts, tp)
    check_depth(facts, pp)
    cut_layers(facts, pp, counts)
    weight = float(match["weight"] or 1.0)
    if not 0 < weight <= WEIGHT_LIMIT:
        raise InvalidInput("weight", weight, f"must be above 0 and at most {WEIGHT_LIMIT}")
    return _Words(tp=tp, pp=pp, counts=counts, devices=match["devices"], weight=weight)


def _resolve_share(
    part: str, deployment: Deployment, fleet: Fleet, taken: Mapping[DeviceRef, int]
) -> PlanShare:
    words = _read_share(part, deployment)
    tp, pp, counts = words.tp, words.pp, words.counts
    if words.devices is not None:
        devices = tuple(_device(name, fleet) for name in words.devices.split(","))
        if len(set(devices)) != len(devices):
            raise InvalidInput(
                "devices", words.devices, "a device appears twice; a plan uses each device once"
            )
    else:
        devices = choose_devices(Wish(deployment, tp, pp, counts, fleet, taken))
    _require_devices(devices, deployment, fleet)
    plan = mode_of(tp, pp).plan(deployment, devices, tp=tp, pp=pp, counts=counts, fleet=fleet)
    return PlanShare(plan=plan, weight=words.weight)


def _device(name: str, fleet: Fleet) -> DeviceRef:
    candidates = [ref for ref in fleet.refs() if name in (str(ref), ref.device)]
    if not candidates:
        known = ", ".join(map(str, fleet.refs())) or "none"
        raise InvalidInput("device", name, f"no such device in the fleet; there are: {known}")
    if len(candidates) > 1:
        raise InvalidInput("device", name, f"several nodes have it; write {candidates[0]}")
    return candidates[0]


def _require_devices(devices: Sequence[DeviceRef], deployment: Deployment, fleet: Fleet) -> None:
    """Every device is there, open for something new, and of the kind that the engine runs on."""
    form = deployment.engine.form
    for ref in devices:
        device = fleet.device(ref)
        kind = "gone" if device is None else device.kind
        if kind != form:
            raise InvalidInput(
                "device", str(ref), f"it is of kind {kind}, and engine.form is {form}"
            )
        if device is not None and device.closed is not None:
            raise InvalidInput(
                "device", str(ref), f"nothing new may be placed on it: {device.closed}"
            )
