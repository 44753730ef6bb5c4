"""The fleet on a terminal: what each device is, who holds it, and what is free of each block."""

from __future__ import annotations

import json

from flexpipe.cli import fleetview
from flexpipe.cli.printing import show
from flexpipe.model.fleet import Block, DeviceRef, Fleet, LinkKind, Node
from flexpipe.model.shift import DeviceReservations, Reservation
from flexpipe.testing.builders import a_node, device
from flexpipe.testing.fleets import twenty_seven
from unit.cli.pages import page, row_of, words

NOW_S = 1000.0


def held(text: str, gigabytes: int = 12, plan: str = "p-1") -> DeviceReservations:
    one = Reservation(plan=plan, deployment="chat", term=1, shift=1, bytes=gigabytes * 10**9)
    return DeviceReservations(device=device(text), held=(one,))


def changed(fleet: Fleet, ref: str, **changes: object) -> Fleet:
    where = device(ref)
    node = fleet.node(where.node)
    assert node is not None
    devices = tuple(
        each.model_copy(update=changes) if each.device == where.device else each
        for each in node.devices
    )
    return fleet.with_node(node.model_copy(update={"devices": devices}))


def line(fleet: Fleet, ref: str, reserved: tuple[DeviceReservations, ...] = ()) -> str:
    """The line of one device in the tree."""
    node, name = ref.split("/")
    tree = page(fleetview.fleet_view(fleet, reserved, NOW_S), 120).split("blocks")[0]
    after = tree.split(f" {node}  ", 1)[1]
    return next(each for each in after.splitlines() if f" {name}  " in each)


def test_the_tree_is_racks_nodes_and_devices_with_model_memory_and_state() -> None:
    text = page(fleetview.fleet_view(twenty_seven(), (), NOW_S))
    assert "fleet revision 1: 27 of 27 devices there, 27 open, 0 in use, 27 free" in text
    places = [text.index(part) for part in ("rack rack-a", "a1", "a2", "rack rack-b", "b3", "c3")]
    assert places == sorted(places)
    assert text.count("H100-SXM5-80GB  85.9 GB  open") == 12


def test_a_node_without_a_rack_or_a_worker_is_shown_too() -> None:
    bare = a_node("node-a").model_copy(update={"address": ""})
    text = page(fleetview.fleet_view(Fleet(nodes=(bare,)), (), NOW_S))
    assert "no rack" in text
    assert "no worker" in text
    assert "no blocks" in text


def test_no_fleet_says_who_has_not_spoken() -> None:
    assert "no monitor" in words(fleetview.fleet_view(Fleet(), (), NOW_S))


def test_each_device_says_why_nothing_is_placed_on_it() -> None:
    fleet = twenty_seven()
    for ref, changes, says in (
        ("a2/g0", {"state": "preempted"}, "preempted"),
        ("a2/g0", {"state": "failed"}, "failed"),
        (
            "a2/g0",
            {"leaves_at_s": NOW_S + 42.4, "closed": "to be preempted"},
            "closed: leaves in 42 s",
        ),
        ("a2/g0", {"tenant": "research", "closed": "x"}, "closed: reserved by research"),
        ("a2/g0", {"closed": "its worker has not freed it"}, "its worker has not freed it"),
        ("a2/g0", {"link_factor": 0.3}, "open: links at 30% of nominal"),
    ):
        assert says in line(changed(fleet, ref, **changes), ref)


def test_devices_of_a_lost_node_are_lost() -> None:
    fleet = twenty_seven()
    node = fleet.node("b3")
    assert node is not None
    fleet = fleet.with_node(node.model_copy(update={"state": "lost"}))
    assert line(fleet, "b3/g0").endswith("lost")
    assert "26 of 27 devices there, 26 open" in fleetview.fleet_line(fleet, ())


def test_a_device_says_which_plan_of_which_deployment_holds_how_much_of_it() -> None:
    reserved = (held("b1/g2", 70, "p-abc"),)
    assert line(twenty_seven(), "b1/g2", reserved).endswith("← chat p-abc 70.0 GB")
    assert "1 in use, 26 free" in fleetview.fleet_line(twenty_seven(), reserved)


def test_blocks_go_by_class_each_with_its_largest_free_part() -> None:
    rows = fleetview.block_rows(twenty_seven(), (held("a2/g3"), held("c1/g0")))
    assert [row.block.id for row in rows] == ["a", "b1", "b2", "c1", "c2", "c3", "b", "c"]
    free = {row.block.id: (row.free, row.largest_free and row.largest_free.id) for row in rows}
    assert free["a"] == (11, "a.4-0")
    assert free["c1"] == (1, "c1.1-1")
    assert free["b2"] == (4, "b2")
    assert free["c"] == (5, None)


def test_the_table_of_blocks_says_how_wide_a_tensor_parallel_group_its_class_carries() -> None:
    table = page(fleetview.blocks_table(fleetview.block_rows(twenty_seven(), ())))
    assert row_of(table, "nvswitch") == "nvswitch a H100-SXM5-80GB 450 12 12 12 a (12)"
    assert row_of(table, " c2 ") == "pcie c2 L40S 32 2 2 2 c2 (2)"


def test_blocks_whose_parents_go_in_a_circle_are_shown_nonetheless() -> None:
    def block(id_: str, parent: str) -> Block:
        return Block(
            id=id_,
            parent=parent,
            model="cpu",
            kind=LinkKind.HOST,
            gb_s=1.0,
            devices=(DeviceRef(node="node-a", device="cpu0"),),
        )

    node = a_node("node-a").model_copy(update={"blocks": (block("x", "y"), block("y", "x"))})
    assert fleetview.block_rows(Fleet(nodes=(Node.model_validate(node.model_dump()),)), ())


def test_programs_get_the_same_as_one_document(capsys: object) -> None:
    document = fleetview.fleet_document(twenty_seven(), (held("a1/g0"),))
    show(document, as_json=True)
    said = json.loads(capsys.readouterr().out)  # type: ignore[attr-defined]
    assert set(said) == {"revision", "fleet", "reservations", "blocks"}
    assert said["blocks"][0]["largest_free"]["id"] == "a.4-1"
