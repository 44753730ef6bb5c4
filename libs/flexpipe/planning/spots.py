"""Free blocks as spots to lay stages on, and how the stages of one plan are put there. Used by `ground` and `layouts`.

An engine's process groups start equally many ranks on each of its nodes, in order. So the stages of a pipeline lie all
on one node, or in equal runs on several, and which spots are taken together follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flexpipe.model.fleet import Block


class Kind(NamedTuple):
    """What makes blocks alike. Sorts strongest memory bandwidth first."""

    weakness: float  # negative memory bandwidth: stages are laid strongest first
    model: str
    link: str  # class of the block; "" where it is one device, whose class says nothing
    size: int
    span: int  # nodes it lies on
    gb_s: float  # nominal
    memory_bytes: int  # of its smallest device
    link_factor: float  # of its worst device

    def __str__(self) -> str:
        return self.model if self.size == 1 else f"{self.size} × {self.model} ({self.link})"


@dataclass(frozen=True)
class Spot:
    """One free block. `mask`: its devices as bits. `home`: the largest block around it that carries tensor groups."""

    block: Block
    mask: int
    home: str
    nodes: tuple[str, ...]


Spots = Mapping[Kind, tuple[Spot, ...]]


def place(spots: Spots, kinds: Sequence[Kind], used: int) -> tuple[Spot, ...] | None:
    """Spots of these kinds in their order, apart from each other and from `used`; None where there are not enough.

    As many neighbours as can be on one node, and nodes of one home where there are several: stages talk to the next.
    """
    if len({kind.span for kind in kinds}) > 1:
        return None
    free = {
        kind: [spot for spot in spots.get(kind, ()) if not spot.mask & used]
        for kind in dict.fromkeys(kinds)
    }
    if any(len(free[kind]) < kinds.count(kind) for kind in free):
        return None
    most = 1 if kinds[0].span > 1 else len(kinds)
    for share in range(most, 0, -1):
        if len(kinds) % share == 0:
            found = _in_runs(free, kinds, share)
            if found is not None:
                return found
    return None


def _in_runs(
    free: Mapping[Kind, Sequence[Spot]], kinds: Sequence[Kind], share: int
) -> tuple[Spot, ...] | None:
    """Runs of `share` stages, each on a node (or a set of nodes) of its own."""
    chosen: list[Spot] = []
    nodes: set[str] = set()
    for start in range(0, len(kinds), share):
        home = chosen[0].home if chosen else None
        run = _run(free, kinds[start : start + share], nodes, home)
        if run is None:
            return None
        chosen.extend(run)
        nodes.update(run[0].nodes)
    return tuple(chosen)


def _run(
    free: Mapping[Kind, Sequence[Spot]], kinds: Sequence[Kind], closed: set[str], home: str | None
) -> list[Spot] | None:
    open_ = [spot for spot in free[kinds[0]] if closed.isdisjoint(spot.nodes)]
    if home is not None:
        open_.sort(key=lambda spot: spot.home != home)
    for nodes in dict.fromkeys(spot.nodes for spot in open_):
        run: list[Spot] = []
        for kind in kinds:
            mine = (spot for spot in free[kind] if spot.nodes == nodes and spot not in run)
            spot = next(mine, None)
            if spot is None:
                break
            run.append(spot)
        if len(run) == len(kinds):
            return run
    return None
