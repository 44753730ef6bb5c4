"""From a width, a depth and devices to a plan: divisibility, layer cut, memory of a rank, groups, KV partition.

Called by the gear modes, and by the planner for every layout it tries. It never looks at what is free or reserved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexpipe.gears.cutting import cut_layers, cut_layers_by_speed
from flexpipe.gears.fitting import least_kv_tokens, may_claim, most_layers, rank_bytes
from flexpipe.gears.paths import groups_of, require_tensor_groups
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment, ModelFacts
from flexpipe.model.fleet import Device, DeviceRef, Fleet
from flexpipe.model.plan import KvShard, LayerRange, Plan, Stage
from flexpipe.performance.devices import device_facts
from flexpipe.performance.memory import kv_tokens_left

KNOWN_TIED_UNDER_PP: Final = ("LlamaForCausalLM",)
"""Architectures whose tied checkpoints crash stock SGLang 0.5.23 under pipeline parallelism (no lm_head on a stage)."""

NO_FLEET: Final = Fleet()
UNKNOWN_MODEL: Final = "cpu"  # what a stage's device counts as where the fleet does not know it


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


def build_plan(
    deployment: Deployment,
    *,
    tp: int,
    pp: int,
    devices: Sequence[DeviceRef],
    counts: Sequence[int] | None = None,
    fleet: Fleet = NO_FLEET,
) -> Plan:
    """A plan over `devices` in global rank order. Raises InvalidInput naming what does not divide, fit or join.

    `counts` are layers a stage; without them stages of equal devices are cut evenly, others by speed and memory. What
    the devices are and what joins them is read off the fleet; without one, any device is taken to hold any rank.
    """
    facts = facts_in(deployment)
    check_width(facts, tp)
    check_depth(facts, pp)
    if len(devices) != tp * pp:
        raise InvalidInput(
            "devices",
            ",".join(map(str, devices)),
            f"a tp{tp} pp{pp} plan takes exactly {tp * pp} devices",
        )
    require_tensor_groups(devices, tp, fleet)
    grounds = [_Ground.under(devices[i * tp : (i + 1) * tp], fleet) for i in range(pp)]
    ranges = cut_layers(facts, pp, counts or _counts(deployment, facts, tp, grounds))
    stages = tuple(
        _stage(deployment, facts, layers, ground)
        for layers, ground in zip(ranges, grounds, strict=True)
    )
    plan = Plan(
        model=deployment.model.name,
        engine=deployment.engine.kind,
        stages=stages,
        groups=groups_of(devices, tp, pp, fleet),
        kv_partition=_kv_partition(facts, ranges, tp),
        kv_tokens=_kv_tokens(deployment, facts, stages),
    )
    if not plan.is_even_over_nodes:
        raise InvalidInput(
            "devices",
            ",".join(map(str, devices)),
            "an engine starts equally many ranks on each node, in order: whole stages, or equal parts of one",
        )
    return plan


def facts_in(deployment: Deployment) -> ModelFacts:
    """The deployment's model facts; raises InvalidInput where they were never read."""
    if deployment.model.facts is None:
        raise InvalidInput(
            "model.facts", None, "apply the deployment again, so that its config.json is read"
        )
    return deployment.model.facts


class _Ground:
    """The devices under one stage. `memory_bytes` None: not known to the fleet."""

    def __init__(self, refs: Sequence[DeviceRef], devices: Sequence[Device]) -> None:
        models = sorted({device.model for device in devices})
        if len(models) > 1:
            raise InvalidInput(
                "devices", ",".join(map(str, refs)), f"a stage lies on one model: {models} differ"
            )
        self.refs = tuple(refs)
        self.model = models[0] if models else UNKNOWN_MODEL
        self.memory_bytes = min((device.memory_bytes for device in devices), default=None)

    @classmethod
    def under(cls, refs: Sequence[DeviceRef], fleet: Fleet) -> _Ground:
        """What the fleet says of these devices; all or none of them are known."""
        known = [device for ref in refs if (device := fleet.device(ref)) is not None]
        return cls(refs, known if len(known) == len(refs) else ())

    @property
    def named(self) -> str:
        """Its devices for people."""
        return ",".join(map(str, self.refs))


def _counts(
    deployment: Deployment, facts: ModelFacts, tp: int, grounds: Sequence[_Ground]
) -> tuple[int, ...] | None:
    """Layers a stage where stages differ in speed or memory; None: evenly."""
    if len({(ground.model, ground.memory_bytes) for ground in grounds}) == 1:
        return None
    most = [
        facts.layers
        if ground.memory_bytes is None
        else most_layers(deployment, facts, ground.memory_bytes, tp)
        for ground in grounds
    ]
    if sum(most) < facts.layers or min(most) < 1:
        held = ", ".join(f"{ground.model} {n}" for ground, n in zip(grounds, most, strict=True))
        raise InvalidInput(
            "memory",
            f"tp{tp}pp{len(grounds)}",
            f"the stages hold {sum(most)} of the model's {facts.layers} layers ({held})",
        )
    speeds = [device_facts(ground.model).weights_bytes_per_s / 1e9 for ground in grounds]
    return cut_layers_by_speed(facts, speeds, most)


def _stage(deployment: Deployment, facts: ModelFacts, layers: LayerRange, ground: _Ground) -> Stage:
    """One stage; raises InvalidInput where its ranks do not fit their devices."""
    tp = len(ground.refs)
    need = rank_bytes(deployment, facts, layers.count, tp)
    claim = need
    if ground.memory_bytes is not None:
        budget = may_claim(deployment, ground.memory_bytes)
        if need > budget:
            raise InvalidInput("memory", ground.named, _shortage(deployment, need, ground))
        claim = budget if deployment.engine.memory_fraction is not None else need
    return Stage(layers=layers, devices=ground.refs, rank_bytes=claim, device_model=ground.model)


def _shortage(deployment: Deployment, need: int, ground: _Ground) -> str:
    has = (ground.memory_bytes or 0) / 1e9
    fraction = deployment.engine.memory_fraction
    if fraction is None:
        return f"a rank needs {need / 1e9:.2f} GB and the device has {has:.2f} GB"
    return (
        f"a rank needs {need / 1e9:.2f} GB and may claim {has * fraction:.2f} GB"
        f" ({fraction:g} of the device's {has:.2f} GB)"
    )


def _kv_tokens(deployment: Deployment, facts: ModelFacts, stages: Sequence[Stage]) -> int | None:
    """KV capacity where memory decides it; None where the engine's setting does."""
    engine = deployment.engine
    if engine.memory_fraction is None:
        return None
    left = kv_tokens_left(
        facts,
        engine.dtype,
        layers=[stage.layers.count for stage in stages],
        tp=stages[0].tp,
        budget_bytes=[float(stage.rank_bytes - engine.rank_overhead_bytes) for stage in stages],
    )
    return max(left, least_kv_tokens(deployment, facts))


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
