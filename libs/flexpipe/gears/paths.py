"""What joins the ranks of a group: read off the fleet's blocks. Where a fleet has none, only nodes count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.fleet import Block, DeviceRef, Fleet, LinkKind
from flexpipe.model.plan import CommunicationGroup
from flexpipe.performance.collectives import NOMINAL_GB_S

BETWEEN_BLOCKS_GB_S: Final = NOMINAL_GB_S["network"]
"""Between devices that no block joins: one 200G adapter, 25 GB/s at line rate, the slowest of the usual adapters a GPU
in the public GPU tables."""


def joining_block(fleet: Fleet, refs: Iterable[DeviceRef]) -> Block | None:
    """The smallest block that holds all of these devices; among equals the first by id."""
    wanted = set(refs)
    holding = [
        block
        for block in fleet.blocks
        if block.size >= len(wanted) and wanted.issubset(block.devices)
    ]
    return min(holding, key=lambda block: (block.size, block.id)) if holding else None


def require_tensor_groups(devices: Sequence[DeviceRef], tp: int, fleet: Fleet) -> None:
    """Raises InvalidInput where a tensor-parallel group has no block that carries it (without blocks: spans nodes)."""
    if tp == 1:
        return
    has_blocks = bool(fleet.blocks)
    for start in range(0, len(devices), tp):
        group = devices[start : start + tp]
        named = ",".join(map(str, group))
        if not has_blocks:
            if len({ref.node for ref in group}) > 1:
                raise InvalidInput("devices", named, "a tensor-parallel group must lie on one node")
            continue
        block = joining_block(fleet, group)
        if block is None:
            fix = f"tp{tp} needs its {tp} devices in one block, and no block holds these"
            raise InvalidInput("devices", named, fix)
        if not block.carries_tp(tp):
            fix = f"their block {block.id} is of class {block.kind}, which does not carry tp{tp}"
            raise InvalidInput("devices", named, fix)


def groups_of(
    devices: Sequence[DeviceRef], tp: int, pp: int, fleet: Fleet
) -> tuple[CommunicationGroup, ...]:
    """Tensor groups stage by stage, then pipeline groups rank by rank, each with its path.

    A pipeline's path is that of its slowest hop.
    """
    tensor = [
        _group("tensor", tuple(range(s * tp, (s + 1) * tp)), devices, fleet)
        for s in range(pp)
        if tp > 1
    ]
    pipeline = [
        _group("pipeline", tuple(s * tp + r for s in range(pp)), devices, fleet)
        for r in range(tp)
        if pp > 1
    ]
    return (*tensor, *pipeline)


def _group(
    kind: Literal["tensor", "pipeline"],
    ranks: tuple[int, ...],
    devices: Sequence[DeviceRef],
    fleet: Fleet,
) -> CommunicationGroup:
    refs = [devices[rank] for rank in ranks]
    if kind == "tensor":
        path, gb_s = _path(refs, fleet)
    else:
        hops = [_path(pair, fleet) for pair in pairwise(refs)]
        path, gb_s = min(hops, key=lambda hop: hop[1] or NOMINAL_GB_S[hop[0]])
    return CommunicationGroup.model_validate(
        {"kind": kind, "ranks": ranks, "path": path, "gb_s": gb_s}
    )


def _path(refs: Sequence[DeviceRef], fleet: Fleet) -> tuple[str, float]:
    """(path, GB/s) between these devices; 0 GB/s where nobody said."""
    one_node = len({ref.node for ref in refs}) == 1
    if not fleet.blocks:
        return ("host" if one_node else "network"), 0.0
    block = joining_block(fleet, refs)
    if block is not None:
        return str(block.kind), block.gb_s
    return str(LinkKind.NETWORK), BETWEEN_BLOCKS_GB_S
