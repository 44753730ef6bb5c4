"""The ground that plans are laid on: which blocks are free for a deployment, and which of them are alike.

Called by `proposal` once a deployment and pass. Blocks that are alike (one model, class, size, memory and state of
links) are of one `Kind`, so that dozens of blocks are a handful of choices. Devices are bits of whole numbers here:
whether blocks overlap is asked thousands of times in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import Block, Device, DeviceRef, Fleet, LinkKind
from flexpipe.model.outlook import Rejected
from flexpipe.model.shift import DeviceReservations
from flexpipe.performance.devices import DeviceFacts, device_facts
from flexpipe.planning.spots import Kind, Spot, Spots

Held = Mapping[DeviceRef, DeviceReservations]
Devices = Mapping[DeviceRef, Device]


@dataclass(frozen=True)
class Ground:
    """Free blocks by kind, kinds strongest first; spots in the order in which they are to be taken."""

    spots: Spots
    free: int  # devices on which a plan of this deployment may be started
    obstacles: tuple[Rejected, ...]  # what is not free or no ground, and why


def survey(
    deployment: Deployment, fleet: Fleet, held: Held, avoid: frozenset[DeviceRef] = frozenset()
) -> Ground:
    """What is free for this deployment. Blocks that touch `avoid` are taken last: somebody else needs them more."""
    devices = {
        DeviceRef(node=node.node, device=device.device): device
        for node in fleet.nodes
        for device in node.devices
    }
    closed = {
        ref: why
        for ref in sorted(devices)
        if (why := _why_closed(ref, devices[ref], deployment, fleet, held)) is not None
    }
    every = {block.id: block for block in fleet.blocks}
    free = {
        id_: block
        for id_, block in every.items()
        if all(ref in devices and ref not in closed for ref in block.devices)
    }
    usable = {id_: block for id_, block in free.items() if _why_unusable(block) is None}
    return Ground(
        spots=_spots(usable, every, devices, avoid),
        free=len({ref for block in free.values() for ref in block.devices}),
        obstacles=(*_taken(closed, devices, free), *_unusable(free.values())),
    )


def _spots(
    usable: Mapping[str, Block],
    every: Mapping[str, Block],
    devices: Devices,
    avoid: frozenset[DeviceRef],
) -> Spots:
    bits = {ref: 1 << index for index, ref in enumerate(sorted(devices))}
    found: dict[Kind, list[tuple[tuple[bool, int, tuple[DeviceRef, ...]], Spot]]] = {}
    for block in usable.values():
        around = _around(block, every)
        spot = Spot(
            block=block,
            mask=sum(bits[ref] for ref in block.devices),
            home=around[-1].id,
            nodes=_nodes(block),
        )
        # Blocks with little free room around them first, so that large ones stay whole.
        room = max(each.size for each in around if each.id in usable)
        order = (not avoid.isdisjoint(block.devices), room, block.devices)
        found.setdefault(_kind_of(block, devices), []).append((order, spot))
    return {
        kind: tuple(spot for _, spot in sorted(found[kind], key=lambda each: each[0]))
        for kind in sorted(found)
    }


def _around(block: Block, every: Mapping[str, Block]) -> list[Block]:
    """The block and those around it that carry tensor parallelism, outermost last."""
    chain = [block]
    while (parent := every.get(chain[-1].parent or "")) is not None:
        if parent.kind is LinkKind.NETWORK or len(chain) > len(every):
            break
        chain.append(parent)
    return chain


def _kind_of(block: Block, devices: Devices) -> Kind:
    mine = [devices[ref] for ref in block.devices]
    is_single = block.size == 1
    factor = min(device.link_factor for device in mine)
    return Kind(
        weakness=-device_facts(block.model).hbm_gb_s,
        model=block.model,
        link="" if is_single else str(block.kind),
        size=block.size,
        span=len(_nodes(block)),
        gb_s=0.0 if is_single else float(round(block.gb_s / factor)),
        memory_bytes=min(device.memory_bytes for device in mine),
        # Measured factors differ in their last digits; blocks within a tenth of each other are alike.
        link_factor=1.0 if is_single else round(factor, 1),
    )


def _nodes(block: Block) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ref.node for ref in block.devices))


# -- why not ------------------------------------------------------------------------------------


def _why_closed(
    ref: DeviceRef, device: Device, deployment: Deployment, fleet: Fleet, held: Held
) -> str | None:
    """Why no plan of this deployment may be started on a device; None where one may."""
    form = deployment.engine.form
    if device.kind != form:
        return f"of kind {device.kind}, and engine.form is {form}"
    if fleet.closed(ref) is not None:
        return device.closed or (device.state if device.state != "present" else "its node is lost")
    if ref in held and held[ref].held:
        owners = sorted({reservation.deployment for reservation in held[ref].held})
        return "held by " + " and ".join(owners)
    return None


def _why_unusable(block: Block) -> str | None:
    """Why no stage can lie on a free block; None where one can."""
    if not block.carries_tp(block.size):
        return f"class: {block.kind} does not carry tensor parallelism over {block.size} devices"
    if _facts(block.model) is None:
        return f"model: {block.model} is not in the table of devices"
    counts = [sum(ref.node == node for ref in block.devices) for node in _nodes(block)]
    if len(set(counts)) > 1:
        spread = " + ".join(map(str, counts))
        return f"nodes: an engine starts equally many ranks on each node, and these are {spread}"
    return None


def _unusable(blocks: Iterable[Block]) -> list[Rejected]:
    return [
        Rejected(what=f"tp{block.size} on {block.id}", reason=why)
        for block in blocks
        if (why := _why_unusable(block)) is not None
    ]


def _taken(
    closed: Mapping[DeviceRef, str], devices: Devices, free: Mapping[str, Block]
) -> list[Rejected]:
    """One line a node and reason; devices that are open and in no free block are named too."""
    covered = {ref for block in free.values() for ref in block.devices}
    apart = dict.fromkeys(sorted(set(devices) - set(closed) - covered), "in no block")
    counts: dict[tuple[str, str], int] = {}
    for ref, why in sorted({**closed, **apart}.items()):
        counts[ref.node, why] = counts.get((ref.node, why), 0) + 1
    return [
        Rejected(what=f"{count} device{'' if count == 1 else 's'} of {node}", reason=why)
        for (node, why), count in sorted(counts.items())
    ]


def _facts(model: str) -> DeviceFacts | None:
    try:
        return device_facts(model)
    except InvalidInput:
        return None
