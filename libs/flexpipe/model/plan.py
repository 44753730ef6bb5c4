"""An execution plan: how one copy of a model is laid over devices. Immutable and content-addressed."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flexpipe.kernel.frozen import Frozen, digest
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.names import Name


class Role(StrEnum):
    """What a stage computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class LayerRange(Frozen):
    """Decoder layers first … end − 1."""

    first: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(gt=0)]

    @property
    def count(self) -> int:
        """How many layers."""
        return self.end - self.first


class Stage(Frozen):
    """One pipeline stage: a tensor-parallel group that holds a range of layers. `devices` in rank order."""

    role: Role = Role.BOTH
    layers: LayerRange
    devices: Annotated[tuple[DeviceRef, ...], Field(min_length=1)]
    rank_bytes: Annotated[int, Field(gt=0)]  # device memory that each rank of this stage claims
    device_model: str = (
        "cpu"  # of every device of the stage: a name of the table in `flexpipe.performance`
    )

    @property
    def tp(self) -> int:
        """Tensor-parallel width."""
        return len(self.devices)


class CommunicationGroup(Frozen):
    """Ranks that talk to each other, and over what."""

    kind: Literal["tensor", "pipeline"]
    ranks: tuple[int, ...]
    path: Literal["none", "host", "network", "nvlink", "nvswitch", "pcie"]
    gb_s: float = 0.0  # of the path between two ranks, one direction; 0: not known


class KvShard(Frozen):
    """The rectangle of the KV cache that one rank holds: layers × KV heads (ends are exclusive)."""

    rank: int
    layers: LayerRange
    first_head: int
    end_head: int


class Plan(Frozen):
    """Stages in pipeline order, with what follows from them: groups and KV partition.

    Global rank = stage index × TP width + rank within the stage.
    """

    model: str
    engine: Name
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    groups: tuple[CommunicationGroup, ...] = ()
    kv_partition: tuple[KvShard, ...] = ()
    kv_tokens: Annotated[int, Field(gt=0)] | None = (
        None  # KV capacity it is laid out for; None: the engine's setting
    )

    @model_validator(mode="after")
    def _stages_join(self) -> Plan:
        expected = 0
        for index, stage in enumerate(self.stages):
            if stage.layers.first != expected or stage.layers.count <= 0:
                raise ValueError(
                    f"stages[{index}].layers: starts at {stage.layers.first}, ends before {stage.layers.end}; "
                    f"stages must cover the layers without gap, so it must start at {expected} and not be empty"
                )
            expected = stage.layers.end
        used = [ref for stage in self.stages for ref in stage.devices]
        if len(set(used)) != len(used):
            raise ValueError("stages: a device appears twice; a plan uses each device once")
        return self

    @cached_property
    def id(self) -> str:
        """Content address: equal plans, equal ids."""
        return "p-" + digest(self.canonical_json())

    @property
    def tp(self) -> int:
        """Tensor-parallel width (of every stage: engines know one width for all)."""
        return self.stages[0].tp

    @property
    def pp(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages)

    @property
    def devices(self) -> tuple[DeviceRef, ...]:
        """All devices in global rank order."""
        return tuple(ref for stage in self.stages for ref in stage.devices)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in order of their lowest rank. The first one hosts rank 0 and the HTTP front."""
        return tuple(dict.fromkeys(ref.node for ref in self.devices))

    @property
    def shape(self) -> str:
        """Its form in short, such as `tp2` or `pp2` or `tp2pp3`."""
        parts = [f"tp{self.tp}"] if self.tp > 1 or self.pp == 1 else []
        if self.pp > 1:
            parts.append(f"pp{self.pp}")
        return "".join(parts)

    def ranks_on(self, node: str) -> tuple[int, ...]:
        """Global ranks placed on a node."""
        return tuple(rank for rank, ref in enumerate(self.devices) if ref.node == node)

    @property
    def is_even_over_nodes(self) -> bool:
        """Whether each node carries equally many ranks, in order: whole stages, or equal parts of one.

        An engine's process groups can be started in no other way.
        """
        share, rest = divmod(self.tp * self.pp, len(self.nodes))
        if rest or (share % self.tp and self.tp % share):
            return False
        expected = [tuple(range(i * share, (i + 1) * share)) for i in range(len(self.nodes))]
        return [self.ranks_on(node) for node in self.nodes] == expected

    def claims(self) -> tuple[tuple[DeviceRef, int], ...]:
        """(device, bytes) that this plan needs, in rank order."""
        return tuple((ref, stage.rank_bytes) for stage in self.stages for ref in stage.devices)
