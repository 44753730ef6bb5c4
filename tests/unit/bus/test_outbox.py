"""The way out: order, batches, bounds, outages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexpipe.bus.outbox import BATCH_BYTES, OUTBOX_BOUND, Line, Outbox, Snapshot
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
        send_lines=post.lines,
        send_message=post.message,
        send_snapshot=post.snapshot,
        bound=bound,
        retry_wait_s=0.001,
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


async def test_messages_and_lines_leave_in_order_lines_ahead_of_messages_but_not_of_a_snapshot() -> (
    None
):
    post = Post()
    outbox = an_outbox(post)
    for item in (Line("1"), Line("2"), say("a"), Line("3"), Snapshot("s"), say("b"), Line("4")):
        await outbox.put(item)
    async with running(outbox):
        await outbox.reached(outbox.mark)
    assert post.left == [["1", "2", "3"], "a", "snapshot s", "b", ["4"]]


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


@given(st.lists(st.sampled_from(["line", "say", "snapshot", "away", "back"]), max_size=40))
@settings(max_examples=150, deadline=None)
async def test_whatever_goes_in_during_whatever_outage_the_order_that_counts_is_kept(
    what: list[str],
) -> None:
    """A message leaves behind every line put in before it; a line never passes a snapshot, forwards or backwards."""
    post = Post()
    outbox = an_outbox(post, bound=100)
    put: list[tuple[str, str]] = []
    async with running(outbox):
        for index, kind in enumerate(what):
            match kind:
                case "line":
                    await outbox.put(Line(str(index)))
                case "say":
                    await outbox.put(say(str(index)))
                case "snapshot":
                    await outbox.put(Snapshot(str(index)))
                case _:
                    post.is_away = kind == "away"
            put.append((kind, str(index)))
            if index % 3 == 0:
                await asyncio.sleep(0)
        post.is_away = False
        await outbox.reached(outbox.mark)
    left: list[tuple[str, str]] = []
    for each in post.left:
        if isinstance(each, list):
            left += [("line", text) for text in each]
        else:
            name, _, number = str(each).rpartition(" ")
            left.append((name or "say", number))
    for kind in ("line", "say"):
        assert [x for x in left if x[0] == kind] == [x for x in put if x[0] == kind]
    snapshots = [x for x in put if x[0] == "snapshot"]
    assert snapshots[-1:] == [x for x in left if x[0] == "snapshot"][-1:]
    for at, item in enumerate(left):
        lines_before = [x for x in put[: put.index(item)] if x[0] == "line"]
        if item[0] != "line":
            assert [x for x in left[:at] if x[0] == "line"][: len(lines_before)] == lines_before
        if item[0] == "snapshot":
            assert [x for x in left[:at] if x[0] == "line"] == lines_before


async def test_an_outage_of_a_minute_under_load_keeps_nobody_waiting() -> None:
    """What a router puts in for 6000 requests, and then the bus is back."""
    post = Post()
    post.is_away = True
    outbox = an_outbox(post, bound=OUTBOX_BOUND)
    lines = 0
    async with running(outbox):
        async with asyncio.timeout(20):
            for request in range(6000):
                for _ in range(3):
                    lines += 1
                    assert await outbox.put(Line(f"{lines:08d}" + "x" * 392))
                await outbox.put(say(f"closed-{request}", "SequenceClosed"))
                if request % 100 == 0:
                    await outbox.put(Snapshot(str(request)))
                    await outbox.put(say(f"fact-{request}"))
        post.is_away = False
        async with asyncio.timeout(20):
            await outbox.reached(outbox.mark)
    batches = [each for each in post.left if isinstance(each, list)]
    assert [int(text[:8]) for batch in batches for text in batch] == list(range(1, lines + 1))
    assert len(batches) < 120
    said = [each for each in post.left if isinstance(each, str)]
    assert [each for each in said if each.startswith("fact")] == [
        f"fact-{number}" for number in range(0, 6000, 100)
    ]
    assert [each for each in said if each.startswith("snapshot")][-1] == "snapshot 5900"
    closed = [each for each in said if each.startswith("closed")]
    assert len(closed) + outbox.dropped == 6000


async def test_noise_never_takes_the_place_of_a_fact() -> None:
    outbox = an_outbox(Post(), bound=8)
    for number in range(20):
        await outbox.put(say(f"noise-{number}", "LoadObserved"))
    async with asyncio.timeout(1):
        for number in range(6):
            await outbox.put(say(f"fact-{number}"))
    assert outbox.dropped == 18


async def test_a_line_without_room_is_refused_and_the_waiting_ones_can_be_given_up() -> None:
    post = Post()
    post.is_away = True
    outbox = Outbox(
        send_lines=post.lines,
        send_message=post.message,
        send_snapshot=post.snapshot,
        lines_bound_bytes=10,
    )
    assert await outbox.put(Line("12345"))
    await outbox.put(say("a"))
    await outbox.put(Snapshot("s"))
    assert await outbox.put(Line("67890"))
    assert not await outbox.put(Line("x"))
    assert await outbox.drop_lines() == 2
    assert await outbox.put(Line("begin"))
    post.is_away = False
    async with running(outbox):
        await outbox.reached(outbox.mark)
    assert (post.left, outbox.lines_dropped) == (["a", ["begin"]], 2)


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
