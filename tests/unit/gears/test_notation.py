"""What people type for gears, and the one-line errors they get."""

from __future__ import annotations

import pytest

from flexpipe.gears.facts import facts_of
from flexpipe.gears.notation import resolve_gear
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment, EngineSettings, ModelRef
from flexpipe.model.fleet import Device, DeviceRef, Fleet, Node
from flexpipe.model.gear import EMPTY_GEAR
from flexpipe.performance.memory import kv_bytes_per_token

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def deployment(**changes: object) -> Deployment:
    facts = facts_of({**CONFIG, **changes}, weights_bytes=650_000_000)
    return Deployment(
        name="smol",
        model=ModelRef(name="smol", path="models/smol", facts=facts),
        engine=EngineSettings(kind="sglang"),
    )


def fleet(*sizes: int, memory_bytes: int = 4_000_000_000) -> Fleet:
    return Fleet(
        nodes=tuple(
            Node(
                node=f"node-{'abc'[index]}",
                address="127.0.0.1",
                devices=tuple(
                    Device(device=f"cpu{slot}", kind="cpu", memory_bytes=memory_bytes)
                    for slot in range(size)
                ),
            )
            for index, size in enumerate(sizes)
        )
    )


def test_a_pipeline_is_laid_over_the_devices_named_in_rank_order() -> None:
    gear = resolve_gear("pp2(20,10)@node-a/cpu1,node-a/cpu0", deployment(), fleet(2), {})
    (plan,) = gear.plans
    assert [str(ref) for ref in plan.devices] == ["node-a/cpu1", "node-a/cpu0"]
    assert [(stage.layers.first, stage.layers.end) for stage in plan.stages] == [(0, 20), (20, 30)]
    assert plan.shape == "pp2"
    assert [(shard.rank, shard.first_head, shard.end_head) for shard in plan.kv_partition] == [
        (0, 0, 3),
        (1, 0, 3),
    ]


def test_equal_plans_have_equal_ids_and_other_devices_give_another_id() -> None:
    first = resolve_gear("tp1@node-a/cpu0", deployment(), fleet(2), {})
    again = resolve_gear("tp1", deployment(), fleet(2), {})
    other = resolve_gear("tp1@cpu1", deployment(), fleet(2), {})
    assert first.id == again.id
    assert first.id != other.id


def test_without_devices_the_lowest_free_ones_are_taken() -> None:
    held = {DeviceRef(node="node-a", device="cpu0"): 3_000_000_000}
    (plan,) = resolve_gear("tp1", deployment(), fleet(2), held).plans
    assert [str(ref) for ref in plan.devices] == ["node-a/cpu1"]


def test_two_plans_side_by_side_do_not_share_memory_that_is_not_there() -> None:
    gear = resolve_gear("2*tp1 + tp1", deployment(), fleet(2), {})
    assert sorted(str(plan.devices[0]) for plan in gear.plans) == ["node-a/cpu0", "node-a/cpu1"]
    assert sorted(share.weight for share in gear.shares) == [1.0, 2.0]


def test_a_pipeline_may_span_nodes_and_says_so() -> None:
    (plan,) = resolve_gear("pp2@node-a/cpu0,node-b/cpu0", deployment(), fleet(1, 1), {}).plans
    assert plan.nodes == ("node-a", "node-b")
    assert [group.path for group in plan.groups] == ["network"]


def test_the_empty_gear_can_be_named() -> None:
    assert resolve_gear("empty", deployment(), fleet(1), {}) == EMPTY_GEAR


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "write it like tp1"),
        ("gpu4", "write it like tp1"),
        ("tp0", "start at 1"),
        ("tp2", "must divide the model's 9 attention heads"),
        ("tp9", "largest"),
        ("pp31", "must not exceed the model's 30 layers"),
        ("pp2(20,20)", "must add up to the model's 30 layers"),
        ("pp2(10,10,10)", "one count for each of the 2 stages"),
        ("pp2@cpu0", "takes exactly 2 devices"),
        ("pp2@cpu0,cpu0", "a device appears twice"),
        ("tp1@cpu7", "no such device in the fleet; there are: node-a/cpu0"),
        ("tp3@node-a/cpu0,node-a/cpu1,node-b/cpu0", "must lie on one node"),
        ("tp1@cpu0", "several nodes have it"),
        ("0*tp1", "must be above 0"),
        ("1001*tp1", "at most 1000"),
        ("tp1@node-a/cpu0 + 2*tp1@node-a/cpu0", "a plan appears twice"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_that_names_the_fix(text: str, names: str) -> None:
    shape = fleet(2, 1) if "node-b" in text or text == "tp1@cpu0" else fleet(2)
    expected = "most on one node 2" if names == "largest" else names
    with pytest.raises(InvalidInput) as caught:
        resolve_gear(text, deployment(), shape, {})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tied_llama_is_refused_under_pipeline_parallelism_because_the_engine_crashes() -> None:
    with pytest.raises(InvalidInput, match="save the checkpoint untied"):
        resolve_gear("pp2", deployment(tie_word_embeddings=True), fleet(2), {})
    assert resolve_gear("tp1", deployment(tie_word_embeddings=True), fleet(2), {}).label == "tp1"


def test_a_device_too_small_for_a_rank_is_named_with_both_sizes() -> None:
    with pytest.raises(InvalidInput, match=r"needs \d\.\d+ GB and the device has 1\.00 GB"):
        resolve_gear("tp1@cpu0", deployment(), fleet(1, memory_bytes=1_000_000_000), {})


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"]
)
def test_a_config_without_a_needed_field_is_refused_by_its_name(field: str) -> None:
    config = {name: value for name, value in CONFIG.items() if name != field}
    with pytest.raises(InvalidInput, match=field):
        facts_of(config, weights_bytes=1)


def test_kv_bytes_of_known_models_are_right() -> None:
    """Qwen3-8B: 36 layers, 8 KV heads of 128, bf16 = 147,456 bytes a token."""
    facts = facts_of(
        {
            **CONFIG,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        weights_bytes=1,
    )
    assert kv_bytes_per_token(facts, "bfloat16") == 147_456


def test_a_device_of_another_kind_than_the_engine_runs_on_is_refused() -> None:
    on_gpus = deployment()
    engine = on_gpus.engine.model_copy(update={"form": "cuda"})
    with pytest.raises(InvalidInput, match=r"of kind cpu, and engine\.form is cuda"):
        resolve_gear("tp1", on_gpus.model_copy(update={"engine": engine}), fleet(1), {})
