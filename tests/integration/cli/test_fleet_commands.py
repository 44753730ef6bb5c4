"""`flexpipe fleet` on a real bus: what it shows, whom it tells, and that it waits until the fleet shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from flexpipe.cli import altering
from flexpipe.model.shift import DeviceReservations, Reservation
from flexpipe.testing.builders import device
from flexpipe.testing.fleets import twenty_seven
from integration.cli.conftest import Terminal
from integration.cli.peers import EmulatedFleet, Peers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
async def fleet(peers: Peers) -> AsyncIterator[EmulatedFleet]:
    """The fleet of the story; only node a2 has a worker."""
    fleet = EmulatedFleet(peers, twenty_seven())
    await fleet.open(workers=["a2"])
    showing = asyncio.create_task(fleet.show())
    yield fleet
    showing.cancel()
    await asyncio.gather(showing, return_exceptions=True)


async def test_the_fleet_is_shown_with_who_holds_what(peers: Peers, terminal: Terminal) -> None:
    await peers.put_fleet(twenty_seven())
    one = Reservation(plan="p-abc", deployment="chat", term=1, shift=1, bytes=70_000_000_000)
    held = DeviceReservations(device=device("a1/g0"), held=(one,))
    await peers.put("executor", "reservations", held.device.key, held)
    document = await terminal.document("fleet")
    assert document["revision"] == 1
    assert len(document["fleet"]["nodes"]) == 9
    assert document["blocks"][0]["largest_free"]["id"] == "a.4-1"
    assert document["reservations"][0]["held"][0]["plan"] == "p-abc"
    said = await terminal.run("fleet")
    assert "fleet revision 1: 27 of 27 devices there, 27 open, 1 in use, 26 free" in said.words
    assert "← chat p-abc 70.0 GB" in said.words


async def test_status_shows_how_each_device_stands(peers: Peers, terminal: Terminal) -> None:
    node = twenty_seven().node("b3")
    assert node is not None
    closed = node.devices[0].model_copy(update={"closed": "no worker lists it"})
    await peers.put("monitor", "fleet", "b3", node.model_copy(update={"devices": (closed,)}))
    said = await terminal.run("status")
    assert "closed: no worker lists it" in said.words
    document = await terminal.document("status")
    assert document["fleet"]["nodes"][0]["devices"][0]["closed"] == "no worker lists it"


async def test_preempted_devices_are_told_to_agent_and_worker_and_shown(
    fleet: EmulatedFleet, terminal: Terminal
) -> None:
    document = await terminal.document("fleet", "preempt", "a2/g0", "a3/g1")
    assert document["devices"] == ["a2/g0", "a3/g1"]
    assert document["revision"] == 3
    assert [each["sentence"] for each in document["changes"]] == [
        "a2: preempt of 1",
        "a3: preempt of 1",
    ]
    told = [(each.node, each.change, each.devices) for each in fleet.altered]
    assert told == [("a2", "preempt", ("g0",)), ("a3", "preempt", ("g1",))]
    await until_withdrawn(fleet, 1)
    (kill,) = fleet.withdrawn  # a3 has no worker that could take a word
    assert (kill.node, kill.device, kill.present, kill.at_once) == ("a2", "g0", False, True)


async def test_what_was_taken_is_given_back(fleet: EmulatedFleet, terminal: Terminal) -> None:
    await terminal.document("fleet", "fail", "a2")
    said = await terminal.run("fleet", "restore", "a2")
    assert said.code == 0
    assert "fleet revision 3: a2: restore of 4 (noticed after 0.25 s)" in said.words
    assert [each.devices for each in fleet.altered] == [(), ()]
    await until_withdrawn(fleet, 8)
    assert [(each.device, each.present) for each in fleet.withdrawn] == [
        *((f"g{i}", False) for i in range(4)),
        *((f"g{i}", True) for i in range(4)),
    ]


async def until_withdrawn(fleet: EmulatedFleet, count: int) -> None:
    async with asyncio.timeout(20):
        while len(fleet.withdrawn) < count:  # noqa: ASYNC110 - heard by another task
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (("notice", "a2", "--in", "60"), {"change": "notice", "leaves_in_s": 60.0}),
        (("degrade", "a2", "--factor", "0.3"), {"change": "degrade", "factor": 0.3}),
        (("reserve", "a2", "--tenant", "research"), {"change": "reserve", "tenant": "research"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
async def test_what_leaves_devices_there_is_told_to_agents_alone(
    fleet: EmulatedFleet,
    terminal: Terminal,
    words: tuple[str, ...],
    fields: dict[str, object],
) -> None:
    document = await terminal.document("fleet", *words)
    assert document["change"] == fields["change"]
    (order,) = fleet.altered
    assert order.model_dump(include=set(fields)) == fields
    # Restoring reaches the worker on the same queue: nothing was said to it before.
    await terminal.document("fleet", "restore", "a2")
    await until_withdrawn(fleet, 4)
    assert all(each.present for each in fleet.withdrawn)


async def test_a_block_is_all_its_devices(fleet: EmulatedFleet, terminal: Terminal) -> None:
    document = await terminal.document("fleet", "preempt", "a.8-0")
    assert len(document["devices"]) == 8
    assert [each.node for each in fleet.altered] == ["a1", "a2"]


async def test_what_is_so_already_is_said_and_not_waited_for(
    fleet: EmulatedFleet, terminal: Terminal
) -> None:
    await terminal.document("fleet", "preempt", "b3")
    said = await terminal.run("fleet", "preempt", "b3")
    assert said.code == 0
    assert "told; the fleet (revision" in said.words
    assert said.words.endswith("was so already")


async def test_a_silent_agent_is_named(
    peers: Peers, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peers.put_fleet(twenty_seven())
    monkeypatch.setattr(altering, "SHOWN_LIMIT_S", 0.3)
    line = await terminal.refused("fleet", "preempt", "b3", "c1/g0")
    assert line.startswith("no agent answered for b3, c1: after 0.3 s the fleet does not show it")


async def test_a_target_that_is_not_there_changes_nothing(
    fleet: EmulatedFleet, terminal: Terminal
) -> None:
    said = await terminal.run("fleet", "preempt", "a1", "z9/g0")
    assert (said.code, said.out) == (2, "")
    assert "no such node, node/device or block; there are: a1" in said.err
    assert len(said.err.splitlines()) == 1
    assert fleet.altered == []
