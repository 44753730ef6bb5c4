"""What one decode step and one prompt take under a plan: a roofline in milliseconds that a person can follow.

A stage's decode step = max(weights read, arithmetic) + KV read + all-reduces (two a layer) + fixed overhead. The
stages of a pipeline add up for one sequence; with enough sequences in flight each of the p micro-batches passes the
slowest stage once a step. A prompt is read likewise, with attention's square term. Times are those of the hardware:
nothing here knows a time scale, a load or an SLO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexpipe.model.deployment import ModelFacts
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.plan import CommunicationGroup, Plan, Stage
from flexpipe.performance.collectives import all_reduce_ms, send_ms
from flexpipe.performance.devices import DeviceFacts, device_facts
from flexpipe.performance.memory import (
    BYTES_OF_DTYPE,
    kv_bytes_per_rank,
    kv_tokens_left,
    weights_bytes_per_rank,
)

ALL_REDUCES_PER_LAYER: Final = 2  # one after attention, one after the MLP
SEQUENCE_OVERHEAD_MS: Final = 0.01
"""Sampling and bookkeeping of one sequence in one step: about 2.5 ms at 256 sequences."""
CPU_SEQUENCE_OVERHEAD_MS: Final = 0.7
CPU_SMALL_BATCH: Final = 5.5
"""On CPU a batch of a few rows is read and computed one after the other, at a fraction of a large product's rate: each
sequence adds this many times its arithmetic. Measured: SmolLM2-135M gives 11.8 tokens/s alone and 35.6 at eight."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One stage, milliseconds; `…_each_ms` a sequence of the batch that passes it."""

    overhead_ms: float
    overhead_each_ms: float
    weights_ms: float
    compute_each_ms: float
    kv_each_token_ms: float  # a token of context
    collectives_ms: float
    collectives_each_ms: float
    attention_each_square_ms: float  # of prefill: a token, a token before it

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """One step of `batch` sequences with that mean context."""
        each = (
            self.overhead_each_ms
            + self.collectives_each_ms
            + self.kv_each_token_ms * context_tokens
        )
        read = max(self.weights_ms, self.compute_each_ms * batch)
        return self.overhead_ms + self.collectives_ms + read + each * batch

    def prefill_ms(self, tokens: float) -> float:
        """Reading one prompt of `tokens` tokens."""
        read = max(self.weights_ms, self.compute_each_ms * tokens)
        square = self.attention_each_square_ms * tokens * tokens / 2  # causal: half of the square
        talk = self.collectives_ms + self.collectives_each_ms * tokens
        return self.overhead_ms + read + square + talk


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a plan's steps take. `decode_base_ms + decode_per_sequence_ms × batch` holds for small batches; `decode_ms`
    knows the knee where arithmetic outweighs reading, and micro-batches."""

    stages: tuple[StageTimes, ...]
    context_tokens: float
    capacity_tokens: int  # KV, whole plan

    @property
    def decode_base_ms(self) -> float:
        """A step's time before its first sequence."""
        return sum(stage.decode_ms(0.0, self.context_tokens) for stage in self.stages)

    @property
    def decode_per_sequence_ms(self) -> float:
        """What each sequence adds while weights dominate (of the slowest stage: pipelines overlap)."""
        return max(
            stage.decode_ms(1.0, self.context_tokens) - stage.decode_ms(0.0, self.context_tokens)
            for stage in self.stages
        )

    @property
    def kv_token_ms(self) -> float:
        """What each token of KV adds to a step that reads it (of the slowest stage)."""
        return max(stage.kv_each_token_ms for stage in self.stages)

    def decode_ms(self, batch: float, context_tokens: float | None = None) -> float:
        """Between two tokens of a sequence, with `batch` sequences running."""
        context = self.context_tokens if context_tokens is None else context_tokens
        micro = min(float(len(self.stages)), max(batch, 1.0))
        if micro == 1.0:
            return sum(stage.decode_ms(batch, context) for stage in self.stages)
        times = [stage.decode_ms(batch / micro, context) for stage in self.stages]
        return max(sum(times), micro * max(times))

    def prefill_latency_ms(self, tokens: float) -> float:
        """From the start of reading a prompt to its end, alone: stages add up."""
        return sum(stage.prefill_ms(tokens) for stage in self.stages)

    def prefill_busy_ms(self, tokens: float) -> float:
        """What a prompt takes of the pipeline's time: the slowest stage's share."""
        return max(stage.prefill_ms(tokens) for stage in self.stages)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Rate at which prompts of `context_tokens` tokens are read, one after the other."""
        if self.context_tokens <= 0:
            return 0.0
        return self.context_tokens / self.prefill_busy_ms(self.context_tokens) * 1e3

    def terms_ms(self, batch: float) -> dict[str, float]:
        """A step of `batch` sequences by term, over all stages, in the order in which ties are broken."""
        each = batch / min(float(len(self.stages)), max(batch, 1.0))
        terms = dict.fromkeys(("weights", "kv", "compute", "collectives", "overhead"), 0.0)
        for stage in self.stages:
            compute = stage.compute_each_ms * each
            terms["weights" if compute <= stage.weights_ms else "compute"] += max(
                compute, stage.weights_ms
            )
            terms["kv"] += stage.kv_each_token_ms * self.context_tokens * each
            terms["collectives"] += stage.collectives_ms + stage.collectives_each_ms * each
            terms["overhead"] += stage.overhead_ms + stage.overhead_each_ms * each
        return terms

    def bound_by(self, batch: float = 1.0) -> str:
        """The term that dominates a step of `batch` sequences."""
        terms = self.terms_ms(batch)
        return max(terms, key=lambda term: terms[term])


def step_times(
    plan: Plan,
    facts: ModelFacts,
    dtype: str,
    *,
    context_tokens: float,
    capacity_tokens: int | None = None,
) -> StepTimes:
    """Step times of a plan, unscaled. `capacity_tokens` is used where the plan states none; without either, what its
    ranks claim is taken to hold weights and KV. Raises InvalidInput for a device model that is not known."""
    groups = {group.ranks[0]: group for group in plan.groups if group.kind == "tensor"}
    hops = [group for group in plan.groups if group.kind == "pipeline"]
    stages = []
    for index, stage in enumerate(plan.stages):
        tensor = groups.get(index * plan.tp) or _assumed(plan.stages[index])
        hop = None if index == plan.pp - 1 else (hops[0] if hops else _assumed_hop(plan, index))
        stages.append(_stage_times(stage, tensor, hop, facts, dtype))
    capacity = plan.kv_tokens or capacity_tokens or _claimed_tokens(plan, facts, dtype)
    return StepTimes(stages=tuple(stages), context_tokens=context_tokens, capacity_tokens=capacity)


def _stage_times(
    stage: Stage,
    tensor: CommunicationGroup,
    hop: CommunicationGroup | None,
    facts: ModelFacts,
    dtype: str,
) -> StageTimes:
    device = device_facts(stage.device_model)
    layers, tp, width = stage.layers.count, stage.tp, BYTES_OF_DTYPE[dtype]
    weights = weights_bytes_per_rank(facts, layers=layers, tp=tp)
    kv = kv_bytes_per_rank(facts, dtype, layers=layers, tp=tp)
    # Two operations a parameter and token; two products (scores, values) of heads × head dim a token before it.
    compute_ms = 2 * weights / width / device.flops(dtype) * 1e3
    square_ms = 4 * facts.heads * facts.head_dim * layers / tp / device.flops(dtype) * 1e3
    latency, per_byte = all_reduce_ms(tensor.path, tensor.gb_s, tp)
    reduces, activation = ALL_REDUCES_PER_LAYER * layers, facts.hidden * width
    send_latency, send_per_byte = (0.0, 0.0) if hop is None else send_ms(hop.path, hop.gb_s)
    return StageTimes(
        overhead_ms=device.step_overhead_ms,
        overhead_each_ms=_sequence_overhead_ms(device, compute_ms),
        weights_ms=weights / device.weights_bytes_per_s * 1e3,
        compute_each_ms=compute_ms,
        kv_each_token_ms=kv / device.kv_bytes_per_s * 1e3,
        collectives_ms=reduces * latency + send_latency,
        collectives_each_ms=(reduces * per_byte + send_per_byte) * activation,
        attention_each_square_ms=square_ms,
    )


def _sequence_overhead_ms(device: DeviceFacts, compute_ms: float) -> float:
    if device.model != "cpu":
        return SEQUENCE_OVERHEAD_MS
    return CPU_SEQUENCE_OVERHEAD_MS + CPU_SMALL_BATCH * compute_ms


def _assumed(stage: Stage) -> CommunicationGroup:
    """The path of a group whose plan does not say: what the device itself brings."""
    device = device_facts(stage.device_model)
    if len({ref.node for ref in stage.devices}) > 1:
        path = "network"
    elif device.model == "cpu":
        path = "host"
    else:
        path = "nvlink" if device.link_gb_s else "pcie"
    gb_s = {"nvlink": device.link_gb_s, "pcie": device.pcie_gb_s}.get(path, 0.0)
    return CommunicationGroup.model_validate(
        {"kind": "tensor", "ranks": (0,), "path": path, "gb_s": gb_s}
    )


def _assumed_hop(plan: Plan, index: int) -> CommunicationGroup:
    """The path from a stage to the next one whose plan does not say."""
    first, second = plan.stages[index], plan.stages[index + 1]
    one_node = _node(first.devices) == _node(second.devices)
    path = "host" if one_node else "network"
    return CommunicationGroup.model_validate({"kind": "pipeline", "ranks": (0,), "path": path})


def _node(devices: tuple[DeviceRef, ...]) -> str:
    return devices[0].node


def _claimed_tokens(plan: Plan, facts: ModelFacts, dtype: str) -> int:
    layers = [stage.layers.count for stage in plan.stages]
    budgets = [float(stage.rank_bytes) for stage in plan.stages]
    return max(0, kv_tokens_left(facts, dtype, layers=layers, tp=plan.tp, budget_bytes=budgets))
