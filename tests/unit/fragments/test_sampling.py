"""The agent's machine: full samples and deltas, orders that alter a node, notices, silence, restarts."""

from __future__ import annotations

from typing import Any

from flexpipe.events.catalog import parse
from flexpipe.events.fleet import AlterNode, NodeSampled, SampleAsked
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import WithdrawDevice
from flexpipe.fragments.inputs import NodesGiven, Remark
from flexpipe.fragments.sampling import DEGRADED, NOTICE_S, TENANT, Agent
from flexpipe.kernel.machine import Delivered, Effects, Publish, Woken
from flexpipe.model.fleet import Device
from flexpipe.testing.fleets import twenty_seven_spec

NODES = tuple(node for node in twenty_seven_spec().nodes if node.node in ("a1", "a2"))
NOW_S = 1_000.0


def opened() -> Agent:
    agent = Agent()
    agent.handle(NOW_S, NodesGiven(nodes=NODES))
    return agent


def delivered(message: Message, sent_at_s: float | None = None) -> Delivered:
    said = publish(message)
    return Delivered(
        type=said.type, message=said.message, message_id=said.message_id, sent_at_s=sent_at_s
    )


def alter(agent: Agent, change: str, *devices: str, now_s: float = NOW_S, **fields: Any) -> Effects:
    order = {"node": "a2", "change": change, "devices": devices, **fields}
    return agent.handle(now_s, delivered(AlterNode.model_validate(order)))


def said(effects: Effects) -> list[Message]:
    return [parse(e.type, e.message) for e in effects.do if isinstance(e, Publish)]


def samples(effects: Effects) -> list[NodeSampled]:
    return [message for message in said(effects) if isinstance(message, NodeSampled)]


def remarks(effects: Effects) -> list[str]:
    return [effect.text for effect in effects.do if isinstance(effect, Remark)]


def only(effects: Effects) -> Device:
    """The one device of the one delta."""
    (sample,) = samples(effects)
    assert not sample.full
    (device,) = sample.devices
    return device


def test_an_agent_tells_everything_first_and_changes_after() -> None:
    agent = Agent()
    first = samples(agent.handle(NOW_S, NodesGiven(nodes=NODES)))
    assert [(s.node, s.counter, s.full, len(s.devices)) for s in first] == [
        ("a1", 1, True, 4),
        ("a2", 1, True, 4),
    ]
    assert first[0].rack == "rack-a"
    assert first[0].fabrics == NODES[0].fabrics
    (delta,) = samples(alter(agent, "preempt", "g1"))
    assert (delta.node, delta.counter, delta.full) == ("a2", 2, False)
    assert [(d.device, d.state) for d in delta.devices] == [("g1", "preempted")]


def test_an_order_twice_is_an_order_once() -> None:
    agent = opened()
    for change, fields in {
        "preempt": {},
        "restore": {},
        "degrade": {"factor": 0.4},
        "reserve": {"tenant": "batch"},
        "notice": {"leaves_in_s": 60.0},
    }.items():
        first = alter(agent, change, "g1", **fields)
        assert len(samples(first)) == 1, change
        assert not alter(agent, change, "g1", **fields).do, change


def test_orders_name_what_they_leave_out() -> None:
    agent = opened()
    assert only(alter(agent, "degrade", "g0")).link_factor == DEGRADED
    assert only(alter(agent, "reserve", "g1")).tenant == TENANT
    assert only(alter(agent, "notice", "g2")).leaves_at_s == NOW_S + NOTICE_S


def test_no_device_named_means_the_whole_node() -> None:
    (delta,) = samples(alter(opened(), "preempt"))
    assert [d.state for d in delta.devices] == ["preempted"] * 4


def test_restore_brings_back_what_was_declared() -> None:
    agent = opened()
    for change in ("degrade", "reserve", "notice", "preempt"):
        alter(agent, change)
    (delta,) = samples(alter(agent, "restore"))
    assert delta.devices == NODES[1].devices


def test_a_failed_device_comes_back_only_by_restore() -> None:
    agent = opened()
    assert only(alter(agent, "fail", "g0")).state == "failed"
    for change in ("preempt", "notice", "degrade"):
        assert not alter(agent, change, "g0").do
    assert only(alter(agent, "restore", "g0")).state == "present"


def test_a_notice_runs_out_by_itself_and_the_worker_is_told() -> None:
    agent = opened()
    effects = alter(agent, "notice", "g1", leaves_in_s=30.0)
    assert effects.wake_at_s == NOW_S + 30
    assert not agent.handle(NOW_S + 29.9, Woken()).do
    effects = agent.handle(NOW_S + 30, Woken())
    assert only(effects).state == "preempted"
    assert only(effects).leaves_at_s is None
    assert [
        (m.device, m.present, m.at_once) for m in said(effects) if isinstance(m, WithdrawDevice)
    ] == [("g1", False, True)]
    assert effects.wake_at_s is None


def test_a_notice_counts_from_when_it_was_sent() -> None:
    agent = opened()
    order = AlterNode(node="a2", change="notice", devices=("g1",), leaves_in_s=30.0)
    first = agent.handle(NOW_S, delivered(order, sent_at_s=NOW_S - 10))
    assert only(first).leaves_at_s == NOW_S + 20
    again = agent.handle(NOW_S + 5, delivered(order, sent_at_s=NOW_S - 10))
    assert not again.do, "delivered again it is the same notice"


def test_a_notice_that_comes_too_late_is_a_preemption() -> None:
    agent = opened()
    order = AlterNode(node="a2", change="notice", devices=("g1",), leaves_in_s=30.0)
    states = [
        device.state
        for sample in samples(agent.handle(NOW_S, delivered(order, sent_at_s=NOW_S - 60)))
        for device in sample.devices
    ]
    assert states[-1] == "preempted"


def test_unknown_names_change_nothing_and_are_remarked() -> None:
    agent = opened()
    before = agent.snapshot()
    assert remarks(alter(agent, "preempt", "g7")) == [
        "node a2 has no device g7; nothing is changed"
    ]
    elsewhere = delivered(AlterNode(node="z9", change="preempt"))
    assert remarks(agent.handle(NOW_S, elsewhere)) == [
        "z9 is not a node of this agent; nothing is changed"
    ]
    assert agent.snapshot() == before


def test_a_node_that_failed_as_a_whole_is_silent_until_restored() -> None:
    agent = opened()
    assert [beat.node for beat in agent.beats] == ["a1", "a2"]
    assert not samples(alter(agent, "fail"))
    assert [beat.node for beat in agent.beats] == ["a1"]
    assert agent.failed == ("a2",)
    assert not agent.handle(NOW_S, delivered(SampleAsked(node="a2"))).do
    assert remarks(alter(agent, "preempt", "g0")) == [
        "node a2 has failed: only restore reaches it; nothing is changed"
    ]
    (full,) = samples(alter(agent, "restore"))
    assert full.full
    assert full.devices == NODES[1].devices
    assert [beat.node for beat in agent.beats] == ["a1", "a2"]


def test_the_full_picture_is_told_on_request() -> None:
    agent = opened()
    alter(agent, "preempt", "g1")
    (full,) = samples(agent.handle(NOW_S, delivered(SampleAsked(node="a2"))))
    assert (full.full, full.counter, len(full.devices)) == (True, 3, 4)
    assert [beat.counter for beat in agent.beats] == [1, 3]


def test_what_was_altered_outlives_a_restart() -> None:
    agent = opened()
    alter(agent, "preempt", "g1")
    alter(agent, "notice", "g2", leaves_in_s=30.0)
    alter(agent, "notice", "g3", leaves_in_s=90.0)
    again = Agent()
    again.restore(agent.snapshot())
    effects = again.handle(NOW_S + 60, NodesGiven(nodes=NODES))
    full = samples(effects)[-1]
    assert [d.state for d in full.devices] == ["present", "preempted", "preempted", "present"]
    assert full.counter > 4, "the counter goes on"
    assert effects.wake_at_s == NOW_S + 90


def test_devices_that_are_declared_otherwise_now_start_anew() -> None:
    agent = opened()
    alter(agent, "preempt")
    larger = tuple(
        device.model_copy(update={"memory_bytes": 1}) if device.device == "g0" else device
        for device in NODES[1].devices
    )
    again = Agent()
    again.restore(agent.snapshot())
    spec = NODES[1].model_copy(update={"devices": larger})
    (full,) = samples(again.handle(NOW_S, NodesGiven(nodes=(spec,))))
    assert [d.state for d in full.devices] == ["present", *["preempted"] * 3]


def test_messages_that_come_before_the_nodes_are_not_lost() -> None:
    agent = Agent()
    order = AlterNode(node="a2", change="preempt", devices=("g1",))
    assert not agent.handle(NOW_S, delivered(order)).do
    states = {
        device.device: device.state
        for sample in samples(agent.handle(NOW_S, NodesGiven(nodes=NODES)))
        if sample.node == "a2"
        for device in sample.devices
    }
    assert states["g1"] == "preempted"
