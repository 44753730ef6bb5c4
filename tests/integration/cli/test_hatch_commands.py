"""The hatch by command, on a real bus: said on the urgent lane, followed to the executor's last word."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from flexpipe.cli import hatch
from flexpipe.events.hatch import (
    CancelShift,
    DownshiftDeployment,
    UnpinDeployment,
    Urgent,
    UrgentAnswered,
)
from flexpipe.events.message import Message
from flexpipe.events.shift import (
    OrderShift,
    ShiftCompleted,
    ShiftOrdered,
    ShiftPhaseChanged,
    ShiftRefused,
    ShiftRolledBack,
)
from flexpipe.model.shift import Phase, StartClass
from flexpipe.testing.builders import a_deployment, a_node
from flexpipe.testing.recorder import Recorder
from integration.cli.conftest import Terminal
from integration.cli.peers import Peers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

URGENT = (DownshiftDeployment, CancelShift, UnpinDeployment)
VERBS = {DownshiftDeployment: "downshift", CancelShift: "cancel", UnpinDeployment: "unpin"}
Word = tuple[str, str]
Step = Word | Message
"""An answer (outcome and sentence), or something else that the executor says."""


ORDERED = ShiftOrdered(
    deployment="chat",
    shift=7,
    order_id="o",
    source_gear="g-1",
    target_gear="g-2",
    trigger="downshift by anna: bad night",
)
PREPARING = ShiftPhaseChanged(
    deployment="chat", shift=7, phase=Phase.PREPARING, previous=None, at_s=1.0
)
UNDONE = ShiftRolledBack(
    deployment="chat", shift=6, gear="g-1", reason="downshift by anna", duration_s=3.0
)
COMPLETED = ShiftCompleted(
    deployment="chat", shift=7, gear="g-2", start_class=StartClass.COLD, duration_s=12.0
)
UNDER_WAY = ("under-way", "shift 6 is undone, then the baseline tp1 of chat begins")
DONE = ("done", "baseline tp1 of chat is in force; it is pinned")


def script(*steps: Step) -> Callable[[Message, str], Sequence[Message]]:
    """What the executor says to an urgent command."""

    def react(message: Message, message_id: str) -> list[Message]:
        assert isinstance(message, Urgent)
        return [
            step
            if isinstance(step, Message)
            else UrgentAnswered.model_validate(
                {
                    "deployment": message.deployment,
                    "verb": VERBS[type(message)],
                    "message_id": message_id,
                    "outcome": step[0],
                    "says": step[1],
                }
            )
            for step in steps
        ]

    return react


async def executor(peers: Peers, *steps: Step) -> Recorder:
    """One that answers every urgent command by the script; `chat` is declared."""
    await peers.put("operator", "deployments", "chat", a_deployment("chat"))
    return await peers.listening("executor", URGENT, script(*steps))


async def test_a_downshift_is_followed_until_the_baseline_is_in_force(
    peers: Peers, terminal: Terminal
) -> None:
    heard = await executor(peers, UNDER_WAY, UNDONE, ORDERED, PREPARING, COMPLETED, DONE)
    said = await terminal.run("downshift", "chat", "--reason", "bad night")
    assert said.code == 0
    places = [
        said.words.index(part)
        for part in (
            "under-way: shift 6 is undone",
            "rolled back after 3.0 s: downshift by anna",
            "shift 7 accepted: downshift by anna: bad night",
            "preparing",
            "completed after 12.0 s (cold)",
            "done: baseline tp1 of chat is in force",
        )
    ]
    assert places == sorted(places)
    command = DownshiftDeployment.model_validate_json(heard.delivered[0].message)
    assert (command.deployment, command.reason) == ("chat", "bad night")
    assert command.by


async def test_a_downshift_is_one_document_for_programs(peers: Peers, terminal: Terminal) -> None:
    await executor(peers, UNDER_WAY, ORDERED, COMPLETED, DONE)
    document = await terminal.document("downshift", "chat")
    assert document["answer"]["outcome"] == "done"
    assert document["ended"]["shift"] == 7


async def test_a_downshift_that_is_in_force_already_is_done(
    peers: Peers, terminal: Terminal
) -> None:
    await executor(peers, DONE)
    assert (await terminal.document("downshift", "chat"))["ended"] is None


async def test_a_downshift_need_not_be_waited_for(peers: Peers, terminal: Terminal) -> None:
    await executor(peers, UNDER_WAY)
    document = await terminal.document("downshift", "chat", "--no-wait")
    assert document["answer"]["outcome"] == "under-way"


async def test_a_downshift_that_fails_on_the_way_ends_in_one_line(
    peers: Peers, terminal: Terminal
) -> None:
    failed = ("refused", "no baseline fits: no block of 8; chat stays pinned")
    await executor(peers, UNDER_WAY, UNDONE, failed)
    assert await terminal.refused("downshift", "chat", "--json") == failed[1]


@pytest.mark.parametrize("verb", ["cancel", "unpin"])
async def test_cancel_and_unpin_end_with_the_first_answer(
    peers: Peers, terminal: Terminal, verb: str
) -> None:
    heard = await executor(peers, ("under-way", "shift 6 is undone"))
    document = await terminal.document(verb, "chat", "--reason", "by hand")
    assert (document["answer"]["verb"], document["answer"]["outcome"]) == (verb, "under-way")
    (delivered,) = heard.delivered
    assert VERBS[next(kind for kind in URGENT if kind.__name__ == delivered.type)] == verb


async def test_a_refusal_is_one_line(peers: Peers, terminal: Terminal) -> None:
    says = "no shift of chat is in flight that could be undone"
    await executor(peers, ("refused", says))
    assert await terminal.refused("cancel", "chat") == says


async def test_answers_to_others_are_not_ours(
    peers: Peers, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch, "ANSWER_LIMIT_S", 0.5)
    other = UrgentAnswered(
        deployment="chat", verb="downshift", message_id="other", outcome="done", says="theirs"
    )
    await executor(peers, other)
    line = await terminal.refused("downshift", "chat")
    assert line == "no executor answered within 0.5 s; is it running?"


async def test_a_deployment_that_nobody_declared_is_named(peers: Peers, terminal: Terminal) -> None:
    heard = await executor(peers, DONE)
    said = await terminal.run("downshift", "nobody")
    assert (said.code, said.out) == (2, "")
    assert "apply it first; there are: chat" in said.err
    assert heard.delivered == []


async def test_an_order_by_hand_is_refused_while_pinned_in_the_executors_words(
    peers: Peers, terminal: Terminal
) -> None:
    says = "chat is pinned by anna: bad night; unpin it first"

    def refuse(message: Message, _: str) -> list[Message]:
        assert isinstance(message, OrderShift)
        return [ShiftRefused(deployment="chat", order_id=message.order_id, reason=says)]

    node = a_node("node-a")
    emulated = tuple(each.model_copy(update={"kind": "emulated"}) for each in node.devices)
    await peers.put("operator", "deployments", "chat", a_deployment("chat"))
    await peers.put("monitor", "fleet", "node-a", node.model_copy(update={"devices": emulated}))
    await peers.listening("executor", (OrderShift,), refuse)
    assert await terminal.refused("shift", "chat", "--to", "tp1") == says
