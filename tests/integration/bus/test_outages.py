"""The bus goes away: killed, frozen, back on the same store. Nothing acked is lost, nobody stays deaf."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import nats.errors
import pytest
from nats.js.kv import KeyValue

from flexpipe.bus import Bus, BusSettings, Hearing, MachineShell, connect
from flexpipe.bus import ears as ears_module
from flexpipe.bus.journal import Fed, parse_line, read_journal
from flexpipe.bus.outbox import OUTBOX_BOUND
from flexpipe.bus.server import EmbeddedServer
from flexpipe.events.outgoing import publish
from flexpipe.events.route import LoadObserved
from flexpipe.events.shift import OrderShift, ShiftRefused
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.machine import Effects, Input, Publish, Put
from flexpipe.testing.nats import Dial, until
from flexpipe.testing.recorder import Recorder
from flexpipe.testing.tally import Nudged, Tally, an_order

pytestmark = pytest.mark.processes

MESSAGES = 120


async def test_no_server_is_one_line_within_the_limit() -> None:
    settings = BusSettings.model_validate(
        {"url": "nats://127.0.0.1:1", "user": "worker", "password": "x", "connect_limit_s": 0.6}
    )
    with pytest.raises(
        Unavailable, match=r"no NATS server at nats://127.0.0.1:1 within 0.6 s"
    ) as e:
        async with connect(settings, service="worker", name="node-a"):
            pass
    assert "\n" not in str(e.value)


async def test_echo_fails_while_the_server_is_frozen_and_returns_when_it_thaws(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    bus = await dial("worker", "node-a")
    assert await bus.echo(1.0) < 1.0
    os.kill(nats_server.pid, signal.SIGSTOP)
    await until(lambda: is_frozen(nats_server.pid))
    try:
        with pytest.raises(Unavailable):
            await bus.echo(0.3)
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)
    assert await bus.echo(2.0) < 2.0


async def test_a_killed_server_comes_back_and_every_message_is_handled(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    executor, operator = await dial("executor"), await dial("operator", "cli")
    machine, told = Tally(), []

    async def collect() -> None:
        async with operator.listen((Hearing(ShiftRefused),), since_s=0) as answers:
            async for answer in answers:
                told.append(answer.message_id)

    async def order() -> None:
        for i in range(MESSAGES):
            await operator.publish(an_order(f"o-{i}"))

    shell = a_shell(executor, machine, hears=(Hearing(OrderShift),), watches=("routes",))
    async with shell:
        ordering = asyncio.create_task(order())
        for fraction in (3, 2):
            await until(lambda f=fraction: len(machine.state.orders) >= MESSAGES // f)
            await nats_server.kill()
            await nats_server.start()
        await ordering
        await until(lambda: len(machine.state.orders) >= MESSAGES, 40)
    assert sorted(machine.state.orders) == sorted(f"o-{i}" for i in range(MESSAGES))
    assert (await executor.read("routes", "toy")).value == f'{{"orders":{MESSAGES}}}'
    collecting = asyncio.create_task(collect())
    await until(lambda: len(told) >= MESSAGES)
    collecting.cancel()
    assert len(set(told)) == MESSAGES


async def test_a_watch_hears_of_changes_after_the_server_was_killed(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    executor, worker = await dial("executor"), await dial("worker", "node-a")
    machine = Recorder()
    async with a_shell(worker, machine, watches=("routes",)):
        first = (await executor.put(a_put("1", 0))).entries[0]
        await until(lambda: machine.entries.get(("routes", "toy")) == first)
        await nats_server.kill()
        await nats_server.start()
        second = (await executor.put(a_put("2", first.revision))).entries[0]
        await until(lambda: machine.entries["routes", "toy"] == second)


async def test_a_watch_that_missed_a_change_is_healed_by_comparing(
    dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(_: object, **limits: float) -> None:
        await asyncio.sleep(limits["timeout"])
        raise nats.errors.TimeoutError

    monkeypatch.setattr(KeyValue.KeyWatcher, "updates", deaf)
    executor, worker = await dial("executor"), await dial("worker", "node-a")
    machine = Recorder()
    async with a_shell(worker, machine, watches=("routes",), compare_every_s=0.3):
        first = (await executor.put(a_put("1", 0))).entries[0]
        await until(lambda: machine.entries.get(("routes", "toy")) == first)
        gone = await executor.put(a_put(None, first.revision))
        await until(lambda: machine.entries["routes", "toy"] == gone.entries[0])


async def test_an_ear_that_went_deaf_is_mounted_anew(
    dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ears_module, "DEAF_LOOK_S", 0.1)
    executor, operator = await dial("executor"), await dial("operator", "cli")
    machine = Recorder()
    shell = a_shell(executor, machine, hears=(Hearing(OrderShift),))
    async with shell:
        await operator.publish(an_order("o-1"))
        await until(lambda: len(machine.delivered) == 1)
        for task in shell._ears[0]._subscriber.tasks:
            task.cancel()
        await operator.publish(an_order("o-2"))
        await until(lambda: len(machine.delivered) == 2)


async def test_a_consumer_that_vanished_is_declared_anew(
    nats_server: EmbeddedServer, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ears_module, "DEAF_LOOK_S", 0.1)
    executor, operator = await dial("executor"), await dial("operator", "cli")
    admin = await dial("operator", "admin", user="admin")
    machine = Recorder()
    async with a_shell(executor, machine, hears=(Hearing(OrderShift),)):
        await admin.main.jetstream.delete_consumer("FLEXPIPE_CMD", "executor-main")
        await operator.publish(an_order("o-1"))
        await until(lambda: machine.delivered)


async def test_a_machine_goes_on_deciding_locally_while_the_bus_is_away(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    executor = await dial("executor")
    machine = Recorder(
        lambda _, e: Effects(do=(a_refusal(e.text),)) if isinstance(e, Nudged) else Effects()
    )
    async with a_shell(executor, machine, journaled=True) as shell:
        await nats_server.kill()
        await until(lambda: not executor.main.is_up)
        for i in range(100):
            await asyncio.wait_for(shell.feed(Nudged(text=f"n-{i}")), 1)
        await nats_server.start()
        await asyncio.wait_for(shell._outbox.reached(shell._outbox.mark), 20)
    told = []
    operator = await dial("operator", "cli")
    async with (
        asyncio.timeout(20),
        operator.listen((Hearing(ShiftRefused),), since_s=0) as answers,
    ):
        while len(told) < 100:
            told.append((await anext(answers)).message_id)
    assert told == [a_refusal(f"n-{i}").message_id for i in range(100)]


async def test_a_machine_that_is_fed_much_through_an_outage_keeps_its_pace_and_its_journal(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    """More inputs, each with a message of the noise lane, than messages may wait."""
    router = await dial("router", "r")
    machine = Recorder(lambda _, event: Effects(do=(a_load(event),)))
    count = OUTBOX_BOUND + 2000
    async with a_shell(router, machine, journaled=True) as shell:
        await nats_server.kill()
        async with asyncio.timeout(60):
            for number in range(count):
                await shell.feed(Nudged(text=str(number)))
        await nats_server.start()
    nudges = [event.text for event in machine.fed if isinstance(event, Nudged)]
    assert nudges == [str(number) for number in range(count)]
    operator = await dial("operator", "cli")
    lines = [line async for line in read_journal(operator, "router", "r")]
    fed = [line for text in lines if isinstance(line := parse_line(text), Fed)]
    assert [line.input.get("text") for line in fed if line.kind == "Nudged"] == nudges


async def test_a_listener_goes_on_behind_what_it_heard_when_the_server_was_killed(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    executor, operator = await dial("executor"), await dial("operator", "cli")
    first, second = a_refusal("1"), a_refusal("2")
    async with operator.listen((Hearing(ShiftRefused),)) as messages, asyncio.timeout(30):
        await executor.publish(first)
        assert (await anext(messages)).message_id == first.message_id
        await nats_server.kill()
        await nats_server.start()
        await executor.publish(second)
        assert (await anext(messages)).message_id == second.message_id


async def test_a_write_waits_through_an_outage_and_lands_once(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    executor = await dial("executor")
    await nats_server.kill()
    await until(lambda: not executor.main.is_up)
    writing = asyncio.create_task(executor.put(a_put("1", 0)))
    reading = asyncio.create_task(executor.put(a_put("2", 0, "other")))
    await asyncio.wait({writing, reading}, timeout=0.5)
    assert not writing.done()
    await nats_server.start()
    outcomes = sorted([(await writing).outcome, (await reading).outcome])
    assert outcomes == ["conflict", "written"]
    assert (await executor.read("routes", "toy")).revision == 1


async def test_a_write_says_that_it_does_not_know_when_its_time_is_up(
    nats_server: EmbeddedServer, dial: Dial
) -> None:
    executor = await dial("executor")
    await nats_server.kill()
    with pytest.raises(Unavailable, match="not known within"):
        await executor.put(a_put("1", 0), limit_s=0.4)


async def test_stopping_a_shell_while_the_bus_is_away_takes_bounded_time(
    nats_server: EmbeddedServer, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flexpipe.bus.shell.FLUSH_LIMIT_S", 0.5)
    executor = await dial("executor")
    async with asyncio.timeout(20):
        async with a_shell(executor, Tally(), hears=(Hearing(OrderShift),), journaled=True):
            await nats_server.kill()


def is_frozen(pid: int) -> bool:
    """Whether every thread has stopped: the signal reaches them one after the other."""
    states = [
        stat.read_text().rpartition(")")[2].split()[0]
        for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


def a_shell(bus: Bus, machine: object, **options: object) -> MachineShell:
    return MachineShell(
        bus,
        machine=machine,  # type: ignore[arg-type]
        service=bus.service,
        name=bus.name,
        **options,  # type: ignore[arg-type]
    )


def a_load(cause: Input) -> Publish:
    """Noise."""
    load = LoadObserved(
        router="r", deployment="toy", window_s=5.0, arrived=0, queued=0, parked=0, plans=()
    )
    return publish(load, cause.canonical_json())


def a_refusal(order_id: str) -> Publish:
    return publish(ShiftRefused(deployment="toy", order_id=order_id, reason="a test"), "test")


def a_put(value: str | None, expected: int, write: str = "w") -> Put:
    return Put(
        write_id=f"{write}-{value}", bucket="routes", key="toy", value=value, expected=expected
    )
