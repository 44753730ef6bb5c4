"""The gear is gone and nobody serves: requests wait with a limit, go on when a plan comes, or are told when to return.

And what the router says meanwhile: which plans answered it, and that there was no load.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flexpipe.bus import Hearing
from flexpipe.bus.server import EmbeddedServer
from flexpipe.events.fleet import PlanAnswered
from flexpipe.events.route import LoadObserved
from flexpipe.model.deployment import Policy
from flexpipe.testing.nats import until
from integration.router.scene import (
    ROUTER,
    Engine,
    Scene,
    Stream,
    engine,
    expected,
    routed,
    router,
    until_true,
)


async def parked(scene: Scene, count: int) -> None:
    """Wait until so many sequences wait for a plan (those at a silent engine count as running for the gauge)."""

    async def waiting() -> bool:
        return await scene.gauge("flexpipe_router_parked") == count

    await until_true(waiting)


@asynccontextmanager
async def answers(scene: Scene) -> AsyncIterator[list[PlanAnswered]]:
    """What routers say of plans that answered, within the block."""
    told: list[PlanAnswered] = []
    async with scene.bus.overhear([Hearing(PlanAnswered)]) as heard:

        async def gather() -> None:
            async for message in heard:
                told.append(PlanAnswered.model_validate_json(message.message))

        task = asyncio.create_task(gather())
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_streams_of_a_node_that_fell_silent_wait_and_are_replayed_by_the_next_plan(
    scene: Scene, model_folder: Path, second: Engine
) -> None:
    with engine(model_folder, "cpu-9") as silent:
        await scene.route(routed(silent))
        streams, tasks = await scene.streams(3, 5, max_tokens=100)
        os.kill(silent.popen.pid, signal.SIGSTOP)  # no connection breaks
        try:
            unanswered = asyncio.create_task(scene.stream(max_tokens=5))
            await until_in_flight(scene, 4)
            scene.shift += 1
            await scene.route()
            new = asyncio.create_task(scene.stream(max_tokens=5))
            await parked(scene, 1)
            scene.shift += 1
            await scene.route(routed(second))
            await asyncio.gather(*tasks)
            assert [stream.errors for stream in streams] == [[], [], []]
            for stream in (*streams, await unanswered, await new):
                assert stream.tokens == expected(second.oracle, stream)
                assert stream.finishes == ["length"]
        finally:
            os.kill(silent.popen.pid, signal.SIGCONT)


async def until_in_flight(scene: Scene, count: int) -> None:
    """Wait until so many sequences are at an engine."""

    async def running() -> bool:
        return await scene.gauge("flexpipe_router_in_flight") == count

    await until_true(running)


async def test_slots_and_the_park_limit_end_in_503_with_a_time_to_return_or_one_error(
    scene: Scene, model_folder: Path
) -> None:
    policy = Policy(park_limit_s=1.5, park_slots=2)
    with engine(model_folder, "cpu-9") as doomed:
        await scene.route(routed(doomed), policy=policy)
        (stream,), tasks = await scene.streams(1, 5, max_tokens=500)
        doomed.kill()
        await parked(scene, 1)
        scene.shift += 1
        await scene.route(policy=policy)
        waiting = [asyncio.create_task(scene.stream()) for _ in range(2)]
        await parked(scene, 3)
        refused = await scene.stream()
        assert not any(task.done() for task in waiting)
        late = await asyncio.gather(*waiting)
        await asyncio.gather(*tasks)
    for each in (refused, *late):
        assert each.status == 503
        assert each.headers["retry-after"] == "5"
    assert b"2 wait already" in refused.body
    assert b"within 1.5 s" in late[0].body
    assert (len(stream.errors), stream.done, stream.finishes) == (1, True, [])
    assert "within 1.5 s" in stream.errors[0]["message"]
    assert stream.tokens == expected(doomed.oracle, stream)


async def test_plans_that_gave_tokens_are_told_twice_a_second_and_nothing_where_none_did(
    scene: Scene, first: Engine, second: Engine
) -> None:
    await scene.route(routed(first))
    async with answers(scene) as told:
        (resumed,), tasks = await scene.streams(1, 5, max_tokens=250)
        relayed = Stream()
        tasks.append(
            asyncio.create_task(scene.stream(relayed, n=2, max_tokens=250, return_token_ids=None))
        )
        await until(lambda: len(told) >= 3)
        await asyncio.gather(*tasks)
        assert not resumed.errors + relayed.errors
        assert {(each.router, each.plans) for each in told} == {(ROUTER, (first.plan.id,))}
        await scene.route(routed(first), routed(second))
        before = len(told)
        with pytest.raises(AssertionError):  # what was noted last, then silence
            await until(lambda: len(told) > before + 1, 1.2)
        await asyncio.gather(*(scene.stream(max_tokens=5) for _ in range(4)))
        await until(
            lambda: (
                {plan for each in told for plan in each.plans} == {first.plan.id, second.plan.id}
            )
        )


async def test_a_window_without_requests_is_told_as_zeros_at_the_pace_of_the_setting(
    nats_server: EmbeddedServer,
    model_folder: Path,
    first: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with router(nats_server, model_folder, monkeypatch, load_every_s=0.5) as (scene, _, _):
        await scene.route(routed(first))
        async with scene.bus.listen([Hearing(LoadObserved)]) as heard:
            loads = [await next_load(heard) for _ in range(2)]
            assert {(each.arrived, each.prompt_tokens, each.parked) for each in loads} == {
                (0, 0, 0)
            }
            assert loads[1].window_s < 1.5
            await scene.stream(max_tokens=3)
            busy = await next_load(heard)
            while not busy.arrived:
                busy = await next_load(heard)
        assert busy.prompt_tokens > 0
        assert busy.ttft_p95_ms is not None


async def next_load(heard: AsyncIterator[object]) -> LoadObserved:
    """The next report of load."""
    message = await asyncio.wait_for(anext(heard), 10)
    return LoadObserved.model_validate_json(message.message)  # type: ignore[attr-defined]
