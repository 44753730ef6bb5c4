"""What an operator types with any NATS client on the urgent lane is heard, and before anything else that waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client

from flexpipe.bus import Bus, Hearing, MachineShell
from flexpipe.bus.deadletters import read_dead_letters
from flexpipe.bus.server import EmbeddedServer
from flexpipe.events import catalog
from flexpipe.events.hatch import CancelShift, DownshiftDeployment, UnpinDeployment
from flexpipe.events.outgoing import publish
from flexpipe.events.shift import OrderShift
from flexpipe.kernel.machine import Effect, Effects, Input
from flexpipe.testing.nats import Dial, until
from flexpipe.testing.recorder import Recorder
from flexpipe.testing.tally import Nudged, Ring, an_order

pytestmark = pytest.mark.processes

HEARS = tuple(
    Hearing(kind) for kind in (OrderShift, DownshiftDeployment, CancelShift, UnpinDeployment)
)


@pytest.fixture
async def hands(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    """The operator's own NATS client: nothing of ours."""
    settings = nats_server.settings("operator")
    client = await nats.connect(
        settings.url, user="operator", password=settings.password.get_secret_value()
    )
    yield client
    await client.close()


def a_shell(bus: Bus, machine: Recorder, **options: object) -> MachineShell:
    return MachineShell(
        bus,
        machine=machine,
        service="executor",
        name="main",
        hears=HEARS,
        **options,  # type: ignore[arg-type]
    )


async def test_a_typed_downshift_is_heard_before_everything_that_waits(
    dial: Dial, hands: Client
) -> None:
    bus, operator = await dial("executor"), await dial("operator", "cli")
    free = asyncio.Event()

    async def hold(_: Effect) -> None:
        await free.wait()

    def answer(_: float, event: Input) -> Effects:
        return Effects(do=(Ring(text="x"),) if event == Nudged(text="first") else ())

    machine = Recorder(answer)
    async with a_shell(bus, machine, perform=hold) as shell:
        feeding = [asyncio.create_task(shell.feed(Nudged(text=t))) for t in ("first", "second")]
        await until(lambda: machine.of(Nudged))
        await operator.publish(an_order("usual"))
        await hands.publish("flexpipe.urgent.downshift.toy", b"{}")
        await until(lambda: len(shell._intake._urgent) == 1)
        await until(lambda: len(shell._intake._usual) == 2)
        free.set()
        await asyncio.gather(*feeding)
        await until(lambda: len(machine.delivered) == 2)
    assert [event.type for event in machine.delivered] == ["DownshiftDeployment", "OrderShift"]
    assert machine.fed.index(machine.delivered[0]) < machine.fed.index(Nudged(text="second"))


async def test_every_typed_verb_is_heard_with_the_deployment_of_its_subject_and_its_time(
    dial: Dial, hands: Client
) -> None:
    bus, machine, began_s = await dial("executor"), Recorder(), time.time()
    async with a_shell(bus, machine):
        await hands.publish("flexpipe.urgent.cancel.toy", b"")
        await hands.publish("flexpipe.urgent.unpin.toy", b'{"by":"Ana"}')
        await hands.publish("flexpipe.urgent.downshift.toy", b'{"deployment":"toy","reason":"!"}')
        await hands.publish("flexpipe.urgent.downshift.toy", b'{"deployment":"toy","reason":"!"}')
        await until(lambda: len(machine.delivered) == 4)
    said = [catalog.parse(each.type, each.message) for each in machine.delivered]
    assert said == [
        CancelShift(deployment="toy"),
        UnpinDeployment(deployment="toy", by="Ana"),
        DownshiftDeployment(deployment="toy", reason="!"),
        DownshiftDeployment(deployment="toy", reason="!"),
    ]
    for each in machine.delivered:
        assert each.sent_at_s is not None
        assert began_s - 1 <= each.sent_at_s <= time.time() + 1


async def test_the_command_line_says_the_same_with_headers(dial: Dial) -> None:
    bus, operator, machine = await dial("executor"), await dial("operator", "cli"), Recorder()
    async with a_shell(bus, machine):
        await operator.publish(publish(DownshiftDeployment(deployment="toy", by="Ana"), "once"))
        await until(lambda: machine.delivered)
    assert '"by":"Ana"' in machine.delivered[0].message


@pytest.mark.parametrize(
    ("subject", "body", "reason"),
    [
        ("downshift.toy", b'{"deployment":"other"}', "deployment: 'other'"),
        ("downshift.toy", b"now", "a body is JSON"),
        ("downshift.Toy", b"{}", "deployment: String should match pattern"),
        ("downshift.toy.toy", b"{}", "deployment: String should match pattern"),
    ],
)
async def test_what_is_typed_wrongly_is_a_dead_letter_and_the_next_is_heard(
    dial: Dial, hands: Client, subject: str, body: bytes, reason: str
) -> None:
    bus, machine = await dial("executor"), Recorder()
    async with a_shell(bus, machine):
        await hands.publish(f"flexpipe.urgent.{subject}", body)
        await hands.publish("flexpipe.urgent.downshift.toy", b"{}")
        await until(lambda: machine.delivered)
    (letter,) = await read_dead_letters(bus)
    assert reason in letter.reason


async def test_elsewhere_a_body_alone_is_a_dead_letter(dial: Dial, hands: Client) -> None:
    bus, operator, machine = await dial("executor"), await dial("operator", "cli"), Recorder()
    async with a_shell(bus, machine):
        await hands.publish("flexpipe.cmd.shift.order.toy", b"{}")
        await hands.flush()
        await operator.publish(an_order("after"))
        await until(lambda: machine.delivered)
    (letter,) = await read_dead_letters(bus)
    assert "ce-type" in letter.reason
    assert len(machine.delivered) == 1
