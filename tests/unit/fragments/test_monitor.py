"""The monitor's machine, input by input: gaps, conflicts, foreign values, bounds, and what it says of a revision."""

from __future__ import annotations

from typing import Any

import pytest

from flexpipe.events.catalog import parse
from flexpipe.events.fleet import FleetChanged, NodeSampled, SampleAsked
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.fragments import inputs, monitor
from flexpipe.fragments.inputs import Heard
from flexpipe.fragments.monitor import ASK_EVERY_S, CONFLICTS_LIMIT, GATHER_S, SETTLE_S, Monitor
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.machine import (
    Delivered,
    Effects,
    Entry,
    Measure,
    Publish,
    PutAll,
    Span,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.model.fleet import Device, Fleet, Host, Node
from flexpipe.testing.builders import device
from flexpipe.testing.fleets import twenty_seven_spec

SPEC = {node.node: node for node in twenty_seven_spec().nodes}
NOW_S = 1_000.0


def told(message: Message, *cause: object) -> Delivered:
    said = publish(message, *cause)
    return Delivered(type=said.type, message=said.message, message_id=said.message_id)


def a_sample(node: str, counter: int = 1, *changed: Device) -> Delivered:
    """A full sample, or a delta of what changed."""
    spec = SPEC[node]
    sample = NodeSampled(
        node=node,
        counter=counter,
        full=not changed,
        devices=changed or spec.devices,
        fabrics=spec.fabrics,
        rack=spec.rack,
    )
    return told(sample)


def a_host(node: str) -> Entry:
    ids = tuple(device.device for device in SPEC[node].devices)
    host = Host(node=node, address="127.0.0.1", devices=ids)
    return Entry(bucket="hosts", key=node, value=host.canonical_json(), revision=1)


def preempted(node: str, device: str) -> Device:
    was = next(each for each in SPEC[node].devices if each.device == device)
    return was.model_copy(update={"state": "preempted"})


class Bench:
    """A monitor, its bucket and its time."""

    def __init__(self, *nodes: str) -> None:
        self.now_s = NOW_S
        self.machine = Monitor()
        self.bucket: dict[str, Entry] = {}
        self.did: list[Any] = []
        self.revision = 0
        self.refuse = False  # somebody else writes first
        self.take(Started(entries=tuple(a_host(node) for node in nodes)))
        for node in nodes:
            self.take(a_sample(node))
        self.wait(1.25)
        self.did.clear()

    def take(self, event: Any) -> Effects:
        effects = self.machine.handle(self.now_s, event)
        for effect in effects.do:
            self.did.append(effect)
            if isinstance(effect, PutAll):
                self.take(self._store(effect))
        return effects

    def _store(self, batch: PutAll) -> Stored:
        if self.refuse:
            for put in batch.puts:
                self._put(put.key, Node(node=put.key, devices=()).canonical_json())
            entries = tuple(self.bucket[put.key] for put in batch.puts)
            return Stored(write_id=batch.write_id, outcome="conflict", entries=entries)
        entries = tuple(self._put(put.key, put.value) for put in batch.puts)
        return Stored(write_id=batch.write_id, outcome="written", entries=entries)

    def _put(self, key: str, value: str | None) -> Entry:
        self.revision += 1
        self.bucket[key] = Entry(bucket="fleet", key=key, value=value, revision=self.revision)
        return self.bucket[key]

    def wait(self, seconds: float, *, beats: dict[str, tuple[int, int]] | None = None) -> None:
        """Time passes; `beats`: with a look every quarter of a second, in which these nodes beat."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.25
            if beats is None:
                self.take(Woken())
            else:
                heard = Heard(beats=beats, host_beats=tuple(beats), echo_at_s=self.now_s)
                self.take(heard)

    def said(self, type_: type[Any]) -> list[Any]:
        messages = [parse(e.type, e.message) for e in self.did if isinstance(e, Publish)]
        return [message for message in messages if isinstance(message, type_)]

    @property
    def batches(self) -> list[PutAll]:
        return [effect for effect in self.did if isinstance(effect, PutAll)]

    @property
    def fleet(self) -> Fleet:
        return self.machine.fleet


def test_a_gap_in_the_counters_is_asked_for_and_what_was_told_is_used() -> None:
    bench = Bench("b1")
    bench.take(a_sample("b1", 3, preempted("b1", "g1")))
    assert [asked.node for asked in bench.said(SampleAsked)] == ["b1"]
    bench.wait(0.25)
    assert bench.fleet.device(device("b1/g1")) is None
    bench.take(a_sample("b1", 4))
    bench.wait(0.25)
    assert bench.fleet.device(device("b1/g1")) is not None, "the full picture is the truth"


def test_a_beat_ahead_of_the_picture_is_a_gap() -> None:
    bench = Bench("b1")
    bench.wait(0.25, beats={"b1": (2, 0)})
    assert [asked.node for asked in bench.said(SampleAsked)] == ["b1"]


def test_an_agent_that_does_not_answer_is_asked_once_a_second() -> None:
    bench = Bench("b1")
    bench.wait(10.0, beats={"b1": (2, 0)})
    assert len(bench.said(SampleAsked)) == pytest.approx(10.0 / ASK_EVERY_S, abs=1)


def test_a_delta_older_than_the_picture_tells_nothing() -> None:
    bench = Bench("b1")
    bench.take(a_sample("b1", 5))
    bench.take(a_sample("b1", 4, preempted("b1", "g1")))
    bench.wait(0.25)
    assert bench.fleet.device(device("b1/g1")) is not None


def test_a_delta_before_any_picture_makes_no_node() -> None:
    bench = Bench()
    bench.take(a_sample("b1", 4, preempted("b1", "g1")))
    bench.wait(0.25)
    assert bench.fleet.nodes == ()
    assert len(bench.said(SampleAsked)) == 1


def test_changes_that_come_together_are_one_batch_and_one_word() -> None:
    bench = Bench("b1", "c1", "c2")
    for node in ("b1", "c1"):
        bench.take(a_sample(node, 2, preempted(node, "g0")))
        bench.now_s += GATHER_S / 4
    assert not bench.batches
    bench.wait(0.25)
    (batch,) = bench.batches
    (said,) = bench.said(FleetChanged)
    assert {put.key for put in batch.puts} == {"b1", "c1"}
    assert [node.revision == said.revision for node in bench.fleet.nodes] == [True, True, False]
    assert said.sentence == (
        "b1/g0 left (it was preempted); c1/g0 left (it was preempted)."
        " 6 devices are there, 6 take something new."
    )


def test_a_long_story_is_told_in_short() -> None:
    bench = Bench("a1", "a2", "a3", "b1", "b2", "c1")
    for node in ("a1", "a2", "a3", "b1", "b2", "c1"):
        bench.take(a_sample(node, 2, preempted(node, "g0")))
    bench.wait(0.25)
    (said,) = bench.said(FleetChanged)
    assert len(said.changes) == 6
    assert "and 2 more changes" in said.sentence


def test_the_word_comes_after_the_write_with_its_span_and_readings() -> None:
    bench = Bench("a1")
    bench.take(a_sample("a1", 2, preempted("a1", "g0")))
    bench.wait(0.25)
    kinds = [type(effect) for effect in bench.did]
    assert kinds.index(PutAll) < kinds.index(Publish) < kinds.index(Span)
    names = {effect.name for effect in bench.did if isinstance(effect, Measure)}
    assert "flexpipe_monitor_detection_seconds" in names


@pytest.mark.parametrize(
    ("fields", "urgent"),
    [
        ({"state": "preempted"}, True),
        ({"state": "failed"}, True),
        ({"leaves_at_s": 2_000.0}, True),
        ({"link_factor": 0.4}, True),
        ({"tenant": "batch"}, False),
        ({"memory_bytes": 7}, False),
    ],
)
def test_the_loop_looks_at_once_at_what_left_or_will_leave_or_is_slower(
    fields: dict[str, Any], urgent: bool
) -> None:
    bench = Bench("b1")
    changed = SPEC["b1"].devices[1].model_copy(update=fields)
    bench.take(a_sample("b1", 2, changed))
    bench.wait(0.25)
    assert [said.urgent for said in bench.said(FleetChanged)] == [urgent]


def test_a_conflict_is_taken_over_and_written_again() -> None:
    bench = Bench("b1")
    bench.refuse = True
    bench.take(a_sample("b1", 2, preempted("b1", "g1")))
    bench.wait(0.25)
    bench.refuse = False
    bench.wait(0.25)
    assert bench.fleet.device(device("b1/g0")) is not None
    assert bench.fleet.device(device("b1/g1")) is None
    assert len(bench.batches) == 2


def test_another_monitor_beside_this_one_ends_it() -> None:
    bench = Bench("b1")
    bench.refuse = True
    bench.take(a_sample("b1", 2, preempted("b1", "g1")))
    with pytest.raises(BrokenInvariant, match="another monitor"):
        bench.wait(CONFLICTS_LIMIT * 1.0)
    assert len(bench.batches) == CONFLICTS_LIMIT


def test_a_foreign_value_in_the_bucket_is_written_over() -> None:
    bench = Bench("b1")
    foreign = Entry(bucket="fleet", key="b1", value="not a node", revision=99)
    bench.bucket["b1"] = foreign
    bench.take(Watched(entry=foreign))
    bench.wait(0.25)
    assert bench.batches[-1].puts[0].expected == 99
    assert bench.fleet.device(device("b1/g0")) is not None


def test_a_lost_node_that_somebody_cleared_away_is_forgotten() -> None:
    bench = Bench("b1", "b2")
    bench.wait(3.0, beats={"b1": (1, 0)})
    assert [node.state for node in bench.fleet.nodes] == ["observed", "lost"]
    gone = Entry(bucket="fleet", key="b2", value=None, revision=50)
    bench.take(Watched(entry=gone))
    bench.wait(1.0, beats={"b1": (1, 0)})
    assert [node.node for node in bench.fleet.nodes] == ["b1"]


def test_a_monitor_that_finds_a_fleet_waits_for_every_agent_before_it_writes() -> None:
    before = Bench("a1", "a2")
    bench = Bench()
    entries = (*before.bucket.values(), a_host("a1"), a_host("a2"))
    bench.bucket = dict(before.bucket)
    bench.take(Started(entries=entries))
    assert [asked.node for asked in bench.said(SampleAsked)] == ["a1", "a2"]
    bench.take(a_sample("a1", 7, *()))
    bench.take(a_sample("a1", 8, preempted("a1", "g0")))
    bench.wait(0.5, beats={"a1": (8, 0), "a2": (1, 0)})
    assert not bench.batches, "blocks without the second node would be wrong"
    bench.take(a_sample("a2", 7))
    bench.wait(0.25)
    assert [put.key for put in bench.batches[0].puts] == ["a1"]
    assert bench.fleet.revision == before.fleet.revision + 1


def test_a_node_that_comes_back_was_not_found_out_by_its_long_silence() -> None:
    bench = Bench("b1", "b2")
    bench.wait(10.0, beats={"b1": (1, 0)})
    bench.did.clear()
    bench.take(a_sample("b2", 2))
    bench.wait(0.25)
    (said,) = bench.said(FleetChanged)
    assert {change.what for change in said.changes} == {"joined"}
    assert said.at_s - said.seen_s <= 0.25


def test_an_agent_that_beats_and_never_tells_does_not_hold_up_the_fleet() -> None:
    before = Bench("a1", "a2")
    bench = Bench()
    bench.bucket = dict(before.bucket)
    bench.take(Started(entries=(*before.bucket.values(), a_host("a1"), a_host("a2"))))
    bench.take(a_sample("a1", 7))
    bench.wait(SETTLE_S + 1.0, beats={"a1": (7, 0), "a2": (7, 0)})
    assert [node.state for node in bench.fleet.nodes] == ["observed", "unobserved"]


def test_a_fleet_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "NODES_BOUND", 2)
    bench = Bench("a1", "a2", "a3")
    bench.wait(0.5, beats={"x": (1, 0), "y": (1, 0)})
    assert [node.node for node in bench.fleet.nodes] == ["a1", "a2", "a3"]
    assert inputs.NODES_BOUND == 1000
