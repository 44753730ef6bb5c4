"""From a width, a depth and devices to a plan: divisibility, layer cut, memory of a rank, groups, KV partition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment, ModelFacts
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.plan import CommunicationGroup, KvShard, LayerRange, Plan, Stage
from flexpipe.performance.memory import kv_bytes_per_token

KNOWN_TIED_UNDER_PP = ("LlamaForCausalLM",)
"""Architectures whose tied checkpoints crash stock SGLang 0.5.23 under pipeline parallelism (no lm_head on a stage)."""


NO_FLEET = Fleet()


def check_width(facts: ModelFacts, tp: int) -> None:
    """Raises InvalidInput where heads or KV heads do not divide over `tp` ranks."""
    if facts.heads % tp:
        raise InvalidInput("tp", tp, f"must divide the model's {facts.heads} attention heads")
    if facts.kv_heads % tp and tp % facts.kv_heads:
        raise InvalidInput(
            "tp", tp, f"must divide the model's {facts.kv_heads} KV heads, or be a multiple of them"
        )


def check_depth(facts: ModelFacts, pp: int) -> None:
    """Raises InvalidInput where the layers cannot be cut into `pp` stages."""
    if pp > facts.layers:
        raise InvalidInput("pp", pp, f"must not exceed the model's {facts.layers} layers")
    if pp > 1 and facts.tied_embeddings and facts.architecture in KNOWN_TIED_UNDER_PP:
        raise InvalidInput(
            "pp",
            pp,
            f"{facts.architecture} with tied embeddings crashes under pipeline parallelism; save the checkpoint "
            "untied (tie_word_embeddings=false with its own lm_head)",
        )


def cut_layers(facts: ModelFacts, pp: int, counts: Sequence[int] | None) -> tuple[LayerRange, ...]:
    """Layer ranges of the stages: as given, or as even as can be (SGLang's own rule: the last ones take the rest)."""
    if counts is None:
        base, rest = divmod(facts.layers, pp)
        counts = [base + (1 if stage >= pp - rest else 0) for stage in range(pp)]
    if len(counts) != pp:
        raise InvalidInput("layers", tuple(counts), f"name one count for each of the {pp} stages")
    if sum(counts) != facts.layers or min(counts) <= 0:
        raise InvalidInput(
            "layers",
            tuple(counts),
            f"positive counts must add up to the model's {facts.layers} layers",
        )
    ends = list(accumulate(counts))
    return tuple(
        LayerRange(first=end - count, end=end) for end, count in zip(ends, counts, strict=True)
    )


def rank_bytes(deployment: Deployment, facts: ModelFacts, layers: LayerRange, tp: int) -> int:
    """Memory of one rank: its share of weights and KV pool, and what the engine takes besides.

    Embeddings are counted with the layers, in proportion: good to the size of one embedding matrix.
    """
    share = layers.count / facts.layers
    held_heads = (
        max(facts.kv_heads, tp) / facts.kv_heads
    )  # KV heads are replicated where tp exceeds them
    kv = kv_bytes_per_token(facts, deployment.engine.dtype) * deployment.engine.max_total_tokens
    weights = facts.weights_bytes * share / tp
    return int(weights + kv * share * held_heads / tp) + deployment.engine.rank_overhead_bytes


def build_plan(
    deployment: Deployment,
    *,
    tp: int,
    pp: int,
    devices: Sequence[DeviceRef],
    counts: Sequence[int] | None = None,
    fleet: Fleet = NO_FLEET,
) -> Plan:
    """A plan over `devices` in global rank order. Raises InvalidInput naming what does not divide or fit."""
    facts = facts_in(deployment)
    check_width(facts, tp)
    check_depth(facts, pp)
    if len(devices) != tp * pp:
        raise InvalidInput(
            "devices",
            ",".join(map(str, devices)),
            f"a tp{tp} pp{pp} plan takes exactly {tp * pp} devices",
        )
    require_groups_inside_nodes(devices, tp)
    ranges = cut_layers(facts, pp, counts)
    stages = tuple(
        Stage(
            layers=ranges[index],
            devices=tuple(devices[index * tp : (index + 1) * tp]),
            rank_bytes=rank_bytes(deployment, facts, ranges[index], tp),
        )
        for index in range(pp)
    )
    return Plan(
        model=deployment.model.name,
        engine=deployment.engine.kind,
        stages=stages,
        groups=_groups(devices, tp, pp),
        kv_partition=_kv_partition(facts, ranges, tp),
    )


def require_groups_inside_nodes(devices: Sequence[DeviceRef], tp: int) -> None:
    """Raises InvalidInput where a tensor-parallel group would span nodes."""
    for start in range(0, len(devices), tp):
        group = devices[start : start + tp]
        if len({ref.node for ref in group}) > 1:
            raise InvalidInput(
                "devices", ",".join(map(str, group)), "a tensor-parallel group must lie on one node"
            )


def facts_in(deployment: Deployment) -> ModelFacts:
    """The deployment's model facts; raises InvalidInput where they were never read."""
    if deployment.model.facts is None:
        raise InvalidInput(
            "model.facts", None, "apply the deployment again, so that its config.json is read"
        )
    return deployment.model.facts


def _groups(devices: Sequence[DeviceRef], tp: int, pp: int) -> tuple[CommunicationGroup, ...]:
    def group(kind: str, ranks: tuple[int, ...]) -> CommunicationGroup:
        nodes = {devices[rank].node for rank in ranks}
        path = "none" if len(ranks) == 1 else "host" if len(nodes) == 1 else "network"
        return CommunicationGroup.model_validate({"kind": kind, "ranks": ranks, "path": path})

    tensor = [group("tensor", tuple(range(s * tp, (s + 1) * tp))) for s in range(pp) if tp > 1]
    pipeline = [
        group("pipeline", tuple(s * tp + r for s in range(pp))) for r in range(tp) if pp > 1
    ]
    return (*tensor, *pipeline)


def _kv_partition(facts: ModelFacts, ranges: Sequence[LayerRange], tp: int) -> tuple[KvShard, ...]:
    """Which layers × KV heads each rank holds. Where tp exceeds the KV heads, neighbours hold the same one."""
    shards = []
    for stage, layers in enumerate(ranges):
        for rank in range(tp):
            if tp <= facts.kv_heads:
                width = facts.kv_heads // tp
                first = rank * width
            else:
                width, first = 1, rank * facts.kv_heads // tp
            shards.append(
                KvShard(
                    rank=stage * tp + rank, layers=layers, first_head=first, end_head=first + width
                )
            )
    return tuple(shards)
