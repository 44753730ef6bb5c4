"""How blocks are cut: the fleet of the story, and shapes that show a rule each."""

from __future__ import annotations

import pytest

from flexpipe.events.fleet import Fabric
from flexpipe.fragments.blocks import carve
from flexpipe.model.fleet import Block, Device, DeviceRef, Fleet, LinkKind, Node
from flexpipe.testing.builders import device
from flexpipe.testing.fleets import twenty_seven, twenty_seven_spec, without


def of_domain(fleet: Fleet, domain: str) -> dict[str, str]:
    """Blocks of a domain in short: `a1:0123 a2:01`."""
    return {block.id: short(block) for block in fleet.blocks if block.id.split(".")[0] == domain}


def short(block: Block) -> str:
    by_node: dict[str, str] = {}
    for ref in block.devices:
        by_node[ref.node] = by_node.get(ref.node, "") + ref.device.removeprefix("g")
    return " ".join(f"{node}:{devices}" for node, devices in by_node.items())


def sizes(fleet: Fleet, domain: str) -> list[int]:
    return sorted((b.size for b in fleet.blocks if b.id.split(".")[0] == domain), reverse=True)


def lose(*names: str) -> Fleet:
    lost = {device(name): "preempted" for name in names}
    return without(twenty_seven(), twenty_seven_spec(), lost)


def node(name: str, count: int, model: str = "L40S") -> Node:
    every = (
        Device(device=f"g{i}", kind="emulated", memory_bytes=1, model=model) for i in range(count)
    )
    return Node(node=name, devices=tuple(every))


def fabric(name: str, kind: LinkKind, *ids: int) -> Fabric:
    return Fabric(name=name, kind=kind, gb_s=10, devices=tuple(f"g{i}" for i in ids))


def test_twelve_over_three_nodes_of_four() -> None:
    fleet = twenty_seven()
    assert sizes(fleet, "a") == [12, 8, *[4] * 3, *[2] * 6, *[1] * 12]
    blocks = of_domain(fleet, "a")
    assert blocks["a.8-0"] == "a1:0123 a2:0123"
    assert [blocks[f"a.4-{i}"] for i in range(3)] == ["a1:0123", "a2:0123", "a3:0123"]


def test_what_remains_after_a_card_is_cut_along_whole_nodes() -> None:
    blocks = of_domain(lose("a2/g1"), "a")
    assert blocks["a"] == "a1:0123 a2:023 a3:0123"
    assert blocks["a.8-0"] == "a1:0123 a3:0123"
    assert blocks["a.4-2"] == "a3:0123", "a block that nothing happened to keeps its name"
    assert blocks["a.2-3"] == "a2:23"
    assert blocks["a.1-4"] == "a2:0"
    assert "a.4-1" not in blocks


def test_broken_nodes_join_each_other_and_leave_whole_ones_whole() -> None:
    blocks = of_domain(lose("a1/g0", "a2/g3"), "a")
    assert blocks["a"] == "a1:123 a2:012 a3:0123"
    assert sorted(b for id_, b in blocks.items() if id_.startswith("a.4")) == [
        "a1:23 a2:01",
        "a3:0123",
    ]
    assert blocks["a.8-0"] == "a1:23 a2:01 a3:0123"
    assert [b for id_, b in blocks.items() if id_.startswith("a.2") and " " in b] == ["a1:1 a2:2"]


def test_only_aligned_neighbours_are_halves_of_one_range() -> None:
    blocks = of_domain(lose("b1/g0"), "b1")
    assert blocks["b1"] == "b1:123"
    assert blocks["b1.2-1"] == "b1:23", "1 and 2 are neighbours, and no pair while 3 is there"
    assert blocks["b1.1-1"] == "b1:1"


def test_what_is_left_on_one_node_still_makes_a_pair() -> None:
    blocks = of_domain(lose("b1/g0", "b1/g3"), "b1")
    assert blocks == {"b1": "b1:12", "b1.1-1": "b1:1", "b1.1-2": "b1:2"}


def test_roots_lie_within_the_network_that_joins_them() -> None:
    fleet = twenty_seven()
    by_id = {block.id: block for block in fleet.blocks}
    assert by_id["b"].kind is LinkKind.NETWORK
    assert {block.id for block in fleet.blocks if block.parent == "b"} == {"b1", "b2", "b.1-8"}
    assert not by_id["b"].carries_tp(2)
    assert by_id["a.8-0"].carries_tp(8)
    assert by_id["c1"].carries_tp(2)


def test_a_node_that_is_gone_leaves_the_rest_as_it_was() -> None:
    blocks = of_domain(lose(*(f"a2/g{i}" for i in range(4))), "a")
    assert blocks["a"] == "a1:0123 a3:0123"
    assert blocks["a.4-2"] == "a3:0123"


@pytest.mark.parametrize("factor", [0.1, 0.49])
def test_a_device_of_slow_links_is_alone(factor: float) -> None:
    fleet = twenty_seven()
    was = fleet.device(device("a2/g1"))
    assert was is not None
    slow = was.model_copy(update={"link_factor": factor})
    fleet = without(fleet, twenty_seven_spec(), {device("a2/g1"): slow})
    block = next(block for block in fleet.blocks if block.id == "a2/g1")
    assert (block.kind, block.size, block.parent) == (LinkKind.NETWORK, 1, None)
    assert of_domain(fleet, "a") == of_domain(lose("a2/g1"), "a")


def test_a_device_of_links_that_are_slower_slows_its_blocks() -> None:
    fleet = twenty_seven()
    was = fleet.device(device("a2/g1"))
    assert was is not None
    slow = was.model_copy(update={"link_factor": 0.5})
    fleet = without(fleet, twenty_seven_spec(), {device("a2/g1"): slow})
    speeds = {block.id: block.gb_s for block in fleet.blocks}
    assert (speeds["a"], speeds["a.4-1"], speeds["a.4-0"]) == (225.0, 225.0, 450.0)


def test_bridged_pairs_lie_within_their_pcie_node() -> None:
    bridges = [fabric("x-0", LinkKind.NVLINK, 0, 1), fabric("x-1", LinkKind.NVLINK, 2, 3)]
    blocks = carve([node("x", 4)], {"x": [*bridges, fabric("x", LinkKind.PCIE, 0, 1, 2, 3)]})
    found = {(b.id, b.kind, b.parent, short(b)) for b in blocks if b.size > 1}
    assert found == {
        ("x", LinkKind.PCIE, None, "x:0123"),
        ("x-0", LinkKind.NVLINK, "x", "x:01"),
        ("x-1", LinkKind.NVLINK, "x", "x:23"),
    }


def test_the_same_devices_are_one_block_of_the_faster_class() -> None:
    both = [fabric("x", LinkKind.PCIE, 0, 1), fabric("x-0", LinkKind.NVLINK, 0, 1)]
    blocks = carve([node("x", 2)], {"x": both})
    assert [(b.id, b.kind) for b in blocks if b.size == 2] == [("x-0", LinkKind.NVLINK)]


def test_models_do_not_mix() -> None:
    mixed = Node(
        node="x",
        devices=(*node("x", 2).devices, *(d for d in node("x", 4, "A30").devices[2:])),
    )
    blocks = carve([mixed], {"x": [fabric("x", LinkKind.PCIE, 0, 1, 2, 3)]})
    assert {(b.id, b.model) for b in blocks if b.size > 1} == {("x.l40s", "L40S"), ("x.a30", "A30")}


def test_a_device_that_no_fabric_names_is_alone() -> None:
    blocks = carve([node("x", 1)], {})
    assert [(b.id, b.kind, b.devices) for b in blocks] == [
        ("x/g0", LinkKind.NETWORK, (DeviceRef(node="x", device="g0"),))
    ]


def test_blocks_hold_nothing_on_which_nothing_may_be_placed() -> None:
    fleet = twenty_seven()
    was = fleet.device(device("a2/g1"))
    assert was is not None
    taken = was.model_copy(update={"tenant": "batch", "closed": "reserved by batch"})
    fleet = without(fleet, twenty_seven_spec(), {device("a2/g1"): taken})
    assert of_domain(fleet, "a") == of_domain(lose("a2/g1"), "a")


def test_large_domains_are_cut_within_moments() -> None:
    nodes = [node(f"r{index:02}", 4) for index in range(18)]
    fabrics = {each.node: [fabric("rack", LinkKind.NVSWITCH, 0, 1, 2, 3)] for each in nodes}
    blocks = carve(nodes, fabrics)
    by_size: dict[int, int] = {}
    for block in blocks:
        by_size[block.size] = by_size.get(block.size, 0) + 1
    assert by_size == {72: 1, 64: 1, 32: 2, 16: 4, 8: 9, 4: 18, 2: 36, 1: 72}
