"""Llama-2-7B and Llama-2-70B as facts and deployments, and plans of theirs on one kind of device.

For tests of what a plan delivers, where it fits and what it costs. Shapes and sizes are those of the published configs.
"""

from __future__ import annotations

from typing import Final

from flexpipe.model.deployment import Deployment, EngineSettings, ModelFacts, ModelRef, Slo
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.outlook import Load
from flexpipe.model.plan import CommunicationGroup, LayerRange, Plan, Stage
from flexpipe.performance.devices import device_facts
from flexpipe.performance.memory import kv_tokens_left

H100: Final = "H100-SXM5-80GB"
A100: Final = "A100-SXM4-80GB"
L40S: Final = "L40S"

LLAMA_2_7B: Final = ModelFacts(
    layers=32,
    heads=32,
    kv_heads=32,
    head_dim=128,
    hidden=4096,
    vocab=32_000,
    context_tokens=4096,
    weights_bytes=13_476_831_232,
    tied_embeddings=False,
    architecture="LlamaForCausalLM",
)
LLAMA_2_70B: Final = ModelFacts(
    layers=80,
    heads=64,
    kv_heads=8,
    head_dim=128,
    hidden=8192,
    vocab=32_000,
    context_tokens=4096,
    weights_bytes=137_953_296_384,
    tied_embeddings=False,
    architecture="LlamaForCausalLM",
)

EASY_SLO: Final = Slo(ttft_ms=2000, itl_ms=100)
"""What every layout that suits its model holds at light load."""


def a_llama(
    facts: ModelFacts = LLAMA_2_7B,
    *,
    time_scale: float = 1.0,
    slo: Slo = EASY_SLO,
    memory_fraction: float | None = 0.9,
) -> Deployment:
    """A deployment in bfloat16 on engines that behave as the performance model reckons."""
    name = "llama-7b" if facts == LLAMA_2_7B else "llama-70b"
    return Deployment(
        name=name,
        model=ModelRef(name=name, path=f"/models/{name}", facts=facts),
        engine=EngineSettings(
            kind="emulated",
            form="emulated",
            dtype="bfloat16",
            performance="roofline",
            memory_fraction=memory_fraction,
            time_scale=time_scale,
        ),
        slo=slo,
        baseline="tp1" if facts == LLAMA_2_7B else "tp4",
    )


def a_plan_of(
    facts: ModelFacts,
    device: str,
    *,
    tp: int = 1,
    pp: int = 1,
    path: str = "nvlink",
    between: str = "network",
    memory_fraction: float = 0.9,
    overhead_bytes: int = 1_500_000_000,
) -> Plan:
    """Equal stages, one a node, on devices `g0`, `g1`, … of one model; `path` joins a stage, `between` joins stages.

    Its KV capacity is what weights and overhead leave of that share of the device; at least one token.
    """
    per_stage = facts.layers // pp
    memory = memory_fraction * device_facts(device).memory_bytes
    left = kv_tokens_left(
        facts,
        "bfloat16",
        layers=[per_stage] * pp,
        tp=tp,
        budget_bytes=[memory - overhead_bytes] * pp,
    )
    stages = tuple(
        Stage(
            layers=LayerRange(first=stage * per_stage, end=(stage + 1) * per_stage),
            devices=tuple(DeviceRef(node=f"n{stage}", device=f"g{rank}") for rank in range(tp)),
            rank_bytes=int(memory),
            device_model=device,
        )
        for stage in range(pp)
    )
    groups = [
        _group("tensor", tuple(range(stage * tp, (stage + 1) * tp)), path)
        for stage in range(pp)
        if tp > 1
    ]
    if pp > 1:
        groups.append(_group("pipeline", tuple(stage * tp for stage in range(pp)), between))
    return Plan(
        model="llama",
        engine="emulated",
        stages=stages,
        groups=tuple(groups),
        kv_tokens=max(left, 1),
    )


def a_load(
    arrived_per_s: float, prompt_tokens: float = 512.0, output_tokens: float = 256.0
) -> Load:
    """Traffic over a window of a minute."""
    return Load(
        data="busy",
        window_s=60.0,
        arrived_per_s=arrived_per_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


def _group(kind: str, ranks: tuple[int, ...], path: str) -> CommunicationGroup:
    return CommunicationGroup.model_validate({"kind": kind, "ranks": ranks, "path": path})
