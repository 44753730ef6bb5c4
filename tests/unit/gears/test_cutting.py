"""Layers a stage: evenly, by speed, and never more than memory holds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexpipe.gears.cutting import cut_layers, cut_layers_by_speed
from flexpipe.kernel.errors import InvalidInput
from flexpipe.testing.llamas import LLAMA_2_7B, LLAMA_2_70B


def test_equal_stages_are_cut_evenly_and_the_last_ones_take_the_rest() -> None:
    assert [each.count for each in cut_layers(LLAMA_2_70B, 3, None)] == [26, 27, 27]
    assert cut_layers_by_speed(LLAMA_2_70B, [864.0] * 3) == (26, 27, 27)


def test_layers_follow_the_stages_memory_bandwidth() -> None:
    """H100 3,350 and L40S 864 GB/s: 63.6 and 16.4 of 80 layers."""
    assert cut_layers_by_speed(LLAMA_2_70B, [3350.0, 864.0]) == (64, 16)
    assert cut_layers_by_speed(LLAMA_2_70B, [864.0, 3350.0]) == (16, 64)


def test_what_memory_does_not_hold_goes_to_the_others() -> None:
    assert cut_layers_by_speed(LLAMA_2_70B, [3350.0, 864.0], [50, 80]) == (50, 30)
    assert cut_layers_by_speed(LLAMA_2_70B, [1.0, 1.0, 1.0], [80, 10, 80]) == (35, 10, 35)


def test_the_slowest_stage_has_at_least_one_layer() -> None:
    assert cut_layers_by_speed(LLAMA_2_7B, [8000.0, 1.0, 1.0]) == (30, 1, 1)


def test_stages_that_cannot_hold_the_model_are_refused_with_what_they_hold() -> None:
    with pytest.raises(InvalidInput, match=r"layers: \(20, 30\) is not accepted: .* 80 layers"):
        cut_layers_by_speed(LLAMA_2_70B, [1.0, 1.0], [20, 30])


@given(
    stages=st.lists(st.tuples(st.floats(1.0, 8000.0), st.integers(1, 80)), min_size=1, max_size=12)
)
def test_every_cut_is_whole_within_its_bounds_and_the_same_each_time(
    stages: list[tuple[float, int]],
) -> None:
    speeds, most = [speed for speed, _ in stages], [limit for _, limit in stages]
    if sum(most) < LLAMA_2_70B.layers:
        with pytest.raises(InvalidInput):
            cut_layers_by_speed(LLAMA_2_70B, speeds, most)
        return
    counts = cut_layers_by_speed(LLAMA_2_70B, speeds, most)
    assert sum(counts) == LLAMA_2_70B.layers
    assert all(1 <= count <= limit for count, limit in zip(counts, most, strict=True))
    assert counts == cut_layers_by_speed(LLAMA_2_70B, speeds, most)


@given(speeds=st.lists(st.floats(1.0, 8000.0), min_size=1, max_size=8))
def test_a_faster_stage_never_has_fewer_layers(speeds: list[float]) -> None:
    ordered = sorted(speeds)
    counts = cut_layers_by_speed(LLAMA_2_70B, ordered)
    assert all(a <= b + 1 for a, b in pairwise(counts))
