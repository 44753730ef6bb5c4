"""What a target means, and when the fleet shows what happened to it."""

from __future__ import annotations

import pytest

from flexpipe.cli.altering import Alteration, parts_of, refs_of, unshown
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.testing.fleets import twenty_seven


def test_a_node_is_meant_whole_a_device_alone_and_a_block_with_all_its_devices() -> None:
    fleet = twenty_seven()
    assert parts_of(["b3"], fleet) == {"b3": ()}
    assert parts_of(["c1/g1"], fleet) == {"c1": ("g1",)}
    whole = ("g0", "g1", "g2", "g3")
    assert parts_of(["a.8-0"], fleet) == {"a1": whole, "a2": whole}


def test_several_targets_are_one_alteration_a_node() -> None:
    parts = parts_of(["c1/g1", "b1", "b1/g0", "c1/g0", "c1/g1"], twenty_seven())
    assert parts == {"b1": (), "c1": ("g0", "g1")}
    refs = refs_of(parts, twenty_seven())
    assert [str(ref) for ref in refs] == [*(f"b1/g{i}" for i in range(4)), "c1/g0", "c1/g1"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("z9", "no such node, node/device or block; there are: a1, a2, a3, b1"),
        ("z9/g0", "no such node, node/device or block"),
        ("b1/g7", "b1 has g0, g1, g2, g3"),
        ("b1/", "b1 has g0"),
        ("", "no such node"),
    ],
)
def test_a_target_that_is_not_there_is_named(target: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parts_of([target], twenty_seven())


def test_a_fleet_that_nobody_has_seen_has_no_targets() -> None:
    with pytest.raises(InvalidInput, match="there are: none yet"):
        parts_of(["a1"], Fleet())


def after(fleet: Fleet, node: str, **changes: object) -> Fleet:
    """The first device of a node changed; `node_state` changes the node."""
    seen = fleet.node(node)
    assert seen is not None
    state = changes.pop("node_state", seen.state)
    devices = (seen.devices[0].model_copy(update=changes), *seen.devices[1:])
    return fleet.with_node(seen.model_copy(update={"devices": devices, "state": state}))


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (Alteration(change="preempt"), {"state": "preempted"}),
        (Alteration(change="preempt"), {"node_state": "lost"}),
        (Alteration(change="fail"), {"state": "failed"}),
        (Alteration(change="fail"), {"node_state": "lost"}),
        (Alteration(change="fail"), {"node_state": "unobserved"}),
        (Alteration(change="notice", leaves_in_s=9.0), {"leaves_at_s": 99.0}),
        (Alteration(change="notice", leaves_in_s=0.0), {"state": "preempted"}),
        (Alteration(change="degrade", factor=0.3), {"link_factor": 0.3}),
        (Alteration(change="reserve", tenant="train"), {"tenant": "train"}),
    ],
    ids=lambda value: value.change if isinstance(value, Alteration) else "+".join(value),
)
def test_the_fleet_shows_it_when_every_device_is_so(
    wanted: Alteration, changes: dict[str, object]
) -> None:
    fleet = twenty_seven()
    refs = (DeviceRef(node="a1", device="g0"), DeviceRef(node="b1", device="g0"))
    assert unshown(wanted, fleet, refs) == ("a1", "b1")
    fleet = after(fleet, "a1", **changes)
    assert unshown(wanted, fleet, refs) == ("b1",)
    assert unshown(wanted, after(fleet, "b1", **changes), refs) == ()


def test_what_is_restored_is_there_again_without_notice_on_a_node_that_is_observed() -> None:
    ref, wanted = DeviceRef(node="a1", device="g0"), Alteration(change="restore")
    fleet = twenty_seven()
    assert unshown(wanted, fleet, (ref,)) == ()
    for changes in ({"state": "failed"}, {"leaves_at_s": 9.0}, {"node_state": "lost"}):
        assert unshown(wanted, after(fleet, "a1", **changes), (ref,)) == ("a1",)


def test_a_node_that_left_the_fleet_shows_nothing() -> None:
    ref = DeviceRef(node="a1", device="g0")
    assert unshown(Alteration(change="preempt"), Fleet(), (ref,)) == ("a1",)
