"""What happens to an emulated fleet, by command: to whom it is told, and whether the fleet shows it.

Called by the commands of `flexpipe fleet`. The agent is told what its node is to look like; the worker, where devices
are taken or given back, ends what runs there or may place on them again. It waits for the monitor's word and never for
more than a few seconds.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flexpipe.bus.connection import Bus
from flexpipe.bus.hearing import Hearing
from flexpipe.cli import looking, ordering
from flexpipe.events.fleet import AlterNode, FleetChanged
from flexpipe.events.outgoing import publish
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Delivered
from flexpipe.model.fleet import Device, DeviceRef, Fleet, Node
from flexpipe.model.names import DeviceId

SHOWN_LIMIT_S = 5.0
"""A dead node is noticed after 1.75 s, everything else within half a second; after this nobody is there to notice."""
UNDONE_LIMIT_S = 1.0
"""What is declared is not known here: a device may keep a tenant or a slow link because its fleet file says so."""
KNOWN_SHOWN = 12
"""Names in a message about a name that is not known: enough to see how they are written."""

Parts = Mapping[str, tuple[DeviceId, ...]]
"""Node → its devices that are meant; none: the whole node."""


class Alteration(Frozen):
    """What is to happen; the fields of `AlterNode` without its node."""

    change: Literal["preempt", "notice", "fail", "degrade", "reserve", "restore"]
    leaves_in_s: float | None = None
    factor: float | None = None
    tenant: str | None = None


class Altered(Frozen):
    """What came of it."""

    change: str
    devices: tuple[str, ...]
    changes: tuple[FleetChanged, ...]  # in which the fleet showed it; none: it was so already
    revision: int


def parts_of(targets: Sequence[str], fleet: Fleet) -> dict[str, tuple[DeviceId, ...]]:
    """What is meant by names of nodes, devices (`node/device`) and blocks. Raises InvalidInput.

    A node named as a whole takes in its devices, however else they are named.
    """
    parts: dict[str, set[DeviceId]] = {}
    whole: set[str] = set()
    for target in targets:
        refs = _refs_of(target, fleet)
        if refs is None:
            whole.add(target)
        for ref in refs or ():
            parts.setdefault(ref.node, set()).add(ref.device)
    named = {node: tuple(sorted(parts[node])) for node in parts if node not in whole}
    every: dict[str, tuple[DeviceId, ...]] = {**named, **dict.fromkeys(whole, ())}
    return {node: every[node] for node in sorted(every)}


def _refs_of(target: str, fleet: Fleet) -> tuple[DeviceRef, ...] | None:
    """Devices of one target; None: the node of that name, whole."""
    if fleet.node(target) is not None:
        return None
    block = next((block for block in fleet.blocks if block.id == target), None)
    if block is not None:
        return block.devices
    name, slash, device = target.partition("/")
    node = fleet.node(name)
    if node is None:
        blocks = [block.id for block in fleet.blocks if block.parent is None]
        fix = f"no such node, node/device or block; there are: {_some(blocks, fleet)}"
        raise InvalidInput("target", target, fix)
    known = sorted(each.device for each in node.devices)
    if not slash or device not in known:
        raise InvalidInput("target", target, f"{name} has {', '.join(known[:KNOWN_SHOWN])}")
    return (DeviceRef(node=name, device=device),)


def _some(blocks: Sequence[str], fleet: Fleet) -> str:
    nodes = [node.node for node in fleet.nodes]
    names = [*nodes[:KNOWN_SHOWN], *blocks[:KNOWN_SHOWN]]
    return ", ".join(names) or "none yet"


def refs_of(parts: Parts, fleet: Fleet) -> tuple[DeviceRef, ...]:
    """Every device that is meant, sorted."""
    found = (
        DeviceRef(node=node.node, device=device.device)
        for node in fleet.nodes
        if node.node in parts
        for device in node.devices
        if not parts[node.node] or device.device in parts[node.node]
    )
    return tuple(sorted(found))


def unshown(wanted: Alteration, fleet: Fleet, refs: Sequence[DeviceRef]) -> tuple[str, ...]:
    """Nodes on which the fleet does not show it yet, of some device; sorted."""
    missing = set()
    for ref in refs:
        node = fleet.node(ref.node)
        devices = () if node is None else node.devices
        device = next((each for each in devices if each.device == ref.device), None)
        if node is None or device is None or not _shows(wanted, node, device):
            missing.add(ref.node)
    return tuple(sorted(missing))


def _shows(wanted: Alteration, node: Node, device: Device) -> bool:
    match wanted.change:
        case "preempt":
            return device.state == "preempted" or node.state == "lost"
        case "fail":
            return device.state == "failed" or node.state != "observed"
        case "notice":
            return device.leaves_at_s is not None or device.state == "preempted"
        case "degrade":
            return wanted.factor is not None and abs(device.link_factor - wanted.factor) < 1e-6
        case "reserve":
            return device.tenant == wanted.tenant
        case "restore":
            back = device.state == "present" and device.leaves_at_s is None
            return back and node.state == "observed"


async def alter(
    bus: Bus,
    targets: Sequence[str],
    wanted: Alteration,
    tell: Callable[[FleetChanged], None],
) -> Altered:
    """Let it happen, and wait until the fleet shows it.

    Raises InvalidInput where a target is not known, Unavailable where the fleet does not show it within the limit.
    """
    fleet = await looking.read_fleet(bus)
    parts = parts_of(targets, fleet)
    refs = refs_of(parts, fleet)
    told: list[FleetChanged] = []

    def hear(changed: FleetChanged) -> None:
        if any(change.device in refs for change in changed.changes):
            told.append(changed)
            tell(changed)

    async with bus.listen((Hearing(FleetChanged),)) as deliveries:
        await _send(bus, parts, refs, wanted)
        log = Log(bus, deliveries, refs, hear)
        if unshown(wanted, fleet, refs):
            await _until_shown(log, wanted, refs)
            fleet = await looking.read_fleet(bus)
        if wanted.change == "restore" and not _is_untouched(fleet, refs):
            with contextlib.suppress(Unavailable):
                done = log.until(lambda now: _is_untouched(now, refs))
                await ordering.within(done, UNDONE_LIMIT_S, "declared so")
    return Altered(
        change=wanted.change,
        devices=tuple(map(str, refs)),
        changes=tuple(told),
        revision=(await looking.read_fleet(bus)).revision,
    )


@dataclass(frozen=True)
class Log:
    """What the monitor says, beside what it wrote down."""

    bus: Bus
    deliveries: AsyncIterator[Delivered]
    refs: Sequence[DeviceRef]
    hear: Callable[[FleetChanged], None]

    async def until(self, holds: Callable[[Fleet], bool]) -> None:
        """Read on until the fleet is so and the log has told it: the bucket is ahead of the log."""
        nodes = {ref.node for ref in self.refs}
        async for delivered in self.deliveries:
            changed = FleetChanged.model_validate_json(delivered.message)
            self.hear(changed)
            fleet = await looking.read_fleet(self.bus)
            newest = max((node.revision for node in fleet.nodes if node.node in nodes), default=0)
            if holds(fleet) and changed.revision >= newest:
                return
        raise Unavailable("the event log ended")


async def _until_shown(log: Log, wanted: Alteration, refs: Sequence[DeviceRef]) -> None:
    shown = log.until(lambda fleet: not unshown(wanted, fleet, refs))
    try:
        await ordering.within(shown, SHOWN_LIMIT_S, "the fleet does not show it")
    except Unavailable as error:
        missing = unshown(wanted, await looking.read_fleet(log.bus), refs)
        if missing:
            where = ", ".join(missing)
            raise Unavailable(
                f"no agent answered for {where}: after {SHOWN_LIMIT_S:g} s {error}; "
                f"are the agent of {where} and the monitor running?"
            ) from error


def _is_untouched(fleet: Fleet, refs: Sequence[DeviceRef]) -> bool:
    """Whether no device has a tenant or slow links."""
    devices = (fleet.device(ref) for ref in refs)
    return all(each is None or (each.tenant is None and each.link_factor == 1) for each in devices)


async def _send(bus: Bus, parts: Parts, refs: Sequence[DeviceRef], wanted: Alteration) -> None:
    cause = uuid.uuid4().hex
    for node, devices in parts.items():
        order = AlterNode(node=node, devices=devices, **wanted.model_dump())
        await bus.publish(publish(order, cause))
    if wanted.change not in ("preempt", "fail", "restore"):
        return
    # Where no worker is known nobody would take the word off the queue, and a later worker would find it stale.
    hosts = {host.node for host in await looking.read_hosts(bus)}
    for ref in refs:
        if ref.node in hosts:
            is_back = wanted.change == "restore"
            await ordering.set_device(bus, ref, present=is_back, at_once=not is_back)
