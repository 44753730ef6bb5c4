"""Fleet files: what they declare, and the one line that each mistake gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexpipe.fragments.fleetfile import read_fleet
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.fleet import LinkKind
from flexpipe.testing.fleets import fleet_of, twenty_seven, twenty_seven_spec

EXAMPLES = Path(__file__).parents[3] / "ops" / "examples" / "fleets"

TWO = """
name = "two"
[[nodes]]
name = "b1"
devices = [{ model = "A100-SXM4-80GB", count = 2 }]
[[nodes]]
name = "b2"
devices = [{ model = "A100-SXM4-80GB", count = 2 }]
"""

PAIR = """
[[links]]
from = "b1/g0"
to = ["b1/g1"]
kind = "nvlink"
gb_s = 300
"""

BACK = """
[[links]]
from = "b1/g1"
to = ["b1/g0"]
kind = "nvlink"
gb_s = 300
"""


def test_the_fleet_of_the_story_is_the_one_that_tests_use() -> None:
    spec = read_fleet((EXAMPLES / "twenty-seven.toml").read_text(), "twenty-seven.toml")
    assert spec == twenty_seven_spec()
    assert len(twenty_seven().refs()) == 27


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_can_be_read_and_is_named_after_its_file(path: Path) -> None:
    assert read_fleet(path.read_text(), path.name).name == path.stem


def test_two_cpu_nodes_have_addresses_and_cores_of_their_own() -> None:
    spec = read_fleet((EXAMPLES / "two-cpu-nodes.toml").read_text(), "two-cpu-nodes.toml")
    assert [node.address for node in spec.nodes] == ["127.0.0.1", "127.0.0.2"]
    assert [device.core for device in spec.nodes[0].devices] == [0, 1]
    assert {block.id for block in fleet_of(spec).blocks if block.size == 2} == {"node-a", "node-b"}


def test_links_seen_from_both_ends_make_a_fabric() -> None:
    node = read_fleet(TWO + PAIR + BACK, "two.toml").nodes[0]
    assert [(f.name, f.kind, f.devices) for f in node.fabrics] == [
        ("b1-nvlink-0", LinkKind.NVLINK, ("g0", "g1"))
    ]


def test_a_mesh_that_is_not_complete_makes_several_fabrics() -> None:
    ring = ("g0/g1", "g1/g2", "g2/g3", "g3/g0")
    links = "".join(
        f'[[links]]\nfrom = "b1/{a}"\nto = ["b1/{b}"]\nkind = "nvlink"\ngb_s = 50\n'
        for pair in ring
        for a, b in (pair.split("/"), reversed(pair.split("/")))
    )
    text = TWO.replace("count = 2", "count = 4", 1) + links
    assert [f.devices for f in read_fleet(text, "ring.toml").nodes[0].fabrics] == [
        ("g0", "g1"),
        ("g2", "g3"),
    ]


def test_reserved_devices_are_there_with_their_tenant() -> None:
    text = TWO + '[[reservations]]\ntenant = "batch"\ndevices = ["b1/g1"]\n'
    spec = read_fleet(text, "two.toml")
    assert [device.tenant for device in spec.nodes[0].devices] == [None, "batch"]
    assert fleet_of(spec).nodes[0].devices[1].closed == "reserved by batch"


UUID = '{ model = "L40S", uuids = ["GPU-1"] }'
MISTAKES = {
    "a link that one end does not know": (
        TWO + PAIR,
        "f.toml: links: 'b1/g0 → b1/g1' is not accepted: asymmetric: declare b1/g1 → b1/g0 too",
    ),
    "a link that the ends see differently": (
        TWO + PAIR + BACK.replace("300", "150"),
        "f.toml: links: 'b1/g0 → b1/g1' is not accepted: asymmetric (nvlink at 300 GB/s, back nvlink"
        " at 150); both ends must see the same",
    ),
    "a link to a device that is not there": (
        TWO + PAIR.replace("b1/g1", "b1/g7"),
        "f.toml: links.0.to: 'b1/g7' is not accepted: node b1 has no such device; it has g0, g1",
    ),
    "a link to a node that is not there": (
        TWO + PAIR.replace("b1/g1", "b9/g1"),
        "f.toml: links.0.to: 'b9/g1' is not accepted: no such node in this file",
    ),
    "a link to itself": (
        TWO + PAIR.replace("b1/g1", "b1/g0"),
        "f.toml: links.0.to: 'b1/g0' is not accepted: a device has no link to itself",
    ),
    "a UUID on two nodes": (
        f'name = "x"\n[[nodes]]\nname = "c1"\ndevices = [{UUID}]\n'
        f'[[nodes]]\nname = "c2"\ndevices = [{UUID}]\n',
        "f.toml: node c2: device: 'GPU-1' is not accepted: duplicate: node c1 has it already;"
        " each device has an id of its own",
    ),
    "a UUID twice on one node": (
        f'name = "x"\n[[nodes]]\nname = "c1"\ndevices = [{UUID}, {UUID}]\n',
        "f.toml: node c1: device: 'GPU-1' is not accepted: duplicate: node c1 has it already;"
        " each device has an id of its own",
    ),
    "UUIDs on several equal nodes": (
        f'name = "x"\n[[nodes]]\nnames = ["c1", "c2"]\ndevices = [{UUID}]\n',
        "f.toml: nodes.0.names: ['c1', 'c2'] is not accepted: a UUID is of one node; give each its table",
    ),
    "a node declared twice": (
        TWO.replace('"b2"', '"b1"'),
        "f.toml: nodes.1: 'b1' is not accepted: this node is declared twice",
    ),
    "an unknown GPU model": (
        TWO.replace("A100-SXM4-80GB", "A101", 1),
        "f.toml: nodes.0.devices.0.model: 'A101' is not accepted: unknown GPU model; use one of A100-SXM4-80GB",
    ),
    "no GPU model": (
        TWO.replace('model = "A100-SXM4-80GB", ', "", 1),
        "f.toml: nodes.0.devices.0: {'count': 2} is not accepted: name the GPU model, as in model = 'L40S'",
    ),
    "an unknown field": (
        TWO + "colour = 1\n",
        "f.toml: nodes.1.colour: 1 is not accepted: unknown field; remove it or correct its name",
    ),
    "a name that no subject can hold": (
        TWO.replace('"b1"', '"B1"', 1),
        "f.toml: nodes.0.name: 'B1' is not accepted: lower-case letters, digits and inner dashes, at most 63",
    ),
    "a device reserved twice": (
        TWO + '[[reservations]]\ntenant = "x"\ndevices = ["b1/g0", "b1/g0"]\n',
        "f.toml: reservations.0.devices: 'b1/g0' is not accepted: 'x' has reserved it already;"
        " a device has one tenant",
    ),
    "a reservation of nothing": (
        TWO + '[[reservations]]\ntenant = "x"\ndevices = ["b1/g5"]\n',
        "f.toml: reservations.0.devices: 'b1/g5' is not accepted: node b1 has no such device; it has g0, g1",
    ),
    "a count of none": (
        TWO.replace("count = 2", "count = 0", 1),
        "f.toml: nodes.0.devices.0.count: 0 is not accepted: Input should be greater than or equal to 1",
    ),
    "a speed below nothing": (
        TWO + PAIR.replace("300", "-1"),
        "f.toml: links.0.gb_s: -1 is not accepted: Input should be greater than 0",
    ),
    "a speed without an end": (
        TWO + PAIR.replace("300", "inf"),
        "f.toml: links.0.gb_s: inf is not accepted: Input should be a finite number",
    ),
    "a class that there is not": (
        TWO + PAIR.replace("nvlink", "string"),
        "f.toml: links.0.kind: 'string' is not accepted: Input should be 'nvswitch', 'nvlink', 'pcie',"
        " 'host' or 'network'",
    ),
    "a fabric over a node that is not there": (
        TWO + '[[fabrics]]\nname = "b"\nkind = "network"\ngb_s = 25\nnodes = ["b7"]\n',
        "f.toml: fabrics.0.nodes: 'b7' is not accepted: no such node in this file",
    ),
    "a slot without memory": (
        'name = "x"\n[[nodes]]\nname = "c1"\ndevices = [{ kind = "cpu", cores = [0, 1] }]\n',
        "f.toml: nodes.0.devices.0: {'kind': 'cpu', 'cores': [0, 1]} is not accepted: cores must name"
        " one core a slot, that is 1",
    ),
    "no node at all": ('name = "x"\nnodes = []\n', "f.toml: nodes: [] is not accepted: List"),
    "no name": ("nodes = []\n", "f.toml: name: None is not accepted: this field is required"),
    "no TOML": ("name = ", "f.toml: 'name = ' is not accepted: not TOML: Invalid value"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_fleet_file_is_one_line_that_names_field_value_and_fix(mistake: str) -> None:
    text, line = MISTAKES[mistake]
    with pytest.raises(InvalidInput) as raised:
        read_fleet(text, "f.toml", {"A100-SXM4-80GB": 80, "L40S": 48})
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)
