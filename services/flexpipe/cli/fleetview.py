"""The fleet for people: its tree with who holds what, and its blocks with what is free of them.

Pure: values in, renderables or plain documents out. Called by the commands `fleet`, `status` and `watch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.fleet import TP_WIDTH_LIMIT, Block, Device, DeviceRef, Fleet, LinkKind, Node
from flexpipe.model.shift import DeviceReservations

NOTHING = "–"
NO_RACK = "no rack"


class Standing(Frozen):
    """How one device stands: one word for its state, and the rest in words."""

    word: str  # open, closed, preempted, failed, lost
    notes: tuple[str, ...] = ()

    @property
    def style(self) -> str:
        """Its colour."""
        return {"open": "green", "closed": "yellow"}.get(self.word, "red")

    @property
    def sentence(self) -> str:
        """Word and notes."""
        return f"{self.word}: {'; '.join(self.notes)}" if self.notes else self.word


class BlockRow(Frozen):
    """The largest block of one class somewhere: how much of it is free, and its largest part that is free as a whole.

    Blocks are carved from devices that are open, so all of its devices are.
    """

    block: Block
    free: int  # devices on which nothing is reserved
    largest_free: Block | None


def standing(node: Node, device: Device, now_s: float) -> Standing:
    """How a device stands at this moment; a notice in seconds from now."""
    notes: list[str] = []
    if device.state != "present":
        return Standing(word=device.state)
    if device.leaves_at_s is not None:
        notes.append(f"leaves in {max(0.0, device.leaves_at_s - now_s):.0f} s")
    if device.tenant is not None:
        notes.append(f"reserved by {device.tenant}")
    if device.link_factor < 1:
        notes.append(f"links at {device.link_factor:.0%} of nominal")
    if node.state == "lost":
        return Standing(word="lost", notes=tuple(notes))
    if device.closed is not None:
        if device.leaves_at_s is None and device.tenant is None:
            notes.insert(0, device.closed)
        return Standing(word="closed", notes=tuple(notes))
    return Standing(word="open", notes=tuple(notes))


def holders(held: Sequence[DeviceReservations]) -> dict[DeviceRef, DeviceReservations]:
    """Reservations by device, only where something is held."""
    return {each.device: each for each in held if each.held}


def block_rows(fleet: Fleet, held: Sequence[DeviceReservations]) -> tuple[BlockRow, ...]:
    """The largest blocks of each class, fastest class first, each with what is free of it.

    A block within one of another class (NVLink inside a node, network between nodes) has a row of its own.
    """
    free, blocks = _open(fleet) - set(holders(held)), fleet.blocks
    known = {block.id: block for block in blocks}
    parts: dict[str, list[Block]] = {}
    for block in blocks:  # largest first, then by id
        parts.setdefault(_head(block, known).id, []).append(block)
    rows = [
        BlockRow(
            block=known[head],
            free=sum(ref in free for ref in known[head].devices),
            largest_free=next((each for each in within if free.issuperset(each.devices)), None),
        )
        for head, within in parts.items()
    ]
    order = list(LinkKind)
    return tuple(sorted(rows, key=lambda row: (order.index(row.block.kind), row.block.id)))


def _head(block: Block, known: Mapping[str, Block]) -> Block:
    """The largest block of its class that a block is part of; ends also where parents go in a circle."""
    for _ in known:
        parent = known.get(block.parent or "")
        if parent is None or parent.kind is not block.kind:
            return block
        block = parent
    return block


def _open(fleet: Fleet) -> set[DeviceRef]:
    """Every device on which something new may be placed; in one pass, for fleets of thousands."""
    return {
        DeviceRef(node=node.node, device=device.device)
        for node in fleet.nodes
        if node.state != "lost"
        for device in node.devices
        if device.state == "present" and device.closed is None
    }


def fleet_line(fleet: Fleet, held: Sequence[DeviceReservations]) -> str:
    """The fleet in one sentence."""
    every = [(node.state, device.state) for node in fleet.nodes for device in node.devices]
    there = sum(node != "lost" and device == "present" for node, device in every)
    taken, opened = set(holders(held)), _open(fleet)
    return (
        f"fleet revision {fleet.revision}: {there} of {len(every)} devices there, "
        f"{len(opened)} open, {len(taken)} in use, {len(opened - taken)} free"
    )


def fleet_document(
    fleet: Fleet, held: Sequence[DeviceReservations]
) -> dict[str, int | Fleet | Sequence[Frozen]]:
    """The same for programs."""
    return {
        "revision": fleet.revision,
        "fleet": fleet,
        "reservations": list(held),
        "blocks": block_rows(fleet, held),
    }


def fleet_view(fleet: Fleet, held: Sequence[DeviceReservations], now_s: float) -> RenderableType:
    """Revision, tree of racks, nodes and devices, and the blocks."""
    if not fleet.nodes:
        return Text("no node is known: no monitor, or no agent and no worker, has spoken yet")
    return Group(
        Text(fleet_line(fleet, held), style="bold"),
        *_racks(fleet, held, now_s),
        blocks_table(block_rows(fleet, held)),
    )


def _racks(fleet: Fleet, held: Sequence[DeviceReservations], now_s: float) -> list[Tree]:
    taken = holders(held)
    trees = []
    for rack in sorted({node.rack for node in fleet.nodes}):
        tree = Tree(Text(f"rack {rack}" if rack else NO_RACK, style="bold"))
        for node in sorted(fleet.nodes, key=lambda each: each.node):
            if node.rack == rack:
                branch = tree.add(_node_text(node))
                for device in sorted(node.devices, key=lambda each: each.device):
                    ref = DeviceRef(node=node.node, device=device.device)
                    branch.add(_device_text(standing(node, device, now_s), device, taken.get(ref)))
        trees.append(tree)
    return trees


def _node_text(node: Node) -> Text:
    style = {"observed": "", "unobserved": "yellow"}.get(node.state, "red")
    text = Text.assemble((node.node, "bold"), "  ", (node.state, style))
    text.append(f"  {node.address}" if node.address else "  no worker", style="dim")
    return text


def _device_text(stands: Standing, device: Device, reserved: DeviceReservations | None) -> Text:
    text = Text.assemble(
        f"{device.device}  {device.model}  {device.memory_bytes / 1e9:.1f} GB  ",
        (stands.sentence, stands.style),
    )
    for one in () if reserved is None else reserved.held:
        text.append(f"  ← {one.deployment} {one.plan} {one.bytes / 1e9:.1f} GB", style="cyan")
    return text


def blocks_table(rows: Sequence[BlockRow]) -> RenderableType:
    """The largest blocks of each class, with their largest free sub-block."""
    if not rows:
        return Text("no blocks", style="yellow")
    table = Table(title="blocks", title_justify="left")
    table.add_column("class", no_wrap=True)
    table.add_column("block", overflow="fold")
    table.add_column("model", no_wrap=True)
    for column in ("GB/s", "TP ≤", "size", "free"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("largest free", overflow="fold")
    for row in rows:
        block, largest = row.block, row.largest_free
        table.add_row(
            block.kind,
            Text(block.id),
            block.model,
            f"{block.gb_s:g}",
            str(min(block.size, TP_WIDTH_LIMIT[block.kind])),
            str(block.size),
            str(row.free),
            Text(NOTHING if largest is None else f"{largest.id} ({largest.size})"),
        )
    return table
