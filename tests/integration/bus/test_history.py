"""What the command line reads of the past is whole, and has an end while more is being said."""

from __future__ import annotations

import asyncio
import time

import pytest

from flexpipe.bus import Hearing
from flexpipe.cli.looking import history
from flexpipe.events.outgoing import publish
from flexpipe.events.route import LoadObserved
from flexpipe.testing.nats import Dial

pytestmark = pytest.mark.processes

SAID = 150
"""More than two of the batches that a reader takes."""
HEARS = (Hearing(LoadObserved),)


def load(arrived: int) -> LoadObserved:
    return LoadObserved(
        router="router-1",
        deployment="toy",
        window_s=1.0,
        arrived=arrived,
        queued=0,
        parked=0,
        plans=(),
    )


async def arrivals(dial: Dial, since_s: float | None = None) -> list[int]:
    operator = await dial("operator", "test")
    async with asyncio.timeout(20):
        return [
            LoadObserved.model_validate_json(said.message).arrived
            async for said in history(operator, HEARS, since_s)
        ]


async def test_history_is_everything_that_was_said_and_ends_while_more_is_said(dial: Dial) -> None:
    router = await dial("router", "router-1")
    for number in range(SAID):
        await router.publish(publish(load(number), number))
    begun = asyncio.Event()

    async def go_on() -> None:
        number = SAID
        while True:
            await router.publish(publish(load(number), number))
            begun.set()
            number += 1
            await asyncio.sleep(0.02)

    speaking = asyncio.create_task(go_on())
    try:
        await begun.wait()
        got = await arrivals(dial)
    finally:
        speaking.cancel()
        await asyncio.wait([speaking])
    assert got == list(range(len(got)))
    assert len(got) > SAID


async def test_history_from_a_time_on_leaves_out_what_was_before(dial: Dial) -> None:
    router = await dial("router", "router-1")
    await router.publish(publish(load(1), 1))
    since_s = time.time()
    await router.publish(publish(load(2), 2))
    assert await arrivals(dial, since_s) == [2]
    assert await arrivals(dial, time.time() + 60) == []
    assert await arrivals(dial) == [1, 2]
