"""Which devices a shape takes where none are named: whole free blocks of exactly its width.

Called by `notation`. The strongest class comes first; within a class blocks with little free room around them, so that
large ones stay whole; then the lowest id. Stages spread evenly over nodes, because that is what engines can be started
as. A fleet without blocks is taken node by node. What does not fit is refused with the constraint that failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexpipe.gears.cutting import cut_layers
from flexpipe.gears.fitting import may_claim, most_layers, rank_bytes
from flexpipe.gears.layout import facts_in
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import Block, DeviceRef, Fleet, LinkKind

STRENGTH: Final = (
    *(LinkKind.NVSWITCH, LinkKind.NVLINK, LinkKind.HOST, LinkKind.PCIE, LinkKind.NETWORK),
)
"""Classes, strongest first."""
NAMED_AT_MOST: Final = 4
"""Devices that an error names before it counts the rest: it must stay one line."""


@dataclass(frozen=True)
class Wish:
    """A shape looking for devices. `taken`: bytes held on devices, by anybody."""

    deployment: Deployment
    tp: int
    pp: int
    counts: Sequence[int] | None
    fleet: Fleet
    taken: Mapping[DeviceRef, int]

    @property
    def shape(self) -> str:
        """Its name, such as `tp4` or `tp2pp3`."""
        return f"tp{self.tp}" + (f"pp{self.pp}" if self.pp > 1 else "")

    @property
    def most_layers_a_stage(self) -> int:
        """Layers of its largest stage, cut as given or evenly."""
        return max(r.count for r in cut_layers(facts_in(self.deployment), self.pp, self.counts))

    @property
    def need_bytes(self) -> int:
        """What a rank of that stage needs."""
        return rank_bytes(
            self.deployment, facts_in(self.deployment), self.most_layers_a_stage, self.tp
        )

    def suits(self, ref: DeviceRef) -> bool:
        """Whether a device is there, open, and of the kind that the engine runs on."""
        device = self.fleet.device(ref)
        return (
            device is not None
            and device.closed is None
            and device.kind == self.deployment.engine.form
        )

    def layers_on(self, refs: Sequence[DeviceRef], *, empty: bool = False) -> int:
        """Layers that a stage over these devices holds in what is free of them (`empty`: as if nothing were held)."""
        devices = [device for ref in refs if (device := self.fleet.device(ref)) is not None]
        memory = min(device.memory_bytes for device in devices)
        held = 0 if empty else max(self.taken.get(ref, 0) for ref in refs)
        if self.deployment.engine.memory_fraction is not None:
            if memory - held < may_claim(self.deployment, memory):
                return 0
            held = 0
        return most_layers(self.deployment, facts_in(self.deployment), memory - held, self.tp)


def choose_devices(wish: Wish) -> tuple[DeviceRef, ...]:
    """Devices in global rank order. Raises InvalidInput with the constraint that failed and its numbers."""
    if not wish.fleet.blocks:
        return _node_by_node(wish)
    candidates = _candidates(wish)
    even = [
        block for block in candidates if wish.layers_on(block.devices) >= wish.most_layers_a_stage
    ]
    chosen = _pick(even, wish.pp)
    if chosen is None and wish.pp > 1 and wish.counts is None:
        # Stages of unequal devices: those with more memory may take what the others cannot.
        some = [block for block in candidates if wish.layers_on(block.devices) >= 1]
        chosen = _pick(some, wish.pp)
        layers = sum(wish.layers_on(block.devices) for block in chosen or ())
        if layers < facts_in(wish.deployment).layers:
            chosen = None
    if chosen is None:
        raise _refusal(wish, candidates, even)
    return tuple(ref for block in chosen for ref in block.devices)


def _candidates(wish: Wish) -> list[Block]:
    """Open blocks of the width that carry it, in the order in which they are to be taken."""
    blocks = {block.id: block for block in wish.fleet.blocks}
    free = {
        id_
        for id_, block in blocks.items()
        if all(wish.suits(ref) and not wish.taken.get(ref) for ref in block.devices)
    }

    def room(block: Block) -> int:
        """Devices of the largest free block around it."""
        largest, around = block.size, blocks.get(block.parent or "")
        while around is not None and around.id in free and around.kind is not LinkKind.NETWORK:
            largest, around = around.size, blocks.get(around.parent or "")
        return largest

    suitable = [
        block
        for block in blocks.values()
        if block.size == wish.tp
        and block.carries_tp(wish.tp)
        and all(wish.suits(ref) for ref in block.devices)
    ]
    return sorted(suitable, key=lambda b: (STRENGTH.index(b.kind), room(b), b.id))


def _pick(blocks: Sequence[Block], pp: int) -> list[Block] | None:
    """`pp` blocks apart from each other, equally many on each set of nodes; weaker classes only where needed."""
    for weakest in range(len(STRENGTH)):
        allowed = [block for block in blocks if STRENGTH.index(block.kind) <= weakest]
        for each in sorted((d for d in range(1, pp + 1) if pp % d == 0), reverse=True):
            chosen = _pick_evenly(allowed, pp, each)
            if chosen is not None:
                return chosen
    return None


def _pick_evenly(blocks: Sequence[Block], pp: int, each: int) -> list[Block] | None:
    """`pp` blocks, `each` on every set of nodes that is used."""
    by_nodes: dict[frozenset[str], list[Block]] = {}
    for block in blocks:
        group = by_nodes.setdefault(frozenset(ref.node for ref in block.devices), [])
        if not any(set(block.devices) & set(other.devices) for other in group):
            group.append(block)
    chosen: list[Block] = []
    used: set[str] = set()
    for nodes, group in by_nodes.items():
        if len(group) >= each and not nodes & used and len(chosen) < pp:
            chosen.extend(group[:each])
            used |= nodes
    return chosen if len(chosen) == pp else None


# -- what is said where nothing fits --------------------------------------------------------------


def _refusal(wish: Wish, candidates: Sequence[Block], even: Sequence[Block]) -> InvalidInput:
    """The first constraint that fails: class, number of blocks, memory, and then what others hold."""
    large = [
        block
        for block in candidates
        if wish.layers_on(block.devices, empty=True) >= wish.most_layers_a_stage
    ]
    if len(candidates) < wish.pp:
        reason = _class_reason(wish, candidates)
    elif len(large) < wish.pp:
        reason = _memory_reason(wish, candidates, large)
    else:
        reason = (
            f"free blocks: it takes {wish.pp} of {wish.tp}, equally many a node; "
            f"of the {len(large)} that carry it {len(even)} are free"
        ) + _held(wish, large)
    return InvalidInput("gear", wish.shape, reason + _closed(wish))


def _memory_reason(wish: Wish, candidates: Sequence[Block], large: Sequence[Block]) -> str:
    most = max(
        min(device.memory_bytes for ref in block.devices if (device := wish.fleet.device(ref)))
        for block in candidates
    )
    claim = may_claim(wish.deployment, most)
    share = f", of which {claim / 1e9:.1f} GB may be claimed" if claim < most else ""
    rest = f"; {len(large)} of the {wish.pp} it takes are large enough" if large else ""
    return (
        f"memory: a rank needs {wish.need_bytes / 1e9:.1f} GB, and the largest block of {wish.tp} has "
        f"{most / 1e9:.1f} GB a device{share}{rest}"
    )


def _class_reason(wish: Wish, candidates: Sequence[Block]) -> str:
    tp, blocks = wish.tp, f"{wish.pp} blocks" if wish.pp > 1 else "a block"
    reason = f"class: it needs {blocks} of {tp} whose class carries tp{tp}"
    if candidates:
        return f"{reason}, and there are {len(candidates)}"
    mine = [b for b in wish.fleet.blocks if all(wish.suits(ref) for ref in b.devices)]
    weak = [block for block in mine if block.size == tp]
    if weak:
        kinds = " and ".join(sorted({str(block.kind) for block in weak}))
        return f"{reason}; the {len(weak)} of that size are of class {kinds}, which does not"
    largest = max((block.size for block in mine if block.carries_tp(block.size)), default=0)
    return f"{reason}, and there is none; the largest that carries its own width has {largest}"


def _held(wish: Wish, blocks: Sequence[Block]) -> str:
    refs = sorted({ref for block in blocks for ref in block.devices if wish.taken.get(ref)})
    return f"; held: {_some([str(ref) for ref in refs])}" if refs else ""


def _closed(wish: Wish) -> str:
    shut = [
        f"{node.node}/{device.device} ({device.closed})"
        for node in wish.fleet.nodes
        for device in node.devices
        if device.closed is not None and device.kind == wish.deployment.engine.form
    ]
    return f"; closed: {_some(shut)}" if shut else ""


def _some(names: Sequence[str]) -> str:
    rest = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")


# -- fleets without blocks ------------------------------------------------------------------------


def _node_by_node(wish: Wish) -> tuple[DeviceRef, ...]:
    """Stage by stage, the first node with enough devices that have room. Names what is missing otherwise."""
    facts = facts_in(wish.deployment)
    chosen: list[DeviceRef] = []
    for stage, layers in enumerate(cut_layers(facts, wish.pp, wish.counts)):
        need = rank_bytes(wish.deployment, facts, layers.count, wish.tp)
        groups = [
            [ref for ref in _free_on(wish, node.node, need) if ref not in chosen]
            for node in wish.fleet.nodes
        ]
        group = next((refs[: wish.tp] for refs in groups if len(refs) >= wish.tp), None)
        if group is None:
            largest = max((len(refs) for refs in groups), default=0)
            raise InvalidInput(
                "gear",
                f"tp{wish.tp}pp{wish.pp}",
                f"stage {stage} needs {wish.tp} devices of one node with {need / 1e9:.2f} GB free each; "
                f"free in all {sum(map(len, groups))}, most on one node {largest}" + _closed(wish),
            )
        chosen.extend(group)
    return tuple(chosen)


def _free_on(wish: Wish, node: str, need: int) -> Iterator[DeviceRef]:
    for ref in wish.fleet.refs():
        device = wish.fleet.device(ref)
        if device is None or ref.node != node or device.closed is not None:
            continue
        claim = (
            max(need, may_claim(wish.deployment, device.memory_bytes)) if _by_share(wish) else need
        )
        if device.memory_bytes - wish.taken.get(ref, 0) >= claim:
            yield ref


def _by_share(wish: Wish) -> bool:
    return wish.deployment.engine.memory_fraction is not None
