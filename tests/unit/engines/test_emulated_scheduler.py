"""Continuous batching: who is admitted, who is cut, and what time it takes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flexpipe.engines.emulated.oracle import Oracle
from flexpipe.engines.emulated.scheduler import RequestRefused, Scheduler
from flexpipe.engines.emulated.sequences import Limits, Sequence
from flexpipe.engines.emulated.table import PerformanceTable, StepTime

ORACLE = Oracle(vocab_size=4096, first_id=460, eos_id=2)
PROMPT = [11, 12, 13, 14]


class Bench:
    """A scheduler whose loop runs, and the sequences sent to it."""

    def __init__(self, *, stream_interval: int = 1, **table: Any) -> None:
        steps = {"decode_step_ms": {"default": StepTime(base=1.0)}}
        self.scheduler = Scheduler(
            table=PerformanceTable(**{**steps, **table}),
            layout="tp1",
            context_tokens=1000,
            oracle=ORACLE,
            time_scale=1.0,
            stream_interval=stream_interval,
        )
        self.count = 0

    def send(self, new: int = 8, priority: int = 0, **limits: Any) -> Sequence:
        self.count += 1
        default = {"min_new_tokens": 0, "stop_token_ids": frozenset(), "ignore_eos": False}
        wanted = Limits(max_new_tokens=new, **{**default, **limits})
        rid = f"r{self.count:03}"
        return self.scheduler.submit(rid, list(PROMPT), wanted, priority, None)


async def ended(sequence: Sequence) -> str:
    """How it ended; fails after two seconds."""
    async with asyncio.timeout(2):
        while sequence.finish is None:
            await sequence.changed.wait()
            sequence.changed.clear()
    return sequence.finish.type


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    made = Bench(**getattr(request, "param", {}))
    running = asyncio.create_task(made.scheduler.run())
    yield made
    running.cancel()


async def test_every_token_is_the_oracles(bench: Bench) -> None:
    sequences = [bench.send(new) for new in (1, 5, 20)]
    for sequence, length in zip(sequences, (1, 5, 20), strict=True):
        assert await ended(sequence) == "length"
        assert sequence.output == ORACLE.continuation(PROMPT, length)


@pytest.mark.parametrize("bench", [{"stream_interval": 4}], indirect=True)
async def test_a_stream_is_told_of_the_first_token_of_every_interval_th_and_of_the_last(
    bench: Bench,
) -> None:
    told = []

    class Told(asyncio.Event):
        def set(self) -> None:
            told.append(len(sequence.output))
            super().set()

    sequence = bench.send(11)
    sequence.changed = Told()
    assert await ended(sequence) == "length"
    assert told == [1, 5, 9, 11]


@pytest.mark.parametrize("bench", [{"max_running": 1}], indirect=True)
async def test_higher_priority_goes_first_then_arrival(bench: Bench) -> None:
    first, low, also_low, high = bench.send(), bench.send(), bench.send(), bench.send(priority=9)
    order: list[Sequence] = []

    async def note(sequence: Sequence) -> None:
        await ended(sequence)
        order.append(sequence)

    await asyncio.gather(*map(note, (also_low, low, high, first)))
    assert order == [high, first, low, also_low]


@pytest.mark.parametrize("bench", [{"max_total_tokens": 40}], indirect=True)
async def test_one_waits_until_its_pages_are_free(bench: Bench) -> None:
    large, small = bench.send(30), bench.send(4)
    await asyncio.wait_for(large.changed.wait(), 1)
    assert (bench.scheduler.running, bench.scheduler.waiting) == (1, 1)
    assert await ended(large) == "length"
    assert await ended(small) == "length"
    assert bench.scheduler.used_tokens == 0


@pytest.mark.parametrize("bench", [{"max_running": 1, "max_queued": 2}], indirect=True)
async def test_a_full_queue_refuses_with_503(bench: Bench) -> None:
    first = bench.send(50)
    await asyncio.wait_for(first.changed.wait(), 1)
    kept = [bench.send(), bench.send()]
    refused = bench.send()
    assert refused.finish is not None
    assert refused.finish.status_code == 503
    assert refused.finish.message == "The request queue is full."
    assert [await ended(sequence) for sequence in kept] == ["length", "length"]


async def test_a_cut_comes_with_the_token_of_the_step_that_ran(bench: Bench) -> None:
    sequence = bench.send(500)
    while len(sequence.output) < 3:
        await sequence.changed.wait()
        sequence.changed.clear()
    held = len(sequence.output)
    bench.scheduler.abort(sequence.rid)
    assert await ended(sequence) == "abort"
    assert sequence.output == ORACLE.continuation(PROMPT, held + 1)
    assert sequence.finish is not None
    assert sequence.finish.status_code is None


@pytest.mark.parametrize("bench", [{"max_running": 1}], indirect=True)
async def test_one_that_waits_is_cut_at_once(bench: Bench) -> None:
    running = bench.send(50)
    await asyncio.wait_for(running.changed.wait(), 1)
    waiting = bench.send()
    bench.scheduler.abort(waiting.rid)
    assert waiting.finish is not None
    assert not waiting.finish.started
    assert waiting.finish.message == "Abort in waiting queue"
    assert bench.scheduler.waiting == 0
    assert await ended(running) == "length"


async def test_a_dropped_request_frees_its_slot_at_once(bench: Bench) -> None:
    sequence = bench.send(500)
    await asyncio.wait_for(sequence.changed.wait(), 1)
    bench.scheduler.drop(sequence)
    assert bench.scheduler.running == 0
    bench.scheduler.drop(sequence)
    assert await ended(bench.send()) == "length"


async def test_a_halt_ends_all_and_whatever_comes_later(bench: Bench) -> None:
    sequences = [bench.send(500), bench.send(500)]
    await asyncio.wait_for(sequences[0].changed.wait(), 1)
    bench.scheduler.halt("node 1 is gone", 503)
    for sequence in (*sequences, bench.send()):
        assert sequence.finish is not None
        assert sequence.finish.status_code == 503
        assert sequence.finish.message == "node 1 is gone"


async def test_no_new_tokens_means_none(bench: Bench) -> None:
    sequence = bench.send(0)
    assert await ended(sequence) == "length"
    assert sequence.output == []


async def test_a_stop_token_ends_it_unless_eos_is_ignored_or_too_early(bench: Bench) -> None:
    run = ORACLE.continuation(PROMPT, 6)
    stops = frozenset({run[2]})
    stopped = bench.send(6, stop_token_ids=stops)
    assert await ended(stopped) == "stop"
    assert stopped.output == run[:3]
    for free in ({"ignore_eos": True}, {"min_new_tokens": 4}):
        assert await ended(bench.send(6, stop_token_ids=stops, **free)) == "length"


async def test_what_does_not_fit_is_cut_or_refused(bench: Bench) -> None:
    cut = bench.send(1 << 30)
    assert cut.limits.max_new_tokens == 1000 - 1 - len(PROMPT)
    for rid, prompt, message in (
        (cut.rid, PROMPT, "Duplicate request ID"),
        ("new", [], "empty"),
        ("new", [4096], r"\[0, 4095\]"),
        ("new", [-1], r"\[0, 4095\]"),
        ("new", [1] * 1000, "longer than"),
    ):
        with pytest.raises(RequestRefused, match=message):
            bench.scheduler.submit(rid, prompt, cut.limits, 0, None)


@pytest.mark.parametrize(
    "bench", [{"decode_step_ms": {"default": StepTime(base=10.0, per_sequence=5.0)}}], indirect=True
)
async def test_time_is_the_tables(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    sequences = [bench.send(11), bench.send(11)]
    for sequence in sequences:
        await ended(sequence)
    # Ten decode steps of 10 + 2 x 5 ms; the first token comes with the prefill.
    assert 0.19 < loop.time() - began < 0.5
