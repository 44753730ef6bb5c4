"""Engines that die, gates that refuse, a bus that goes away, a router that stops."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from flexpipe.bus.server import EmbeddedServer
from flexpipe.engines.client import EngineClient, engine_http
from flexpipe.model.deployment import Policy
from flexpipe.model.route import PlanState
from flexpipe.testing.nats import until
from integration.router.scene import (
    ROUTER,
    Engine,
    Scene,
    Stream,
    engine,
    expected,
    free_port,
    routed,
    router,
    until_true,
)


async def test_an_engine_killed_mid_stream_is_replayed_elsewhere_token_for_token(
    scene: Scene, model_folder: Path, second: Engine
) -> None:
    with engine(model_folder, "cpu-9") as doomed:
        await scene.route(routed(doomed))
        streams, tasks = await scene.streams(4, 5, max_tokens=120)
        await scene.route(routed(doomed), routed(second))
        doomed.kill()
        await asyncio.gather(*tasks)
        for stream in streams:
            assert stream.tokens == expected(second.oracle, stream)
            assert (len(stream.tokens), stream.finishes) == (120, ["length"])
            assert len(stream.ids) == 1


async def test_without_another_plan_streams_wait_for_the_route_and_go_on(
    scene: Scene, model_folder: Path, second: Engine
) -> None:
    with engine(model_folder, "cpu-9") as doomed:
        await scene.route(routed(doomed))
        streams, tasks = await scene.streams(3, 5, max_tokens=100)
        doomed.kill()

        async def all_wait() -> bool:
            return await scene.gauge("flexpipe_router_parked") == 3

        await until_true(all_wait)
        scene.shift += 1
        await scene.route(routed(second))
        reports = await scene.move(lost=[doomed])
        await asyncio.gather(*tasks)
    assert reports[-1].remaining == 0
    assert all(stream.tokens == expected(second.oracle, stream) for stream in streams)


async def test_a_plan_that_comes_back_is_used_again_without_a_new_entry(
    scene: Scene, model_folder: Path
) -> None:
    port = free_port()
    with engine(model_folder, "cpu-9", port) as doomed:
        await scene.route(routed(doomed))
        (stream,), tasks = await scene.streams(1, 5, max_tokens=60)
        doomed.kill()
        with engine(model_folder, "cpu-9", port) as again:
            await asyncio.gather(*tasks)
            assert stream.tokens == expected(again.oracle, stream)


async def test_nobody_left_is_one_clear_error_after_content_and_a_status_before_it(
    scene: Scene, model_folder: Path
) -> None:
    with engine(model_folder, "cpu-9") as doomed:
        await scene.route(routed(doomed), policy=Policy(park_limit_s=0.5))
        (stream,), tasks = await scene.streams(1, 5, max_tokens=500)
        doomed.kill()
        late = await scene.stream()
        await asyncio.gather(*tasks)
    assert late.status == 503
    assert stream.done
    assert len(stream.errors) == 1
    assert stream.finishes == []
    assert stream.tokens == expected(doomed.oracle, stream)


async def test_a_relayed_stream_whose_engine_dies_ends_with_one_error(
    scene: Scene, model_folder: Path, second: Engine
) -> None:
    with engine(model_folder, "cpu-9") as doomed:
        await scene.route(routed(doomed))
        stream = Stream()
        reading = asyncio.create_task(
            scene.stream(stream, n=2, max_tokens=500, return_token_ids=None)
        )
        await until(lambda: len(stream.frames) >= 3)
        await scene.route(routed(doomed), routed(second))
        doomed.kill()
        await reading
    assert stream.done
    assert len(stream.errors) == 1
    assert "several_choices" in stream.errors[0]["message"]
    assert stream.finishes == []


async def test_an_engine_that_fails_every_request_is_left_for_another(
    scene: Scene, model_folder: Path, second: Engine
) -> None:
    with engine(model_folder, "cpu-9", FLEXPIPE_EMULATED_FAULT="engine_error") as broken:
        await scene.route(routed(broken), routed(second))
        streams = [await scene.stream(max_tokens=3) for _ in range(12)]
    assert all(stream.tokens == expected(second.oracle, stream) for stream in streams)


async def test_a_closed_gates_newer_entry_is_applied_without_the_bus(
    scene: Scene, model_folder: Path, second: Engine
) -> None:
    with engine(model_folder, "cpu-9") as gated:
        await scene.route(routed(gated))
        assert (await scene.stream(max_tokens=2)).done
        scene.shift += 1
        newer = scene.entry(
            routed(gated, PlanState.FROZEN, 0), routed(second), in_flight=scene.shift
        )
        async with engine_http() as http:
            gate = EngineClient(http, gated.front)
            await gate.set_gate(
                gated.plan.id, (1, 2, 1), admitting=False, route_entry=newer.canonical_json()
            )
        async with scene.closings() as closed:
            stream = await scene.stream(max_tokens=5)
            await until(lambda: stream.sequence in closed)
    assert stream.tokens == expected(second.oracle, stream)
    assert closed[stream.sequence].segments[-1][1] == second.plan.id


async def test_a_canary_that_breaks_is_reported_and_its_request_is_answered_elsewhere(
    scene: Scene, model_folder: Path, second: Engine
) -> None:
    with engine(model_folder, "cpu-9", FLEXPIPE_EMULATED_FAULT="engine_error") as broken:
        await scene.route(
            routed(second, admit=0.5), routed(broken, PlanState.CANARY, 0.5), in_flight=1
        )
        streams = [await scene.stream(max_tokens=3) for _ in range(6)]
    assert all(stream.tokens == expected(second.oracle, stream) for stream in streams)


async def test_serving_goes_on_while_the_bus_is_away(
    nats_server: EmbeddedServer,
    model_folder: Path,
    first: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with router(nats_server, model_folder, monkeypatch) as (scene, _, _):
        await scene.route(routed(first))
        await nats_server.kill()
        streams = [await scene.stream(max_tokens=5) for _ in range(5)]
        assert all(stream.tokens == expected(first.oracle, stream) for stream in streams)
        assert (await scene.http.get("/ready")).status_code == 200
        await nats_server.start()
        await scene.route(routed(first))


async def test_a_router_that_stops_lets_streams_finish_and_leaves_the_roster(
    nats_server: EmbeddedServer,
    model_folder: Path,
    first: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with router(nats_server, model_folder, monkeypatch, stop_limit_s=20.0) as (
        scene,
        stop,
        running,
    ):
        await scene.route(routed(first))
        (stream,), tasks = await scene.streams(1, 5, max_tokens=100)
        stop.set()

        async def refuses() -> bool:
            return (await scene.http.get("/ready")).status_code == 503

        await until_true(refuses)
        answer = await scene.http.post("/v1/chat/completions", json=scene.body())
        assert answer.status_code == 503
        await asyncio.gather(*tasks)
        assert stream.tokens == expected(first.oracle, stream)
        assert len(stream.tokens) == 100
        await asyncio.wait_for(asyncio.shield(running), 20)
        assert (await scene.bus.read("roster", ROUTER)).value is None


async def test_streams_longer_than_the_stop_limit_get_one_error_each(
    nats_server: EmbeddedServer,
    model_folder: Path,
    first: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with router(nats_server, model_folder, monkeypatch, stop_limit_s=0.2) as (
        scene,
        stop,
        _,
    ):
        await scene.route(routed(first))
        streams, tasks = await scene.streams(3, 5, max_tokens=1000)
        stop.set()
        await asyncio.gather(*tasks)
        assert [len(stream.errors) for stream in streams] == [1, 1, 1]
        assert all(stream.done for stream in streams)

    async def empty() -> bool:
        return await first.requests() == 0

    await until_true(empty, 1.0)


async def test_a_keep_alive_is_no_content(
    nats_server: EmbeddedServer,
    model_folder: Path,
    first: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with router(nats_server, model_folder, monkeypatch, keepalive_s=0.1) as (scene, _, _):
        await scene.route()
        lines: list[str] = []

        async def read() -> None:
            body = scene.body(stream=True, max_tokens=3)
            async with scene.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                assert answer.status_code == httpx.codes.OK
                lines.extend([line async for line in answer.aiter_lines()])

        task = asyncio.create_task(read())

        async def is_parked() -> bool:
            return await scene.gauge("flexpipe_router_parked") == 1

        await until_true(is_parked)
        await asyncio.wait([task], timeout=0.5)
        await scene.route(routed(first))
        await task
        pings = [line for line in lines if line.startswith(":")]
        data = [line for line in lines if line.startswith("data: {")]
        assert len(pings) >= 3
        assert json.loads(data[0].removeprefix("data: "))["choices"][0]["delta"]["role"]
