"""Tasks of a block: cancelled when it ends, however they take it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from flexpipe.bus import crew as crews
from flexpipe.bus.crew import Crew


async def stubborn(times: int) -> None:
    """Swallows so many cancellations, as nats-py does now and then."""
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    await asyncio.Event().wait()


async def test_a_task_that_swallows_a_cancellation_is_asked_again() -> None:
    crew = Crew()
    task = crew.start(stubborn(2))
    await asyncio.sleep(0)
    await crew.cancel()
    assert task.cancelled()


async def test_a_task_that_never_ends_does_not_keep_the_block(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(crews, "CANCEL_LIMIT_S", 0.5)
    crew = Crew()
    task = crew.start(stubborn(5))
    await asyncio.sleep(0)
    await crew.cancel()
    assert not task.done()
    assert "is left behind" in caplog.text
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
