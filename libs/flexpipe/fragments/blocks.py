"""Carves what is there into blocks: buddy-like, along fabric and node lines. Called by the monitor and by test fleets.

A fabric whose devices take something new gives one root block a device model; roots of fast fabrics lie within those of
slow ones (NVLink pairs within a PCIe node within a network). A root is cut into sub-blocks of 1, 2, 4, … devices by
joining equals, in this order: the two halves of one aligned range of a node, then what is left on one node, then whole
nodes with whole nodes, then the rest. So 12 devices on three nodes give 12, 8 + 4, three 4s, six 2s and twelve 1s, and
the 8 that remains after a card of the second node was lost is the first with the third node. What comes back joins
again by itself, because every carving is a function of the devices alone. It never looks at plans or reservations:
whether a block is free is asked by those who place something.

Blocks of network class are not cut: nothing that needs a sub-block runs over them. They say what joins their devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from flexpipe.events.fleet import Fabric
from flexpipe.model.fleet import Block, Device, DeviceRef, LinkKind, Node

APART_BELOW: Final = 0.5
"""A device whose links give less than this share of nominal would slow each group it is in to half speed or worse:
every collective waits for its slowest member. It becomes a block of its own."""

LONE_GB_S: Final = 1.0
"""Nominal speed of a device that no fabric names. Nothing is known but that its node is on a network."""

_CLASS_ORDER: Final = (
    *(LinkKind.NVSWITCH, LinkKind.NVLINK, LinkKind.HOST, LinkKind.PCIE, LinkKind.NETWORK),
)


class _Place(NamedTuple):
    """Where a device sits in a domain: counted over all declared devices, and within its node."""

    position: int
    node: str
    local: int


class _Domain(NamedTuple):
    """A fabric over all nodes that name it, with places of every declared device of one model."""

    id: str
    kind: LinkKind
    gb_s: float
    places: dict[DeviceRef, _Place]
    node_sizes: dict[str, int]


class _Piece(NamedTuple):
    """A block in the making: its devices in order of their places. `id` where it is the root of a faster fabric."""

    devices: tuple[DeviceRef, ...]
    parts: tuple[_Piece, ...] = ()
    id: str | None = None


def carve(nodes: Iterable[Node], fabrics: Mapping[str, Sequence[Fabric]]) -> tuple[Block, ...]:
    """Blocks over all devices on which something new may be placed, largest first, then by id.

    `fabrics` are those of each node, by its name. `nodes` hold every declared device, so that ids stay the same while
    some are away.
    """
    every = sorted(nodes, key=lambda node: node.node)
    declared = {
        DeviceRef(node=node.node, device=device.device): device
        for node in every
        for device in node.devices
    }
    usable = {
        DeviceRef(node=node.node, device=device.device)
        for node in every
        for device in node.devices
        if node.state == "observed" and device.state == "present" and device.closed is None
    }
    apart = {ref for ref in usable if declared[ref].link_factor < APART_BELOW}
    carving = _Carving(declared, usable - apart)
    for domain in _domains(every, declared, fabrics):
        carving.add(domain)
    joined = {ref for root in carving.roots for ref in root.devices}
    alone = [
        _lone(ref, declared[ref], fabrics.get(ref.node, ())) for ref in sorted(usable - joined)
    ]
    blocks = (*carving.blocks.values(), *alone)
    return tuple(sorted(blocks, key=lambda block: (-block.size, block.id)))


def with_blocks(nodes: Iterable[Node], fabrics: Mapping[str, Sequence[Fabric]]) -> tuple[Node, ...]:
    """The same nodes, by name, each with the blocks whose first device is its own."""
    every = sorted(nodes, key=lambda node: node.node)
    blocks = carve(every, fabrics)
    return tuple(
        node.model_copy(
            update={"blocks": tuple(b for b in blocks if b.devices[0].node == node.node)}
        )
        for node in every
    )


# -- domains ------------------------------------------------------------------------------------


def _domains(
    nodes: Sequence[Node],
    declared: Mapping[DeviceRef, Device],
    fabrics: Mapping[str, Sequence[Fabric]],
) -> list[_Domain]:
    """Domains in the order in which they are carved: fast before slow, small before large, then by id."""
    named: dict[str, list[tuple[str, Fabric]]] = {}
    for node in nodes:
        for fabric in fabrics.get(node.node, ()):
            named.setdefault(fabric.name, []).append((node.node, fabric))
    domains = [
        domain
        for name, parts in sorted(named.items())
        for domain in _of_name(name, parts, declared)
    ]
    return sorted(domains, key=lambda d: (_CLASS_ORDER.index(d.kind), len(d.places), d.id))


def _of_name(
    name: str, parts: Sequence[tuple[str, Fabric]], declared: Mapping[DeviceRef, Device]
) -> list[_Domain]:
    """One domain a device model. Where nodes disagree about a fabric, the slower word counts."""
    refs = [
        ref
        for node, fabric in parts
        for ref in (DeviceRef(node=node, device=device) for device in fabric.devices)
        if ref in declared
    ]
    models = sorted({declared[ref].model for ref in refs})
    kind = max((fabric.kind for _, fabric in parts), key=_CLASS_ORDER.index)
    gb_s = min(fabric.gb_s for _, fabric in parts)
    return [
        _domain(
            name if len(models) == 1 else f"{name}.{model.lower()}",
            kind,
            gb_s,
            tuple(dict.fromkeys(ref for ref in refs if declared[ref].model == model)),
        )
        for model in models
    ]


def _domain(id_: str, kind: LinkKind, gb_s: float, refs: Sequence[DeviceRef]) -> _Domain:
    places: dict[DeviceRef, _Place] = {}
    sizes: dict[str, int] = {}
    for position, ref in enumerate(refs):
        places[ref] = _Place(position, ref.node, sizes.get(ref.node, 0))
        sizes[ref.node] = sizes.get(ref.node, 0) + 1
    return _Domain(id_, kind, gb_s, places, sizes)


# -- roots and sub-blocks -----------------------------------------------------------------------


class _Carving:
    """Blocks so far. `roots` are those that lie in no other yet."""

    def __init__(self, declared: Mapping[DeviceRef, Device], usable: set[DeviceRef]) -> None:
        self._declared = declared
        self._usable = usable
        self.blocks: dict[str, Block] = {}
        self.roots: list[_Piece] = []

    def add(self, domain: _Domain) -> None:
        """Cut one domain, around the roots of faster ones that lie within it."""
        members = [ref for ref in domain.places if ref in self._usable]
        inner, members = self._inner(members)
        taken = {ref for root in inner for ref in root.devices}
        singles = [_Piece((ref,)) for ref in members if ref not in taken]
        pieces = [*inner, *singles]
        if not pieces or (len(inner) == 1 and not singles):
            return  # nothing there, or the same devices as a faster fabric joins already
        tops = pieces if domain.kind is LinkKind.NETWORK else _joined(pieces, domain)
        top = tops[0] if len(tops) == 1 else _Piece(_in_order(tops, domain), tuple(tops))
        root = top._replace(id=domain.id)
        names = _Names(domain)
        self._put(root, domain, None, names)
        self.roots = [each for each in self.roots if each not in inner] + [root]

    def _inner(self, members: Sequence[DeviceRef]) -> tuple[list[_Piece], list[DeviceRef]]:
        """Roots that lie within these devices, and the devices without those of roots that only cross them."""
        there = set(members)
        inner, crossed = [], set()
        for root in self.roots:
            inside = there.intersection(root.devices)
            if len(inside) == len(root.devices):
                inner.append(root)
            else:
                crossed |= inside
        return inner, [ref for ref in members if ref not in crossed]

    def _put(self, piece: _Piece, domain: _Domain, parent: str | None, names: _Names) -> None:
        if piece.id is not None and piece.id in self.blocks:  # the root of a faster fabric
            self.blocks[piece.id] = self.blocks[piece.id].model_copy(update={"parent": parent})
            return
        id_ = piece.id or names.of(piece)
        first = self._declared[piece.devices[0]]
        factor = min(self._declared[ref].link_factor for ref in piece.devices)
        self.blocks[id_] = Block(
            id=id_,
            parent=parent,
            model=first.model,
            kind=domain.kind,
            gb_s=domain.gb_s * factor,
            devices=piece.devices,
        )
        for part in piece.parts:
            self._put(part, domain, id_, names)


class _Names:
    """Ids of sub-blocks of one root: `a.4-1` is its second aligned four, whether the first is there or not."""

    def __init__(self, domain: _Domain) -> None:
        self._domain = domain
        self._taken: set[str] = set()

    def of(self, piece: _Piece) -> str:
        """A new id. Patched pieces that would share a number have a letter behind it."""
        size = len(piece.devices)
        number = self._domain.places[piece.devices[0]].position // size
        stem = f"{self._domain.id}.{size}-{number}"
        id_ = next(
            each
            for each in (stem + "b" * tail for tail in range(len(self._domain.places) + 1))
            if each not in self._taken
        )
        self._taken.add(id_)
        return id_


def _joined(pieces: Sequence[_Piece], domain: _Domain) -> list[_Piece]:
    """Join equals, size by size; gives what joins with nothing any more, largest first."""
    waiting: dict[int, list[_Piece]] = {}
    done: list[_Piece] = []
    for piece in pieces:
        size = len(piece.devices)
        if size & (size - 1):
            done.append(piece)  # an inner root of 3, 5, … keeps its own cut and joins nothing
        else:
            waiting.setdefault(size, []).append(piece)
    size = 1
    while waiting:
        joined, left = _pairs(waiting.pop(size, []), size, domain)
        done.extend(left)
        if joined:
            waiting.setdefault(2 * size, []).extend(joined)
        size *= 2
    return sorted(done, key=lambda piece: (-len(piece.devices), _first(piece, domain)))


def _pairs(pieces: list[_Piece], size: int, domain: _Domain) -> tuple[list[_Piece], list[_Piece]]:
    """Pairs of equal pieces in the order of the module's docstring, and what is left without a partner."""
    left = sorted(pieces, key=lambda piece: _first(piece, domain))
    joined: list[_Piece] = []
    for group_of in (_aligned_range, _node_of):
        groups: dict[object, list[_Piece]] = {}
        for piece in left:
            groups.setdefault(group_of(piece, size, domain), []).append(piece)
        alone = groups.pop(None, [])
        left = alone
        for group in groups.values():
            joined.extend(
                _join(a, b, domain) for a, b in zip(group[::2], group[1::2], strict=False)
            )
            left = [*left, *group[len(group) - len(group) % 2 :]]
    left.sort(key=lambda piece: _across(piece, domain))
    pairs = zip(left[::2], left[1::2], strict=False)
    joined.extend(_join(a, b, domain) for a, b in pairs)
    return joined, left[len(left) - len(left) % 2 :]


def _aligned_range(piece: _Piece, size: int, domain: _Domain) -> object:
    """The range of twice its size that an unbroken, aligned piece is half of; None for any other piece."""
    places = [domain.places[ref] for ref in piece.devices]
    first = places[0]
    unbroken = all(
        place.node == first.node and place.local == first.local + offset
        for offset, place in enumerate(places)
    )
    if not unbroken or first.local % size:
        return None
    return first.node, first.local // (2 * size)


def _node_of(piece: _Piece, size: int, domain: _Domain) -> object:
    """The one node it lies on; None where it spans several. `size` has no say."""
    del size
    nodes = {domain.places[ref].node for ref in piece.devices}
    return nodes.pop() if len(nodes) == 1 else None


def _across(piece: _Piece, domain: _Domain) -> tuple[bool, int, int]:
    """The order in which pieces join over nodes: whole nodes first, then those on few nodes, then by place."""
    nodes = {domain.places[ref].node for ref in piece.devices}
    is_patched = sum(domain.node_sizes[node] for node in nodes) != len(piece.devices)
    return is_patched, len(nodes), _first(piece, domain)


def _join(one: _Piece, other: _Piece, domain: _Domain) -> _Piece:
    parts = tuple(sorted((one, other), key=lambda piece: _first(piece, domain)))
    return _Piece(_in_order(parts, domain), parts)


def _in_order(pieces: Iterable[_Piece], domain: _Domain) -> tuple[DeviceRef, ...]:
    refs = (ref for piece in pieces for ref in piece.devices)
    return tuple(sorted(refs, key=lambda ref: domain.places[ref].position))


def _first(piece: _Piece, domain: _Domain) -> int:
    return domain.places[piece.devices[0]].position


def _lone(ref: DeviceRef, device: Device, fabrics: Sequence[Fabric]) -> Block:
    """A device that is in no group: its links are too slow, or no fabric names it."""
    speeds = [fabric.gb_s for fabric in fabrics if ref.device in fabric.devices]
    return Block(
        id=str(ref),
        model=device.model,
        kind=LinkKind.NETWORK,
        gb_s=max(speeds, default=LONE_GB_S) * device.link_factor,
        devices=(ref,),
    )
