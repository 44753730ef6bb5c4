"""Pairs of devices as they were measured, and the fabrics that they add up to. Called by the reader of fleet files.

A link is seen from both ends: one that only one end knows, or that the ends see differently, is a fault of the file and
not a property of the hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from flexpipe.events.fleet import Fabric
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.fleet import DeviceRef, LinkKind


class Link(NamedTuple):
    """What one device sees of its path to another."""

    one: DeviceRef
    other: DeviceRef
    kind: LinkKind
    gb_s: float


def require_symmetry(links: Mapping[tuple[DeviceRef, DeviceRef], Link], where: str) -> None:
    """Raise InvalidInput for the first link that its other end does not see in the same way."""
    for (one, other), link in sorted(links.items()):
        back = links.get((other, one))
        if back is None:
            fix = f"asymmetric: declare {other} → {one} too"
            raise InvalidInput(f"{where}: links", f"{one} → {other}", fix)
        if (back.kind, back.gb_s) != (link.kind, link.gb_s):
            seen = f"{link.kind} at {link.gb_s:g} GB/s, back {back.kind} at {back.gb_s:g}"
            fix = f"asymmetric ({seen}); both ends must see the same"
            raise InvalidInput(f"{where}: links", f"{one} → {other}", fix)


def fabrics_of(links: Iterable[Link], *, taken: AbstractSet[str]) -> Iterator[tuple[str, Fabric]]:
    """(node, fabric) of symmetric links: groups in which each device reaches each other one by the same kind and speed.

    A mesh that is not complete gives several groups, grown from its first device on; every device is in one group of a
    kind and speed.
    """
    near: dict[tuple[LinkKind, float], dict[DeviceRef, set[DeviceRef]]] = {}
    for link in links:
        near.setdefault((link.kind, link.gb_s), {}).setdefault(link.one, set()).add(link.other)
    names = set(taken)
    for (kind, gb_s), neighbours in sorted(near.items()):
        left = sorted(neighbours)
        while left:
            group: list[DeviceRef] = []
            for ref in left:
                if neighbours[ref].issuperset(group):
                    group.append(ref)
            left = [ref for ref in left if ref not in group]
            name = _new_name(f"{group[0].node}-{kind}", names)
            names.add(name)
            for node in sorted({ref.node for ref in group}):
                ids = tuple(ref.device for ref in group if ref.node == node)
                yield node, Fabric(name=name, kind=kind, gb_s=gb_s, devices=ids)


def _new_name(stem: str, names: AbstractSet[str]) -> str:
    numbered = (f"{stem}-{number}" for number in range(len(names) + 1))
    return next(name for name in numbered if name not in names)
