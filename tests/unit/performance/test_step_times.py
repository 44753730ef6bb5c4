"""Steps of a plan: what they are made of, and public facts about layouts."""

from __future__ import annotations

import pytest

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import ModelFacts
from flexpipe.performance.collectives import all_reduce_ms
from flexpipe.performance.outlook import plan_outlook
from flexpipe.performance.steps import StepTimes, step_times
from flexpipe.testing.builders import a_plan
from flexpipe.testing.llamas import (
    A100,
    H100,
    L40S,
    LLAMA_2_7B,
    LLAMA_2_70B,
    a_llama,
    a_load,
    a_plan_of,
)

IN_EIGHT_BITS = LLAMA_2_70B.model_copy(update={"weights_bytes": 68_976_648_192})
"""What L40S rows were measured with: 16-bit weights do not leave four of them room."""


def times_of(
    device: str, *, tp: int = 1, pp: int = 1, path: str = "nvlink", facts: ModelFacts = LLAMA_2_70B
) -> StepTimes:
    plan = a_plan_of(facts, device, tp=tp, pp=pp, path=path)
    return step_times(plan, facts, "bfloat16", context_tokens=1000.0)


def throughput(
    device: str, tp: int, path: str, facts: ModelFacts = LLAMA_2_70B, fraction: float = 0.95
) -> float:
    """Output tokens a second of prompts of 1,000 and outputs of 1,000, with more requests than can be served.

    The measured rows left 95 % of what the weights do not take to KV.
    """
    plan = a_plan_of(facts, device, tp=tp, path=path, memory_fraction=fraction)
    return plan_outlook(plan, a_llama(facts), a_load(1e5, 1000.0, 1000.0)).tokens_per_s


def test_one_sequence_on_one_card_reads_the_weights_once_a_token() -> None:
    """13.48 GB at 0.88 of 3,350 GB/s is 4.57 ms; the rest is overhead."""
    times = times_of(H100, facts=LLAMA_2_7B)
    assert times.terms_ms(1.0)["weights"] == pytest.approx(4.571, abs=0.01)
    assert 5.5 < times.decode_ms(1.0) < 8.0  # public figures of 8B models: 6 to 8 ms
    assert times.bound_by(1.0) == "weights"


def test_a_large_batch_on_one_card_is_bound_by_arithmetic_or_kv() -> None:
    times = times_of(A100, facts=LLAMA_2_7B)
    assert times.bound_by(256.0) in ("compute", "kv")
    slopes = [times.decode_ms(b + 1) - times.decode_ms(b) for b in (1.0, 100.0, 250.0)]
    assert slopes == sorted(slopes)
    assert slopes[-1] > slopes[0]


def test_small_batches_follow_the_base_and_the_slope() -> None:
    times = times_of(H100, tp=4, path="nvswitch")
    for batch in (1.0, 8.0, 32.0):
        line = times.decode_base_ms + times.decode_per_sequence_ms * batch
        assert times.decode_ms(batch) == pytest.approx(line, rel=1e-9)


def test_a_70b_in_16_bits_leaves_two_cards_no_room_for_kv() -> None:
    """Measured on H100: 785 → 3,775 tokens/s, 4.8 times, from TP2 to TP4."""
    ratio = throughput(H100, 4, "nvswitch") / throughput(H100, 2, "nvswitch")
    assert 3.6 < ratio < 6.2


@pytest.mark.parametrize(
    ("device", "path", "facts", "measured"),
    [
        (H100, "nvswitch", LLAMA_2_70B, 1.66),
        (A100, "nvlink", LLAMA_2_70B, 1.82),
        (L40S, "pcie", IN_EIGHT_BITS, 1.02),
    ],
)
def test_going_from_four_to_eight_cards_pays_as_their_links_allow(
    device: str, path: str, facts: ModelFacts, measured: float
) -> None:
    ratio = throughput(device, 8, path, facts) / throughput(device, 4, path, facts)
    assert ratio == pytest.approx(measured, rel=0.15)


def test_over_pcie_a_pipeline_delivers_more_and_over_nvlink_tensor_parallelism_answers_sooner() -> (
    None
):
    load = a_load(1e5, 1000.0, 1000.0)
    deployment = a_llama(IN_EIGHT_BITS)
    wide, deep = (
        plan_outlook(
            a_plan_of(IN_EIGHT_BITS, L40S, tp=tp, pp=pp, path="pcie", between="pcie"),
            deployment,
            load,
        )
        for tp, pp in ((8, 1), (1, 8))
    )
    assert deep.tokens_per_s > wide.tokens_per_s
    assert times_of(A100, tp=8).decode_ms(1.0) < times_of(A100, tp=1, pp=8).decode_ms(1.0) / 3


def test_stages_add_up_for_one_sequence_and_overlap_for_many() -> None:
    whole, halves = times_of(A100, tp=4), times_of(A100, tp=4, pp=2)
    assert halves.decode_ms(1.0) == pytest.approx(whole.decode_ms(1.0), rel=0.1)
    # Twice the devices. Each micro-batch reads the weights anew: what is saved is the work that grows with the batch.
    assert halves.decode_ms(200.0) < 0.9 * whole.decode_ms(200.0)
    assert halves.prefill_busy_ms(2000) == pytest.approx(
        halves.prefill_latency_ms(2000) / 2, rel=0.02
    )


def test_the_slowest_stage_sets_the_pace_of_a_pipeline() -> None:
    plan = a_plan_of(LLAMA_2_70B, A100, tp=4, pp=2)
    slow = plan.stages[1].model_copy(update={"device_model": "A100-PCIe-80GB"})
    mixed = type(plan)(**{**dict(plan), "stages": (plan.stages[0], slow)})
    times = step_times(mixed, LLAMA_2_70B, "bfloat16", context_tokens=1000.0)
    slowest = max(stage.decode_ms(50.0, 1000.0) for stage in times.stages)
    assert times.decode_ms(100.0) == pytest.approx(2 * slowest)


def test_long_prompts_cost_more_a_token() -> None:
    times = times_of(H100, tp=4, path="nvswitch")
    per_token = [times.prefill_latency_ms(n) / n for n in (2_000.0, 16_000.0, 64_000.0)]
    assert per_token[0] < per_token[1] < per_token[2]


def test_a_plan_that_says_nothing_of_its_paths_is_reckoned_by_its_devices() -> None:
    plan = a_plan_of(LLAMA_2_70B, H100, tp=4, pp=2)
    silent = type(plan)(**{**dict(plan), "groups": ()})
    times = step_times(silent, LLAMA_2_70B, "bfloat16", context_tokens=1000.0)
    assert times.decode_ms(1.0) == pytest.approx(
        step_times(plan, LLAMA_2_70B, "bfloat16", context_tokens=1000.0).decode_ms(1.0), rel=0.05
    )
    cpu = step_times(
        a_plan("node-a/cpu0", "node-a/cpu1", tp=2), LLAMA_2_7B, "float32", context_tokens=10.0
    )
    assert cpu.terms_ms(1.0)["collectives"] > 0


def test_capacity_is_the_plan_s_own_then_the_engine_s_then_what_its_ranks_claim() -> None:
    plan = a_plan_of(LLAMA_2_7B, H100)
    open_plan = type(plan)(**{**dict(plan), "kv_tokens": None})

    def capacity(which: object, engine: int | None = None) -> int:
        return step_times(
            which,  # type: ignore[arg-type]
            LLAMA_2_7B,
            "bfloat16",
            context_tokens=1.0,
            capacity_tokens=engine,
        ).capacity_tokens

    assert capacity(plan, 5) == plan.kv_tokens
    assert capacity(open_plan, 5) == 5
    assert capacity(open_plan) == pytest.approx(plan.kv_tokens or 0, rel=0.05)


SMOLLM2_135M = LLAMA_2_7B.model_copy(
    update={
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "hidden": 576,
        "weights_bytes": 651_000_000,
    }
)


@pytest.mark.parametrize(("batch", "measured_tokens_per_s"), [(1, 11.8), (8, 35.6)])
def test_a_small_model_on_a_core_gives_what_was_measured(
    batch: int, measured_tokens_per_s: float
) -> None:
    plan = a_plan_of(SMOLLM2_135M, "cpu")
    times = step_times(plan, SMOLLM2_135M, "float32", context_tokens=200.0)
    assert batch / times.decode_ms(batch) * 1e3 == pytest.approx(measured_tokens_per_s, rel=0.2)
    assert times.prefill_tokens_per_s == pytest.approx(300, rel=0.25)


def test_an_unknown_device_under_a_plan_is_named() -> None:
    plan = a_plan_of(LLAMA_2_7B, H100)
    stage = plan.stages[0].model_copy(update={"device_model": "abacus"})
    odd = type(plan)(**{**dict(plan), "stages": (stage,)})
    with pytest.raises(InvalidInput, match="device model: 'abacus'"):
        step_times(odd, LLAMA_2_7B, "bfloat16", context_tokens=1.0)


@pytest.mark.parametrize("path", ["nvswitch", "nvlink", "pcie", "host", "network"])
def test_talking_costs_more_in_wider_groups_and_nothing_alone(path: str) -> None:
    latencies = [all_reduce_ms(path, 0.0, width)[0] for width in (1, 2, 4, 8, 16)]
    assert latencies[0] == 0
    assert latencies == sorted(latencies)
    assert all_reduce_ms(path, 10.0, 2)[1] == pytest.approx(2 * all_reduce_ms(path, 20.0, 2)[1])


@pytest.mark.parametrize(
    ("path", "gb_s", "width", "measured_us"),
    [
        # 16 MiB in captured graphs, H100 NVSwitch and A100 NVLink (aiconfigurator's public tables).
        ("nvswitch", 450.0, 2, 156.3),
        ("nvswitch", 450.0, 4, 191.2),
        ("nvswitch", 450.0, 8, 177.8),
        ("nvlink", 300.0, 2, 222.2),
        ("nvlink", 300.0, 4, 288.1),
        ("nvlink", 300.0, 8, 364.3),
    ],
)
def test_an_all_reduce_of_16_mib_takes_what_was_measured(
    path: str, gb_s: float, width: int, measured_us: float
) -> None:
    latency, per_byte = all_reduce_ms(path, gb_s, width)
    assert (latency + per_byte * 16 * 2**20) * 1e3 == pytest.approx(measured_us, rel=0.4)
