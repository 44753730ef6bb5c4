"""The way out: order, batches, bounds, outages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from flexpipe.bus.outbox import BATCH_BYTES, Line, Outbox, Snapshot
from flexpipe.kernel.errors import InvalidInput, Refused, Unavailable
from flexpipe.kernel.machine import Publish


class Post:
    """Takes what leaves; away until told otherwise."""

    def __init__(self) -> None:
        self.left: list[object] = []
        self.is_away = False
        self.tried = asyncio.Event()

    async def lines(self, lines: list[str]) -> None:
        self._take(list(lines))

    async def message(self, message: Publish) -> None:
        self._take(message.message_id)

    async def snapshot(self, text: str) -> None:
        self._take(f"snapshot {text}")

    def _take(self, what: object) -> None:
        self.tried.set()
        if self.is_away:
            raise Unavailable("away")
        self.left.append(what)


def an_outbox(post: Post, bound: int = 8) -> Outbox:
    return Outbox(
        send_lines=post.lines, send_message=post.message, send_snapshot=post.snapshot, bound=bound
    )


@contextlib.asynccontextmanager
async def running(outbox: Outbox) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(outbox.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


def say(message_id: str, type_: str = "ShiftRefused") -> Publish:
    return Publish(type=type_, key="toy", message="{}", message_id=message_id)


async def test_everything_leaves_in_the_order_it_went_in() -> None:
    post = Post()
    outbox = an_outbox(post)
    for item in (Line("1"), Line("2"), say("a"), Line("3"), Snapshot("s"), say("b")):
        await outbox.put(item)
    async with running(outbox):
        await outbox.reached(outbox.mark)
    assert post.left == [["1", "2"], "a", ["3"], "snapshot s", "b"]


async def test_a_batch_of_lines_is_bounded() -> None:
    post = Post()
    outbox = an_outbox(post)
    half = "x" * (BATCH_BYTES // 2)
    for _ in range(5):
        await outbox.put(Line(half))
    async with running(outbox):
        await outbox.reached(outbox.mark)
    assert [len(batch) for batch in post.left if isinstance(batch, list)] == [2, 2, 1]


async def test_an_outage_keeps_the_order_and_loses_nothing() -> None:
    post = Post()
    post.is_away = True
    outbox = an_outbox(post)
    async with running(outbox):
        await outbox.put(say("a"))
        await outbox.put(say("b"))
        await post.tried.wait()
        post.is_away = False
        await outbox.reached(outbox.mark)
    assert post.left == ["a", "b"]


async def test_a_full_outbox_makes_its_owner_wait() -> None:
    post = Post()
    outbox = an_outbox(post, bound=2)
    await outbox.put(say("a"))
    await outbox.put(say("b"))
    third = asyncio.create_task(outbox.put(say("c")))
    await asyncio.wait({third}, timeout=0.05)
    assert not third.done()
    async with running(outbox):
        await third
        await outbox.reached(outbox.mark)
    assert post.left == ["a", "b", "c"]


async def test_noise_is_dropped_and_counted_where_a_fact_would_wait() -> None:
    outbox = an_outbox(Post(), bound=1)
    await outbox.put(say("a"))
    await outbox.put(say("noise", "LoadObserved"))
    assert outbox.dropped == 1


async def test_what_no_message_can_carry_is_dropped_aloud_and_the_rest_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    post = Post()

    async def refuse_large(message: Publish) -> None:
        if message.message_id == "large":
            raise InvalidInput("subject", "2 MiB", "a message is below NATS's max_payload")
        await post.message(message)

    outbox = Outbox(send_lines=post.lines, send_message=refuse_large, send_snapshot=post.snapshot)
    await outbox.put(say("large"))
    await outbox.put(say("b"))
    async with running(outbox):
        await outbox.reached(outbox.mark)
    assert (post.left, outbox.dropped) == (["b"], 1)
    assert "max_payload" in caplog.text


async def test_what_will_never_be_allowed_ends_it() -> None:
    post = Post()

    async def refuse(_: Publish) -> None:
        raise Refused("no permission")

    outbox = Outbox(send_lines=post.lines, send_message=refuse, send_snapshot=post.snapshot)
    await outbox.put(say("a"))
    with pytest.raises(Refused):
        await outbox.run()
