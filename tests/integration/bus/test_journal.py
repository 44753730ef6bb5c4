"""Journal, replay, snapshot and resume on a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flexpipe.bus import Bus, Hearing, MachineShell
from flexpipe.bus import memory as memory_module
from flexpipe.bus.journal import read_journal, read_kept, write_journal_file
from flexpipe.bus.replay import replay
from flexpipe.events.shift import OrderShift
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.machine import Effect, Effects, Input, Put
from flexpipe.testing.nats import Dial, until
from flexpipe.testing.recorder import Recorder
from flexpipe.testing.tally import Nudged, Ring, Tally, an_order

pytestmark = pytest.mark.processes


@pytest.fixture
async def executor(dial: Dial) -> Bus:
    return await dial("executor")


@pytest.fixture
async def operator(dial: Dial) -> Bus:
    return await dial("operator", "cli")


class Silent(Tally):
    """Knows what a tally knows and says nothing."""

    def handle(self, now_s: float, event: Input) -> Effects:
        super().handle(now_s, event)
        return Effects()


async def rings(effect: Effect) -> None:
    assert isinstance(effect, Ring)


def a_shell(bus: Bus, machine: object, *, resume: bool = False) -> MachineShell:
    return MachineShell(
        bus,
        machine=machine,  # type: ignore[arg-type]
        service=bus.service,
        name=bus.name,
        hears=(Hearing(OrderShift),),
        watches=("routes",),
        perform=rings,
        journaled=True,
        resume=resume,
    )


async def lines_of(bus: Bus) -> list[str]:
    return [line async for line in read_journal(bus, "executor", "main")]


async def test_a_journal_fed_to_a_fresh_machine_gives_the_same_effects(
    executor: Bus, operator: Bus, tmp_path: Path
) -> None:
    machine = Tally()
    async with a_shell(executor, machine) as shell:
        for i in range(10):
            await operator.publish(an_order(f"o-{i}"))
            await shell.feed(Nudged(text=f"n-{i}"))
        await until(lambda: len(machine.state.orders) == 10 and machine.state.naps)
    file = tmp_path / "journal.jsonl"
    count = await write_journal_file(operator, "executor", "main", file)
    lines = file.read_text().splitlines()
    assert len(lines) == count > 30
    fresh: list[Tally] = []

    def make() -> Tally:
        fresh.append(Tally())
        return fresh[-1]

    report = replay(lines, make)
    assert (report.differing, report.runs, report.events) == ((), 1, count - 1)
    assert fresh[0].snapshot() == machine.snapshot()


async def test_a_machine_that_decides_otherwise_is_found_out(executor: Bus, operator: Bus) -> None:
    machine = Tally()
    async with a_shell(executor, machine):
        await operator.publish(an_order("o-1"))
        await until(lambda: machine.state.orders)
    report = replay(await lines_of(executor), Silent)
    assert [each.kind for each in report.differing] == ["Delivered"]


async def test_crashes_are_in_the_journal_and_crash_again_in_a_replay(
    executor: Bus, operator: Bus
) -> None:
    machine = Tally()
    async with a_shell(executor, machine):
        for order_id in ("a", "crash", "b"):
            await operator.publish(an_order(order_id))
        await until(lambda: "b" in machine.state.orders)
    lines = await lines_of(executor)
    assert sum("crash: ValueError" in line for line in lines) == 3
    assert replay(lines, Tally).differing == ()


async def test_an_input_is_in_the_journal_before_its_write_is_in_the_bucket(
    executor: Bus, operator: Bus
) -> None:
    seen: list[int] = []
    put = executor.put

    async def look_then_put(wanted: Put) -> object:
        if wanted.bucket == "routes":
            seen.append(sum('"kind":"Delivered"' in line for line in await lines_of(executor)))
        return await put(wanted)

    executor.put = look_then_put  # type: ignore[method-assign,assignment]
    machine = Tally()
    async with a_shell(executor, machine):
        for i in range(3):
            await operator.publish(an_order(f"o-{i}"))
        await until(lambda: len(machine.state.orders) == 3)
    assert seen == [1, 2, 3]


async def test_a_stopped_machine_resumes_where_it_was(executor: Bus, operator: Bus) -> None:
    first = Tally()
    async with a_shell(executor, first) as shell:
        await operator.publish(an_order("o-1"))
        await shell.feed(Nudged(text="n"))
        await until(lambda: first.state.orders)
    second = Tally()
    async with a_shell(executor, second, resume=True):
        await operator.publish(an_order("o-2"))
        await until(lambda: len(second.state.orders) == 2)
    assert second.state.orders == ("o-1", "o-2")
    assert second.state.nudges == ("n",)
    assert replay(await lines_of(executor), Tally).differing == ()


async def test_a_machine_that_was_cut_off_resumes_from_snapshot_and_journal(
    executor: Bus, operator: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "SNAPSHOT_EVERY", 8)
    first = Tally()
    with pytest.raises(BrokenInvariant, match="broken"):  # noqa: PT012
        async with a_shell(executor, first) as shell:
            for i in range(20):
                await shell.feed(Nudged(text=f"n-{i}"))
            await shell._outbox.reached(shell._outbox.mark)
            await operator.publish(an_order("broken"))
            await asyncio.Event().wait()
    kept, _ = await read_kept(executor, "executor", "main")
    assert kept is not None
    assert 0 < kept.n < 21
    second = Tally()
    async with a_shell(executor, second, resume=True):
        pass
    assert second.state.nudges == tuple(f"n-{i}" for i in range(20))


async def test_a_resumed_machine_does_not_take_a_message_twice(
    executor: Bus, operator: Bus
) -> None:
    first = Tally()
    order = an_order("o-1")
    async with a_shell(executor, first):
        await operator.publish(order)
        await until(lambda: first.state.orders)
    second = Tally()
    async with a_shell(executor, second, resume=True):
        headers = {"ce-id": order.message_id, "ce-type": "flexpipe.shift.order"}
        await operator.store("flexpipe.cmd.shift.order.toy", order.message.encode(), headers)
        await operator.publish(an_order("o-2"))
        await until(lambda: len(second.state.orders) == 2)
    assert second.state.orders == ("o-1", "o-2")


async def test_without_resume_a_machine_starts_fresh(executor: Bus, operator: Bus) -> None:
    for _ in range(2):
        machine = Tally()
        async with a_shell(executor, machine) as shell:
            await shell.feed(Nudged(text="n"))
        assert machine.state.nudges == ("n",)
    report = replay(await lines_of(executor), Tally)
    assert (report.runs, report.differing) == (2, ())


async def test_an_input_larger_than_a_message_is_journaled_in_parts(executor: Bus) -> None:
    machine = Tally()
    text = "x" * (3 << 20)
    async with a_shell(executor, machine) as shell:
        await shell.feed(Nudged(text="small"))
        await shell.feed(Nudged(text=text))
        await shell.feed(Nudged(text="after"))
    fresh = Tally()
    report = replay(await lines_of(executor), lambda: fresh)
    assert report.differing == ()
    assert fresh.state.nudges == ("small", text, "after")


async def test_two_machines_keep_two_journals(dial: Dial) -> None:
    one, two = await dial("worker", "node-a"), await dial("worker", "node-b")
    for bus in (one, two):
        shell = MachineShell(
            bus, machine=Tally(), service="worker", name=bus.name, journaled=True, perform=rings
        )
        async with shell:
            await shell.feed(Nudged(text=bus.name))
    lines = [line async for line in read_journal(one, "worker", "node-b")]
    assert [line for line in lines if "node-a" in line] == []


async def test_an_unjournaled_machine_leaves_no_journal(executor: Bus) -> None:
    shell = MachineShell(
        executor,
        machine=Recorder(lambda _, __: Effects()),
        service="executor",
        name="main",
    )
    async with shell:
        await shell.feed(Nudged(text="x"))
    assert await lines_of(executor) == []


class Upgraded(Tally):
    """The next version: it cannot read what the one before kept."""

    def restore(self, snapshot: str) -> None:
        """Refuses the old form."""
        if "nudges" in snapshot and "n-1" in snapshot:
            raise ValueError("a field is missing")
        super().restore(snapshot)


async def test_a_snapshot_of_another_version_does_not_keep_a_service_down(
    executor: Bus, operator: Bus
) -> None:
    first = Tally()
    async with a_shell(executor, first) as shell:
        await shell.feed(Nudged(text="n-1"))
    second = Upgraded()
    async with a_shell(executor, second, resume=True) as shell:
        await shell.feed(Nudged(text="n-2"))
    assert second.state.nudges == ("n-2",)
