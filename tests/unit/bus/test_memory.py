"""A journal that cannot be kept through an outage: the machine goes on, and a new run begins with all it knew."""

from __future__ import annotations

import asyncio
from typing import cast

from flexpipe.bus.connection import Bus
from flexpipe.bus.journal import Begin, Fed, parse_line
from flexpipe.bus.memory import MachineMemory
from flexpipe.bus.outbox import Outbox
from flexpipe.bus.replay import replay
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.machine import Publish
from flexpipe.testing.tally import Nudged, Tally


class Shore:
    """Where lines arrive once the bus is back."""

    def __init__(self) -> None:
        self.is_away = True
        self.lines: list[str] = []

    async def take_lines(self, lines: list[str]) -> None:
        if self.is_away:
            raise Unavailable("away")
        self.lines += lines

    async def take_snapshot(self, text: str) -> None:
        if self.is_away:
            raise Unavailable("away")

    async def take_message(self, message: Publish) -> None:
        raise AssertionError(message)


async def test_an_outage_that_outlasts_the_bound_costs_a_piece_of_the_journal_and_nothing_else() -> (
    None
):
    shore = Shore()
    machine = Tally()
    memory = MachineMemory(cast(Bus, None), machine, "router", "r", is_kept=True)
    outbox = memory.outbox = Outbox(
        send_lines=shore.take_lines,
        send_message=shore.take_message,
        send_snapshot=shore.take_snapshot,
        lines_bound_bytes=2_000,
    )
    count = 100
    for number in range(count):
        await memory.feed(1000.0 + number, Nudged(text=str(number)))
    assert machine.state.nudges == tuple(map(str, range(count))), "nobody waited for the bus"
    assert outbox.lines_dropped > 0
    shore.is_away = False
    await _sent(outbox)
    first = parse_line(shore.lines[0])
    assert isinstance(first, Begin)
    assert first.snapshot is not None
    known = Tally()
    known.restore(first.snapshot)
    fed = [line for text in shore.lines if isinstance(line := parse_line(text), Fed)]
    assert len(known.state.nudges) + len(fed) == count
    assert [line.n for line in fed] == list(range(1, len(fed) + 1))
    report = replay(shore.lines, Tally)
    assert (report.events, report.differing) == (len(fed), ())


async def _sent(outbox: Outbox) -> None:
    task = asyncio.create_task(outbox.run())
    try:
        async with asyncio.timeout(5):
            await outbox.reached(outbox.mark)
    finally:
        task.cancel()
        await asyncio.wait({task})
