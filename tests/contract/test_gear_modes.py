"""Laws that every registered gear mode keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexpipe.gears.facts import facts_of
from flexpipe.gears.modes import MODES, mode_of
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment, EngineSettings, ModelRef
from flexpipe.model.fleet import DeviceRef

FACTS = facts_of(
    {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_size": 512,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    weights_bytes=100_000_000,
)
DEPLOYMENT = Deployment(
    name="m",
    model=ModelRef(name="m", path="m", facts=FACTS),
    engine=EngineSettings(kind="emulated"),
)


@given(tp=st.integers(1, 16), pp=st.integers(1, 14))
def test_every_shape_is_laid_out_whole_by_exactly_one_mode_or_refused(tp: int, pp: int) -> None:
    assert sum(mode.takes(tp, pp) for mode in MODES) == 1
    devices = [DeviceRef(node="n", device=f"d{index}") for index in range(tp * pp)]
    try:
        plan = mode_of(tp, pp).plan(DEPLOYMENT, devices, tp=tp, pp=pp, counts=None)
    except InvalidInput:
        assert FACTS.heads % tp or pp > FACTS.layers
        return
    assert plan.devices == tuple(devices)
    assert plan.stages[-1].layers.end == FACTS.layers
    held = {
        (layer, head)
        for shard in plan.kv_partition
        for layer in range(shard.layers.first, shard.layers.end)
        for head in range(shard.first_head, shard.end_head)
    }
    assert held == {
        (layer, head) for layer in range(FACTS.layers) for head in range(FACTS.kv_heads)
    }
    assert sum(need for _, need in plan.claims()) >= FACTS.weights_bytes


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_no_mode_puts_a_tensor_parallel_group_across_nodes(mode: object) -> None:
    devices = [DeviceRef(node=f"n{index % 2}", device=f"d{index}") for index in range(4)]
    pp = 1 if mode.name == "aggregated" else 2  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match="must lie on one node"):
        mode.plan(DEPLOYMENT, devices[: 2 * pp], tp=2, pp=pp, counts=None)  # type: ignore[attr-defined]
