"""Streams that move between engines while their clients read: nothing lost, doubled or told twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flexpipe.model.deployment import Policy
from flexpipe.model.route import PlanState
from flexpipe.model.sequence import Verdict
from flexpipe.testing.nats import until
from integration.router.scene import (
    Engine,
    Scene,
    Stream,
    expected,
    routed,
    until_true,
)

IDLE_LIMIT_S = 1.0


async def idle(*engines: Engine) -> None:
    """The engines hold nothing, by their own count, within a second."""

    async def empty() -> bool:
        return [await each.requests() for each in engines] == [0] * len(engines)

    await until_true(empty, IDLE_LIMIT_S)


async def test_six_streams_move_there_and_back_and_equal_the_oracle_at_every_token(
    scene: Scene, first: Engine, second: Engine
) -> None:
    await scene.route(routed(first))
    async with scene.closings() as closed:
        streams, tasks = await scene.streams(
            6, 5, max_tokens=200, stream_options={"include_usage": True}
        )
        there = await scene.shift_live(first, second)
        back = await scene.shift_live(second, first)
        await asyncio.gather(*tasks)
        await until(lambda: len(closed) == len(streams))
    for reports in (there, back):
        moved = [each for report in reports for each in report.moved]
        assert {each.verdict for each in moved} == {Verdict.REPLAY}
        assert {each.sequence for each in moved} == {each.sequence for each in streams}
        pauses = [each.pause_ms for each in moved]
        assert all(pause is not None and pause < 2000 for pause in pauses)
    for stream in streams:
        assert stream.tokens == expected(first.oracle, stream)
        assert len(stream.tokens) == 200
        assert stream.text == scene.text.decode(stream.tokens)
        assert len(stream.ids) == 1
        assert [usage["completion_tokens"] for usage in stream.usages] == [200]
        plans = [plan for _, plan, _, _ in closed[stream.sequence].segments]
        assert plans == [first.plan.id, second.plan.id, first.plan.id]
        assert closed[stream.sequence].moves == 2
    await idle(first, second)
    assert await scene.gauge("flexpipe_router_ledger_violations_total") == 0


async def test_a_stop_string_that_lies_across_the_seam_stops(
    scene: Scene, first: Engine, second: Engine
) -> None:
    await scene.route(routed(first))
    whole = await scene.stream(max_tokens=120)
    # Long enough that the seam, wherever it falls after the client has seen its beginning, lies within.
    stop = scene.text.decode(whole.tokens[12:80])
    async with scene.closings() as closed:
        stream = Stream()
        task = asyncio.create_task(scene.stream(stream, max_tokens=120, stop=[stop]))
        await until(lambda: len(stream.tokens) >= 10)
        await scene.shift_live(first, second)
        await task
        await until(lambda: stream.sequence in closed)
    assert stream.text == whole.text[: whole.text.index(stop)]
    assert stream.finishes == ["stop"]
    seams = [end for _, _, _, end in closed[stream.sequence].segments[:-1]]
    assert len(seams) == 1
    assert 12 < seams[0] < 80


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("moves", [True, False])
async def test_usage_is_told_once_where_it_was_asked_for_and_never_otherwise(
    scene: Scene, first: Engine, second: Engine, include_usage: bool, moves: bool
) -> None:
    await scene.route(routed(first))
    options = {"include_usage": True} if include_usage else None
    (stream,), tasks = await scene.streams(1, 3, max_tokens=80, stream_options=options)
    if moves:
        await scene.shift_live(first, second)
    await asyncio.gather(*tasks)
    bare = [frame for frame in stream.frames if frame.get("choices") == []]
    assert len(bare) == len(stream.usages) == (1 if include_usage else 0)
    assert stream.usages == [bare[0]["usage"]] if include_usage else stream.usages == []
    roles = [c["delta"]["role"] for c in stream.choices if c["delta"].get("role")]
    assert roles == ["assistant"]


async def test_a_request_without_a_token_is_dispatched_anew(
    scene: Scene, first: Engine, second: Engine
) -> None:
    await scene.route(routed(first))
    streams, tasks = await scene.streams(2, 2, max_tokens=150)
    long = Stream()  # its prompt keeps the engine busy for some steps
    prompt = "ba " * 900
    waiting = asyncio.create_task(
        scene.stream(long, max_tokens=20, messages=[{"role": "user", "content": prompt}])
    )

    async def at_engine() -> bool:
        return await scene.gauge("flexpipe_router_in_flight") == 3

    await until_true(at_engine)
    reports = await scene.shift_live(first, second)
    await asyncio.gather(*tasks, waiting)
    for stream in (*streams, long):
        assert stream.tokens == expected(first.oracle, stream)
    verdicts = {each.sequence: each.verdict for report in reports for each in report.moved}
    assert verdicts[long.sequence] in (Verdict.REQUEUE, Verdict.REPLAY)


async def test_short_remainders_and_relayed_streams_finish_where_they_are(
    scene: Scene, first: Engine, second: Engine
) -> None:
    policy = Policy(finish_within_tokens=1000)
    await scene.route(routed(first), policy=policy)
    streams, tasks = await scene.streams(2, 3, max_tokens=100)
    relayed = asyncio.create_task(scene.stream(n=2, max_tokens=60, return_token_ids=None))

    async def all_there() -> bool:
        return await scene.gauge("flexpipe_router_in_flight") == 3

    await until_true(all_there)
    reports = await scene.shift_live(first, second, policy=policy)
    assert reports[-1].staying == 3
    await asyncio.gather(*tasks, relayed)
    assert all(stream.tokens == expected(first.oracle, stream) for stream in streams)
    assert relayed.result().done


async def test_new_requests_go_to_the_new_plan_while_old_streams_still_move(
    scene: Scene, first: Engine, second: Engine
) -> None:
    await scene.route(routed(first))
    streams, tasks = await scene.streams(4, 3, max_tokens=150)
    scene.shift += 1
    await scene.route(routed(first, PlanState.FROZEN, 0), routed(second), in_flight=scene.shift)
    async with scene.closings() as closed:
        fresh = [await scene.stream(max_tokens=2) for _ in range(4)]
        await scene.move([first], [second])
        await until(lambda: all(each.sequence in closed for each in fresh))
    assert {plan for each in fresh for _, plan, _, _ in closed[each.sequence].segments} == {
        second.plan.id
    }
    await asyncio.gather(*tasks)
    assert all(stream.tokens == expected(first.oracle, stream) for stream in streams)


@pytest.mark.parametrize("when", ["streaming", "mid-hand-over", "waiting"])
async def test_a_client_that_hangs_up_leaves_nothing_running(
    scene: Scene, first: Engine, second: Engine, when: str
) -> None:
    if when == "waiting":
        await scene.route()
        task = asyncio.create_task(scene.stream())

        async def is_parked() -> bool:
            return await scene.gauge("flexpipe_router_parked") == 1

        await until_true(is_parked)
        tasks = [task]
    else:
        await scene.route(routed(first))
        _, tasks = await scene.streams(3, 3, max_tokens=500)
    if when == "mid-hand-over":
        scene.shift += 1
        await scene.route(routed(first, PlanState.FROZEN, 0), routed(second), in_flight=scene.shift)
        moving = asyncio.create_task(scene.move([first], [second]))

        async def has_moved() -> bool:
            return await second.requests() > 0

        await until_true(has_moved)
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
    await idle(first, second)
    if when == "mid-hand-over":
        assert (await moving)[-1].remaining == 0

    async def nothing_held() -> bool:
        gauges = ("flexpipe_router_in_flight", "flexpipe_router_parked")
        return [await scene.gauge(name) for name in gauges] == [0, 0]

    await until_true(nothing_held, IDLE_LIMIT_S)
    await scene.route(routed(second))
    after = await scene.stream(max_tokens=3)
    assert after.tokens == expected(second.oracle, after)


async def test_a_slow_reader_does_not_hold_up_the_hand_over_of_others(
    scene: Scene, first: Engine, second: Engine
) -> None:
    await scene.route(routed(first))
    body: dict[str, Any] = scene.body(stream=True, max_tokens=400)
    async with scene.http.stream("POST", "/v1/chat/completions", json=body) as unread:
        assert unread.status_code == 200
        streams, tasks = await scene.streams(2, 3, max_tokens=120)
        reports = await scene.shift_live(first, second)
        assert reports[-1].remaining == 0
        await asyncio.gather(*tasks)
    assert all(stream.tokens == expected(first.oracle, stream) for stream in streams)
    await idle(first, second)
