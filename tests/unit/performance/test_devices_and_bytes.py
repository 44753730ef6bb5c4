"""The table of devices, and bytes of KV and weights against published figures."""

from __future__ import annotations

import pytest

from flexpipe.kernel.errors import InvalidInput
from flexpipe.performance.devices import DEVICES, device_facts
from flexpipe.performance.memory import (
    kv_bytes_per_rank,
    kv_bytes_per_token,
    kv_tokens_left,
    weights_bytes_per_rank,
)
from flexpipe.testing.llamas import H100, LLAMA_2_7B, LLAMA_2_70B

LLAMA_31_8B = LLAMA_2_7B.model_copy(update={"kv_heads": 8, "weights_bytes": 16_060_522_496})
QWEN3_235B_HEADS = LLAMA_2_70B.model_copy(update={"layers": 94, "kv_heads": 4})


def test_a_device_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidInput) as caught:
        device_facts("H100-SXM6")
    assert str(caught.value).startswith(
        "device model: 'H100-SXM6' is not accepted: use one of V100-SXM2-32GB"
    )
    assert "\n" not in str(caught.value)


def test_every_device_is_filed_under_its_own_name() -> None:
    assert all(name == facts.model for name, facts in DEVICES.items())
    assert {H100, "A100-SXM4-80GB", "L40S", "cpu"} <= set(DEVICES)


@pytest.mark.parametrize(
    ("facts", "tp", "expected"),
    [
        (LLAMA_2_7B, 1, 524_288),
        (LLAMA_2_7B, 8, 65_536),
        (LLAMA_2_70B, 1, 327_680),
        (LLAMA_2_70B, 8, 40_960),
        (LLAMA_2_70B, 16, 40_960),  # eight KV heads on sixteen ranks: each is held twice
        (LLAMA_31_8B, 1, 131_072),
        (LLAMA_31_8B, 4, 32_768),
        (QWEN3_235B_HEADS, 1, 192_512),
        (QWEN3_235B_HEADS, 8, 48_128),  # measured: eight ranks move twice the formula's bytes
    ],
)
def test_kv_bytes_of_a_rank_are_those_of_the_published_tables(
    facts: object, tp: int, expected: int
) -> None:
    assert kv_bytes_per_rank(facts, "bfloat16", layers=facts.layers, tp=tp) == expected  # type: ignore[attr-defined, arg-type]


def test_kv_of_all_ranks_is_that_of_the_heads_which_are_held() -> None:
    for tp in (1, 2, 4, 8, 16):
        held = tp * kv_bytes_per_rank(LLAMA_2_70B, "bfloat16", layers=80, tp=tp)
        assert held == kv_bytes_per_token(LLAMA_2_70B, "bfloat16") * max(8, tp) // 8


def test_a_stage_holds_its_own_layers_only() -> None:
    assert kv_bytes_per_rank(LLAMA_2_70B, "bfloat16", layers=20, tp=4) == 81_920 // 4
    assert weights_bytes_per_rank(LLAMA_2_70B, layers=20, tp=4) == 137_953_296_384 / 16


def test_a_card_of_24_gb_holds_the_tokens_that_were_measured_on_it() -> None:
    """RTX 4090, Llama-3.1-8B, fraction 0.9: 41,408 tokens were reported; within a tenth."""
    budget = 0.9 * device_facts("RTX4090").memory_bytes - 1.5e9
    tokens = kv_tokens_left(LLAMA_31_8B, "bfloat16", layers=[32], tp=1, budget_bytes=[budget])
    assert tokens == pytest.approx(41_408, rel=0.1)


def test_the_tightest_stage_decides_what_a_pipeline_holds() -> None:
    roomy = kv_tokens_left(LLAMA_2_70B, "bfloat16", layers=[40, 40], tp=4, budget_bytes=[70e9] * 2)
    tight = kv_tokens_left(
        LLAMA_2_70B, "bfloat16", layers=[40, 40], tp=4, budget_bytes=[70e9, 40e9]
    )
    assert 0 < tight < roomy
    assert (
        kv_tokens_left(LLAMA_2_70B, "bfloat16", layers=[80], tp=1, budget_bytes=[70e9]) < 0
    )  # the weights alone do not fit
