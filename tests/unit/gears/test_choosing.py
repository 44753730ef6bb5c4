"""A gear without named devices: which blocks it takes, and what is said where it fits nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexpipe.engines.layouts import check_layout
from flexpipe.gears.notation import check_notation, fit_gear, resolve_gear
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet, LinkKind
from flexpipe.model.plan import Plan
from flexpipe.testing.builders import device
from flexpipe.testing.fleets import cpu_nodes, twenty_seven, twenty_seven_spec, without
from flexpipe.testing.llamas import LLAMA_2_7B, LLAMA_2_70B, a_llama

FLEET = twenty_seven()
SMALL, LARGE = a_llama(LLAMA_2_7B), a_llama(LLAMA_2_70B)
MOST_OF_A_CARD = 70_000_000_000


def chosen(
    text: str,
    deployment: Deployment = LARGE,
    fleet: Fleet = FLEET,
    held: dict[DeviceRef, int] | None = None,
) -> list[str]:
    (plan,) = resolve_gear(text, deployment, fleet, held or {}).plans
    return [str(ref) for ref in plan.devices]


def held_on(*nodes: str) -> dict[DeviceRef, int]:
    return {ref: MOST_OF_A_CARD for ref in FLEET.refs() if ref.node in nodes or str(ref) in nodes}


def closed_on(*nodes: str) -> Fleet:
    """The fleet after every device of these nodes was preempted."""
    gone = {ref: "preempted" for ref in FLEET.refs() if ref.node in nodes}
    return without(FLEET, twenty_seven_spec(), gone)


def test_the_strongest_class_comes_first() -> None:
    assert chosen("tp4") == ["a1/g0", "a1/g1", "a1/g2", "a1/g3"]
    assert chosen("tp4", held=held_on("a1", "a2", "a3")) == ["b1/g0", "b1/g1", "b1/g2", "b1/g3"]
    assert chosen("tp8") == [f"a{node}/g{index}" for node in (1, 2) for index in range(4)]


def test_a_whole_block_is_taken_and_never_parts_of_two() -> None:
    held = held_on("a1/g0", "a2/g1", "a3", "b1", "b2")
    assert chosen("tp2", held=held) == ["a1/g2", "a1/g3"]
    with pytest.raises(
        InvalidInput, match=r"of the 5 that carry it 0 are free; held: a1/g0, a2/g1"
    ):
        chosen("tp4", held=held)


def test_a_small_plan_takes_a_broken_block_so_that_whole_ones_stay_whole() -> None:
    assert chosen("tp1", SMALL, held=held_on("a1/g0")) == ["a1/g1"]
    assert chosen("tp2", SMALL, held=held_on("a3/g3")) == ["a3/g0", "a3/g1"]


def test_stages_spread_evenly_over_nodes_as_engines_need_it() -> None:
    assert chosen("tp4pp3") == [f"a{node}/g{i}" for node in (1, 2, 3) for i in range(4)]
    three_by_two = chosen("tp2pp3", held=held_on("a1", "a2", "a3", "b1", "b2", "b3"))
    assert three_by_two == ["c1/g0", "c1/g1", "c2/g0", "c2/g1", "c3/g0", "c3/g1"]


def test_stages_of_unequal_cards_are_taken_where_equal_ones_are_not_there() -> None:
    """Two L40S and two A100 in pairs: a half of the layers does not fit on the first."""
    fleet = Fleet(nodes=tuple(n for n in FLEET.nodes if n.node in ("b1", "c1")))
    held = {device("b1/g2"): MOST_OF_A_CARD, device("b1/g3"): MOST_OF_A_CARD}
    (plan,) = resolve_gear("tp2pp2", LARGE, fleet, held).plans
    layers = {stage.device_model: stage.layers.count for stage in plan.stages}
    assert layers["A100-SXM4-80GB"] > layers["L40S"]


def test_several_plans_of_one_gear_do_not_share_devices() -> None:
    gear = resolve_gear("tp4 + tp4 + tp4", LARGE, FLEET, {})
    used = [ref for plan in gear.plans for ref in plan.devices]
    assert len(used) == len(set(used)) == 12


def test_devices_that_are_closed_are_never_taken() -> None:
    assert chosen("tp4", fleet=closed_on("a1")) == ["a2/g0", "a2/g1", "a2/g2", "a2/g3"]
    node = FLEET.node("b1")
    assert node is not None
    first = node.devices[0].model_copy(update={"closed": "rented out"})
    fleet = FLEET.with_node(node.model_copy(update={"devices": (first, *node.devices[1:])}))
    with pytest.raises(
        InvalidInput, match=r"'b1/g0' .*nothing new may be placed on it: rented out"
    ):
        resolve_gear("tp1@b1/g0", SMALL, fleet, {})


@pytest.mark.parametrize(
    ("text", "deployment", "gone", "says"),
    [
        (
            "tp4", LARGE, ("a1", "a2", "a3", "b1", "b2"),
            "class: it needs a block of 4 whose class carries tp4, and there is none; "
            "the largest that carries its own width has 2; "
            "closed: a1/g0 (it was preempted), a1/g1 (it was preempted), a1/g2 (it was preempted), "
            "a1/g3 (it was preempted) and 16 more",
        ),
        ("tp16", LARGE, (), "and there is none; the largest that carries its own width has 12"),
        ("tp8pp2", LARGE, (), "it needs 2 blocks of 8 whose class carries tp8, and there are 1"),
        (
            "tp1", LARGE, (),
            "memory: a rank needs 140.8 GB, and the largest block of 1 has 85.9 GB a device, "
            "of which 77.3 GB may be claimed",
        ),
        ("tp2", LARGE, ("a1", "a2", "a3", "b1", "b2"), "the largest block of 2 has 48.3 GB a device"),
    ],
)  # fmt: skip
def test_what_fits_nowhere_is_said_with_the_constraint_that_fails(
    text: str, deployment: Deployment, gone: tuple[str, ...], says: str
) -> None:
    fit = fit_gear(text, deployment, closed_on(*gone), {})
    assert fit.gear is None
    assert fit.reason is not None
    assert says in fit.reason
    assert "\n" not in fit.reason


def test_blocks_of_a_class_that_carries_no_group_are_named_by_their_class() -> None:
    apart = tuple(
        node.model_copy(
            update={
                "blocks": tuple(
                    block.model_copy(update={"kind": LinkKind.NETWORK}) for block in node.blocks
                )
            }
        )
        for node in FLEET.nodes
        if node.node in ("c1", "c2")
    )
    fleet = Fleet(nodes=apart)
    fit = fit_gear("tp2", SMALL, fleet, {})
    assert fit.reason is not None
    assert "the 2 of that size are of class network, which does not" in fit.reason


def test_a_gear_that_fits_comes_without_a_reason() -> None:
    fit = fit_gear("tp4", LARGE, FLEET, {})
    assert fit.reason is None
    assert fit.gear == resolve_gear("tp4", LARGE, FLEET, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp3", "must divide the model's 64 attention heads"),
        ("pp81", "must not exceed the model's 80 layers"),
        ("tp4 + gpu", "write it like tp1"),
        ("2000*tp4", "at most 1000"),
        ("pp2(10,10)", "must add up to the model's 80 layers"),
    ],
)
def test_what_no_fleet_could_make_is_a_mistake_and_not_a_shortage(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_notation(text, LARGE)
    assert says in str(caught.value)
    with pytest.raises(InvalidInput):
        fit_gear(text, LARGE, FLEET, {})


def test_cpu_slots_are_blocks_like_any_other() -> None:
    cpu = a_llama(memory_fraction=None)
    tiny = LLAMA_2_7B.model_copy(update={"weights_bytes": 500_000_000})
    engine = cpu.engine.model_copy(
        update={"kind": "sglang", "form": "cpu", "max_total_tokens": 512}
    )
    deployment = cpu.model_copy(
        update={"engine": engine, "model": cpu.model.model_copy(update={"facts": tiny})}
    )
    fleet = cpu_nodes(slots=2)
    assert chosen("tp2", deployment, fleet) == ["node-a/cpu0", "node-a/cpu1"]
    (plan,) = resolve_gear("pp2@node-a/cpu0,node-b/cpu0", deployment, fleet, {}).plans
    assert [group.path for group in plan.groups] == ["network"]
    assert [group.path for group in resolve_gear("tp2", deployment, fleet, {}).plans[0].groups] == [
        "host"
    ]


shapes = st.sampled_from(
    ["tp1", "tp2", "tp4", "tp8", "pp2", "tp2pp2", "tp2pp3", "tp4pp2", "tp4pp3"]
)


@given(
    text=shapes,
    large=st.booleans(),
    held=st.sets(st.sampled_from(FLEET.refs()), max_size=20),
    gone=st.sets(st.sampled_from(FLEET.refs()), max_size=14),
)
def test_whatever_is_chosen_is_whole_free_carried_and_can_be_started(
    text: str, large: bool, held: set[DeviceRef], gone: set[DeviceRef]
) -> None:
    fleet = without(FLEET, twenty_seven_spec(), dict.fromkeys(gone, "preempted"))
    deployment = LARGE if large else SMALL
    fit = fit_gear(text, deployment, fleet, dict.fromkeys(held, MOST_OF_A_CARD))
    again = fit_gear(
        text, deployment, fleet, dict.fromkeys(sorted(held, reverse=True), MOST_OF_A_CARD)
    )
    assert fit == again
    if fit.gear is None:
        assert fit.reason
        return
    for plan in fit.gear.plans:
        check_layout(plan, deployment.model)
        assert not set(plan.devices) & (held | gone)
        assert all(_is_whole_block(stage.devices, plan, fleet) for stage in plan.stages)
        for ref, need in plan.claims():
            found = fleet.device(ref)
            assert found is not None
            assert need <= found.memory_bytes


def _is_whole_block(refs: tuple[DeviceRef, ...], plan: Plan, fleet: Fleet) -> bool:
    return any(
        set(block.devices) == set(refs) and block.carries_tp(plan.tp) for block in fleet.blocks
    )
