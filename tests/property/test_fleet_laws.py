"""Laws of blocks, over any fleet; and of the monitor, over any order in which independent nodes are heard."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from flexpipe.events.fleet import Fabric, NodeSampled
from flexpipe.events.outgoing import publish
from flexpipe.fragments.blocks import APART_BELOW, carve
from flexpipe.fragments.inputs import Heard
from flexpipe.fragments.monitor import Monitor
from flexpipe.kernel.machine import (
    Delivered,
    Effects,
    Entry,
    Input,
    PutAll,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.model.fleet import Block, Device, DeviceRef, Fleet, Host, LinkKind, Node

MODELS = ("H100-SXM5-80GB", "L40S")
WIDE = (LinkKind.NVSWITCH, LinkKind.NETWORK)
"""Classes of fabrics over nodes."""
INNER = (LinkKind.NVLINK, LinkKind.PCIE, LinkKind.HOST)

SUB_BLOCK = re.compile(r"\.\d+-\d+b*$")

Fabrics = Mapping[str, Sequence[Fabric]]


@st.composite
def devices(draw: st.DrawFn, id_: str) -> Device:
    return Device(
        device=id_,
        kind="emulated",
        memory_bytes=80,
        model=draw(st.sampled_from([MODELS[0], MODELS[0], MODELS[1]])),
        state=draw(st.sampled_from(["present", "present", "present", "preempted", "failed"])),
        link_factor=draw(st.sampled_from([1.0, 1.0, 1.0, 0.7, 0.2])),
        closed=draw(st.sampled_from([None, None, None, "reserved by batch"])),
    )


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Node], dict[str, list[Fabric]]]:
    """Up to five nodes of up to eight devices, with fabrics inside nodes and over them that may cross each other."""
    nodes, fabrics = [], {}
    names = [f"n{index}" for index in range(draw(st.integers(1, 5)))]
    over = [
        (
            f"w{index}",
            draw(st.sampled_from(WIDE)),
            draw(st.sets(st.sampled_from(names), min_size=1)),
        )
        for index in range(draw(st.integers(0, 2)))
    ]
    for name in names:
        ids = [f"g{index}" for index in range(draw(st.integers(1, 8)))]
        state = draw(st.sampled_from(["observed", "observed", "observed", "unobserved", "lost"]))
        nodes.append(Node(node=name, devices=tuple(draw(devices(id_)) for id_ in ids), state=state))
        some = st.lists(st.sampled_from(ids), min_size=1, unique=True)
        fabrics[name] = [
            Fabric(
                name=f"{name}-{index}",
                kind=draw(st.sampled_from(INNER)),
                gb_s=9,
                devices=draw(some),
            )
            for index in range(draw(st.integers(0, 2)))
        ]
        fabrics[name] += [
            Fabric(name=wide, kind=kind, gb_s=7, devices=ids)
            for wide, kind, spanned in over
            if name in spanned
        ]
    return nodes, fabrics


def usable(nodes: Sequence[Node]) -> dict[DeviceRef, Device]:
    return {
        DeviceRef(node=node.node, device=device.device): device
        for node in nodes
        for device in node.devices
        if node.state == "observed" and device.state == "present" and device.closed is None
    }


def joined_by(block: Block, fabrics: Fabrics) -> bool:
    """Whether one fabric of the block's class has all of its devices, at no less than the block's speed."""
    by_name: dict[str, set[DeviceRef]] = {}
    for node, parts in fabrics.items():
        for fabric in parts:
            if fabric.kind is block.kind and fabric.gb_s >= block.gb_s:
                refs = {DeviceRef(node=node, device=device) for device in fabric.devices}
                by_name.setdefault(fabric.name, set()).update(refs)
    return any(refs.issuperset(block.devices) for refs in by_name.values())


@given(fleets())
def test_blocks_partition_what_takes_something_new(
    fleet: tuple[list[Node], dict[str, list[Fabric]]],
) -> None:
    nodes, fabrics = fleet
    blocks = carve(nodes, fabrics)
    covered = [ref for block in blocks if block.parent is None for ref in block.devices]
    assert sorted(covered) == sorted(usable(nodes)), "each in exactly one root, and nothing else"
    assert len({block.id for block in blocks}) == len(blocks)


@given(fleets())
def test_sub_blocks_nest_and_siblings_are_apart(
    fleet: tuple[list[Node], dict[str, list[Fabric]]],
) -> None:
    blocks = carve(*fleet)
    by_id = {block.id: block for block in blocks}
    for block in blocks:
        if block.parent is not None:
            assert set(block.devices) < set(by_id[block.parent].devices)
    for one, other in combinations(blocks, 2):
        shared = set(one.devices) & set(other.devices)
        assert shared in (set(), set(one.devices), set(other.devices))
        assert set(one.devices) != set(other.devices), "the same devices are one block"


@given(fleets())
def test_a_block_has_one_model_and_one_class_that_joins_all_of_it(
    fleet: tuple[list[Node], dict[str, list[Fabric]]],
) -> None:
    nodes, fabrics = fleet
    known = usable(nodes)
    for block in carve(nodes, fabrics):
        assert {known[ref].model for ref in block.devices} == {block.model}
        slowed = [ref for ref in block.devices if known[ref].link_factor < APART_BELOW]
        if slowed:
            assert (block.size, block.kind, block.parent) == (1, LinkKind.NETWORK, None)
        assert block.size == 1 or joined_by(block, fabrics), "nothing joins what is not connected"


@given(fleets())
def test_every_cut_of_a_block_is_canonical(
    fleet: tuple[list[Node], dict[str, list[Fabric]]],
) -> None:
    """Sub-blocks are of 1, 2, 4, … devices, and each is cut into two equal halves."""
    blocks = carve(*fleet)
    for block in blocks:
        if not SUB_BLOCK.search(block.id):
            continue  # a root of its own fabric
        assert block.size & (block.size - 1) == 0
        halves = [each for each in blocks if each.parent == block.id]
        if block.size > 1:
            assert sum(half.size for half in halves) == block.size
            assert {half.size for half in halves} == {block.size // 2}


@given(fleets(), st.randoms(use_true_random=False))
def test_carving_does_not_depend_on_the_order_in_which_things_are_named(
    fleet: tuple[list[Node], dict[str, list[Fabric]]], chance: object
) -> None:
    nodes, fabrics = fleet
    shuffled = list(nodes)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    names = list(fabrics)
    chance.shuffle(names)  # type: ignore[attr-defined]
    assert carve(shuffled, {name: fabrics[name][::-1] for name in names}) == carve(nodes, fabrics)


@given(fleets(), st.data())
def test_what_leaves_and_comes_back_makes_the_same_blocks_again(
    fleet: tuple[list[Node], dict[str, list[Fabric]]], data: st.DataObject
) -> None:
    nodes, fabrics = fleet
    whole = carve(nodes, fabrics)
    refs = sorted(usable(nodes))
    if not refs:
        return
    away = data.draw(st.sets(st.sampled_from(refs), min_size=1))
    without = [_preempted(node, away) for node in nodes]
    left = carve(without, fabrics)
    assert not away & {ref for block in left for ref in block.devices}
    assert carve(nodes, fabrics) == whole
    kept = {block.id: block for block in whole if not away & set(block.devices)}
    untouched = {id_ for id_, block in kept.items() if block.size == 1}
    moved = [
        block for block in left if block.id in untouched and block.devices != kept[block.id].devices
    ]
    assert not moved, "single devices keep their names while others are away"


def _preempted(node: Node, away: set[DeviceRef]) -> Node:
    return node.model_copy(
        update={
            "devices": tuple(
                device.model_copy(update={"state": "preempted"})
                if DeviceRef(node=node.node, device=device.device) in away
                else device
                for device in node.devices
            )
        }
    )


# -- the monitor --------------------------------------------------------------------------------


class Mounted:
    """A monitor with its bucket, in a time of its own."""

    def __init__(self) -> None:
        self.machine = Monitor()
        self.now_s = 1_000.0
        self.revision = 0
        self.bucket: dict[str, Entry] = {}
        self.lines: list[tuple[float, Input, str]] = []
        self.feed(Started(entries=()))

    def feed(self, event: Input) -> None:
        self.now_s += 0.001
        self._perform(self._handle(event))

    def _handle(self, event: Input) -> Effects:
        effects = self.machine.handle(self.now_s, event)
        self.lines.append((self.now_s, event, effects.canonical_json()))
        return effects

    def _perform(self, effects: Effects) -> None:
        for effect in effects.do:
            if isinstance(effect, PutAll):
                self._perform(self._handle(self._store(effect)))

    def _store(self, batch: PutAll) -> Stored:
        entries = []
        for put in batch.puts:
            before = self.bucket.get(put.key)
            assert put.expected == (0 if before is None else before.revision)
            self.revision += 1
            entry = Entry(bucket="fleet", key=put.key, value=put.value, revision=self.revision)
            self.bucket[put.key] = entry
            entries.append(entry)
        return Stored(write_id=batch.write_id, outcome="written", entries=tuple(entries))

    def settle(self) -> Fleet:
        """Time passes and nothing happens; the fleet without its revisions."""
        for _ in range(8):
            self.now_s += 0.25
            self.feed(Woken())
        nodes = (Node.model_validate_json(entry.value or "") for entry in self.bucket.values())
        plain = (node.model_copy(update={"revision": 0}) for node in nodes)
        return Fleet(nodes=tuple(sorted(plain, key=lambda node: node.node)))


def told(sample: NodeSampled) -> Delivered:
    said = publish(sample, sample.counter)
    return Delivered(type=said.type, message=said.message, message_id=said.message_id)


@st.composite
def stories(draw: st.DrawFn) -> list[list[Input]]:
    """What each of some nodes says, in its own order: a host, a full sample, then deltas, some of them lost."""
    nodes, fabrics = draw(fleets())
    stories: list[list[Input]] = []
    for node in nodes:
        host = Host(node=node.node, address="x", devices=tuple(d.device for d in node.devices))
        entry = Entry(bucket="hosts", key=node.node, value=host.canonical_json(), revision=1)
        bare = tuple(device.model_copy(update={"closed": None}) for device in node.devices)
        story: list[Input] = [
            Watched(entry=entry),
            told(_sample(node.node, 1, bare, fabrics, full=True)),
        ]
        counter = 1
        for _ in range(draw(st.integers(0, 3))):
            which = draw(st.sampled_from(bare))
            changed = draw(devices(which.device)).model_copy(update={"closed": None})
            counter += draw(st.sampled_from([1, 1, 1, 2]))
            story.append(told(_sample(node.node, counter, (changed,), fabrics, full=False)))
        stories.append(story)
    return stories


def _sample(
    node: str, counter: int, said: Sequence[Device], fabrics: Fabrics, *, full: bool
) -> NodeSampled:
    return NodeSampled(
        node=node, counter=counter, full=full, devices=tuple(said), fabrics=tuple(fabrics[node])
    )


@settings(deadline=None, max_examples=40)
@given(stories(), st.randoms(use_true_random=False))
def test_the_fleet_does_not_depend_on_the_order_in_which_independent_nodes_are_heard(
    stories: list[list[Input]], chance: object
) -> None:
    one, other = Mounted(), Mounted()
    for story in stories:
        for event in story:
            one.feed(event)
    waiting = [list(story) for story in stories]
    while waiting:
        story = chance.choice(waiting)  # type: ignore[attr-defined]
        other.feed(story.pop(0))
        waiting = [each for each in waiting if each]
    assert one.settle() == other.settle()


@settings(deadline=None, max_examples=40)
@given(stories(), st.integers(0, 40))
def test_a_monitor_restored_from_a_snapshot_goes_on_as_the_one_that_gave_it(
    stories: list[list[Input]], place: int
) -> None:
    mounted = Mounted()
    for story in stories:
        for event in story:
            mounted.feed(event)
            mounted.feed(Heard(beats={"n0": (1, 40)}, host_beats=("n0",), echo_at_s=mounted.now_s))
    mounted.settle()
    machine = Monitor()
    cut = min(place, len(mounted.lines) - 1)
    for now_s, event, effects in mounted.lines[:cut]:
        assert machine.handle(now_s, event).canonical_json() == effects
    again = Monitor()
    again.restore(machine.snapshot())
    assert again.snapshot() == machine.snapshot()
    for now_s, event, effects in mounted.lines[cut:]:
        assert again.handle(now_s, event).canonical_json() == effects
