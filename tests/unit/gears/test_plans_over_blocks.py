"""Plans over a fleet with blocks: what they say of their devices and paths, and what is refused."""

from __future__ import annotations

import pytest

from flexpipe.engines.layouts import check_layout
from flexpipe.gears.layout import build_plan
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import Block, Fleet
from flexpipe.model.plan import Plan
from flexpipe.performance.devices import device_facts
from flexpipe.performance.memory import kv_bytes_per_rank, weights_bytes_per_rank
from flexpipe.testing.builders import device
from flexpipe.testing.fleets import twenty_seven
from flexpipe.testing.llamas import A100, H100, L40S, LLAMA_2_70B, a_llama

FLEET = twenty_seven()
LARGE = a_llama(LLAMA_2_70B)


def laid(text: str, tp: int, pp: int = 1, deployment: Deployment = LARGE, **more: object) -> Plan:
    refs = [device(name) for name in text.split()]
    return build_plan(deployment, tp=tp, pp=pp, devices=refs, fleet=FLEET, **more)  # type: ignore[arg-type]


def on(node: str, count: int) -> str:
    return " ".join(f"{node}/g{index}" for index in range(count))


def paths(plan: Plan) -> list[tuple[str, float]]:
    return sorted({(group.path, group.gb_s) for group in plan.groups})


def test_a_plan_names_its_device_model_and_the_path_of_its_group() -> None:
    plan = laid(on("a1", 4), 4)
    assert [stage.device_model for stage in plan.stages] == [H100]
    assert paths(plan) == [("nvswitch", 450.0)]


def test_a_tensor_group_may_span_nodes_of_one_nvswitch_domain() -> None:
    plan = laid(f"{on('a1', 4)} {on('a2', 4)}", 8)
    assert plan.nodes == ("a1", "a2")
    assert paths(plan) == [("nvswitch", 450.0)]
    check_layout(plan, LARGE.model)


@pytest.mark.parametrize(
    ("text", "tp", "pp", "expected"),
    [
        (f"{on('b1', 4)} {on('b2', 4)}", 4, 2, [("network", 25.0), ("nvlink", 300.0)]),
        (f"{on('a1', 4)} {on('a2', 4)}", 4, 2, [("nvswitch", 450.0)]),
        ("c1/g0 c1/g1 c2/g0 c2/g1", 1, 4, [("pcie", 32.0)]),  # slower than their network
        (
            f"{on('a1', 4)} {on('b1', 4)}",
            4,
            2,
            [("network", 25.0), ("nvlink", 300.0), ("nvswitch", 450.0)],
        ),
    ],
)
def test_a_pipeline_s_path_is_that_of_its_slowest_hop(
    text: str, tp: int, pp: int, expected: list[tuple[str, float]]
) -> None:
    assert paths(laid(text, tp, pp)) == expected


def test_a_worn_link_shows_in_the_path() -> None:
    nodes = tuple(
        node.model_copy(
            update={"blocks": tuple(b.model_copy(update={"gb_s": 200.0}) for b in node.blocks)}
        )
        if node.node == "b1"
        else node
        for node in FLEET.nodes
    )
    refs = [device(name) for name in on("b1", 4).split()]
    plan = build_plan(LARGE, tp=4, pp=1, devices=refs, fleet=Fleet(nodes=nodes))
    assert paths(plan) == [("nvlink", 200.0)]


def test_a_rank_claims_its_share_of_the_device_and_the_tightest_stage_decides_on_kv() -> None:
    plan = laid(f"{on('a1', 2)} {on('c1', 2)}", 2, 2)
    budgets = [int(0.9 * device_facts(name).memory_bytes) for name in (H100, L40S)]
    assert [stage.rank_bytes for stage in plan.stages] == budgets
    left = [
        (budget - 1_500_000_000 - weights_bytes_per_rank(LLAMA_2_70B, layers=n, tp=2))
        / kv_bytes_per_rank(LLAMA_2_70B, "bfloat16", layers=n, tp=2)
        for budget, n in zip(budgets, [stage.layers.count for stage in plan.stages], strict=True)
    ]
    assert plan.kv_tokens == int(min(left))
    assert [stage.device_model for stage in plan.stages] == [H100, L40S]


def test_without_a_share_a_rank_claims_what_it_needs_and_the_engine_s_setting_holds() -> None:
    plan = laid(on("a1", 4), 4, deployment=a_llama(LLAMA_2_70B, memory_fraction=None))
    assert plan.kv_tokens is None
    assert plan.stages[0].rank_bytes < 40e9


def test_unequal_stages_are_cut_by_speed_and_equal_ones_evenly() -> None:
    mixed = laid(f"{on('a1', 4)} {on('b1', 4)}", 4, 2)
    first, second = (stage.layers.count for stage in mixed.stages)
    speeds = [device_facts(name).weights_bytes_per_s for name in (H100, A100)]
    assert first / second == pytest.approx(speeds[0] / speeds[1], rel=0.1)
    even = laid(f"{on('b1', 4)} {on('b2', 4)}", 4, 2)
    assert [stage.layers.count for stage in even.stages] == [40, 40]
    given = laid(f"{on('a1', 4)} {on('b1', 4)}", 4, 2, counts=(30, 50))
    assert [stage.layers.count for stage in given.stages] == [30, 50]


@pytest.mark.parametrize(
    ("text", "tp", "pp", "says"),
    [
        (
            "c1/g0 c1/g1 c2/g0 c2/g1",
            4,
            1,
            "their block c is of class network, which does not carry tp4",
        ),
        ("b1/g0 b2/g0", 2, 1, "their block b is of class network, which does not carry tp2"),
        ("a1/g0 b1/g0", 2, 1, "tp2 needs its 2 devices in one block, and no block holds these"),
        (on("a1", 1), 1, 1, "a rank needs 140.80 GB and may claim 77.31 GB"),
        (on("c1", 2), 2, 1, "a rank needs 71.15 GB and may claim 43.49 GB (0.9 of the device's 48.32 GB)"),
        ("a1/g0 c1/g0", 1, 2, "the stages hold 67 of the model's 80 layers"),
        ("a1/g0 a1/g1 a2/g0", 1, 3, "equally many ranks on each node"),
        (on("a1", 3), 3, 1, "must divide the model's 64 attention heads"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_in_one_line_with_its_numbers(
    text: str, tp: int, pp: int, says: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        laid(text, tp, pp)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stage_lies_on_devices_of_one_model() -> None:
    b1 = FLEET.node("b1")
    assert b1 is not None
    odd = b1.devices[1].model_copy(update={"model": "A100-PCIe-80GB"})
    node = b1.model_copy(update={"devices": (b1.devices[0], odd, *b1.devices[2:])})
    refs = [device(name) for name in on("b1", 4).split()]
    with pytest.raises(InvalidInput, match="a stage lies on one model"):
        build_plan(LARGE, tp=4, pp=1, devices=refs, fleet=FLEET.with_node(node))


def test_where_two_equal_blocks_join_the_same_devices_the_first_by_id_counts() -> None:
    c1 = FLEET.node("c1")
    assert c1 is not None
    pair = next(block for block in c1.blocks if block.size == 2)
    twin: Block = pair.model_copy(update={"id": "a-twin", "gb_s": 7.0})
    fleet = FLEET.with_node(c1.model_copy(update={"blocks": (*c1.blocks, twin)}))
    small = a_llama()
    refs = [device("c1/g0"), device("c1/g1")]
    plan = build_plan(small, tp=2, pp=1, devices=refs, fleet=fleet)
    assert paths(plan) == [("pcie", 7.0)]
