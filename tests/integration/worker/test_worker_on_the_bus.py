"""One worker, or two, on a real bus with emulated engines as real processes."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import psutil
import pytest

from flexpipe.bus import Hearing, connect
from flexpipe.engines.client import EngineClient, GateClosed, engine_http
from flexpipe.engines.emulated.checkpoint import Shape, write_checkpoint
from flexpipe.engines.generation import GatePass, SamplingParams
from flexpipe.events.fleet import HostHeartbeat
from flexpipe.events.plan import (
    CommandSuperseded,
    EngineFailed,
    EngineLost,
    EngineReady,
    PlanDrained,
    PlanGated,
    PlanStopped,
    PlanStuck,
    PlanWarmed,
)
from flexpipe.hosting.memory import HostingLimits
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import EngineSettings, ModelRef
from flexpipe.testing.nats import until
from flexpipe.worker.app import serve
from flexpipe.worker.settings import Settings
from integration.worker.site import PARENT, TRACE, Site, fence, plan, site, slots

pytestmark = pytest.mark.processes


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    """A site with one open worker, node-a."""
    async with site(tmp_path) as made:
        await made.open()
        yield made
    assert made.engine_pids() == []


async def test_a_plan_lives_from_start_to_stop_and_leaves_nothing_running(here: Site) -> None:
    wanted = plan("a0+a1")
    await here.start(wanted, fence(1))
    (ready,) = await here.hear(EngineReady)
    assert ready.fence == fence(1)
    assert 0 < ready.ready_s - ready.start_s < 20
    assert len(psutil.Process(here.leader()).children()) == 2

    await here.gate(wanted, fence(2), admitting=True, entry='{"deployment":"chat"}')
    (gated,) = await here.hear(PlanGated)
    assert gated.admitting

    await here.warm(wanted, fence(3))
    (warmed,) = await here.hear(PlanWarmed)
    assert (warmed.requests, warmed.errors, warmed.reason) == (4, 0, None)
    assert warmed.ttft_p50_ms is not None
    assert warmed.itl_p50_ms is not None

    await here.drain(wanted, fence(4))
    assert (await here.hear(PlanDrained))[0].fence == fence(4)

    await here.stop(wanted, fence(5))
    (stopped,) = await here.hear(PlanStopped)
    assert [ref.device for ref in stopped.released] == ["slot-0", "slot-1"]
    assert here.engine_pids() == []

    await until(lambda: len(here.spans) == 2)
    names = {ended.span.name for ended in here.spans}
    assert names == {"engine start", "engine stop"}
    assert {(ended.span.trace_id, ended.span.parent_span_id) for ended in here.spans} == {
        (TRACE, PARENT)
    }


async def test_a_closed_gate_answers_with_the_route_entry_it_was_given(here: Site) -> None:
    wanted = plan("a0")
    await here.start(wanted, fence(1))
    await here.hear(EngineReady)
    entry = json.dumps({"deployment": "chat", "term": 1})
    await here.gate(wanted, fence(2), admitting=False, entry=entry)
    await here.hear(PlanGated)
    async with engine_http() as http:
        client = EngineClient(http, f"http://127.0.0.1:{here.first_port}")
        stream = client.generate_stream(
            "r1",
            (300, 301),
            SamplingParams(max_new_tokens=2),
            GatePass(plan=wanted.id, fence="1.1.0"),
        )
        with pytest.raises(GateClosed) as refused:
            async with aclosing(stream) as chunks:
                _ = [chunk async for chunk in chunks]
    assert json.loads(refused.value.route_entry or "") == json.loads(entry)


async def test_a_drain_waits_for_what_runs_and_says_what_is_left_at_its_limit(here: Site) -> None:
    wanted = plan("a0")
    await here.start(wanted, fence(1))
    await here.hear(EngineReady)
    await here.gate(wanted, fence(2), admitting=True)
    await here.hear(PlanGated)
    async with engine_http() as http:
        client = EngineClient(http, f"http://127.0.0.1:{here.first_port}")
        gate_pass = GatePass(plan=wanted.id, fence="1.1.0")
        sampling = SamplingParams(max_new_tokens=4000, ignore_eos=True)
        stream = client.generate_stream("r1", (300, 301), sampling, gate_pass)
        async with aclosing(stream) as chunks:
            await anext(chunks)
            await here.drain(wanted, fence(3), limit_s=1.0)
            (stuck,) = await here.hear(PlanStuck)
            assert stuck.what == "drain"
            assert "1 running" in stuck.reason
            here.heard.clear()
            await here.drain(wanted, fence(4))
            await client.abort("r1")
            last = [chunk async for chunk in chunks][-1]
            assert last.finish is not None
            assert last.finish.type == "abort"
    assert (await here.hear(PlanDrained))[0].fence == fence(4)


async def test_a_rank_that_is_killed_is_a_plan_lost_within_a_second(here: Site) -> None:
    wanted = plan("a0+a1")
    await here.start(wanted, fence(1))
    await here.hear(EngineReady)
    rank = psutil.Process(here.leader()).children()[1]
    killed_s = time.monotonic()
    rank.send_signal(signal.SIGKILL)
    (lost,) = await here.hear(EngineLost)
    assert time.monotonic() - killed_s < 1.0
    assert lost.plan == wanted.id
    assert f"pid {rank.pid}" in lost.log_tail
    await until(lambda: here.engine_pids() == [])


async def test_a_port_in_use_is_found_before_anything_is_started(here: Site) -> None:
    with socket.create_server(("127.0.0.1", here.first_port)):
        await here.start(plan("a0"), fence(1))
        (failed,) = await here.hear(EngineFailed)
    assert f"port {here.first_port} is in use by" in failed.reason
    assert f"(pid {os.getpid()})" in failed.reason
    assert "FLEXPIPE_WORKER_FIRST_PORT" in failed.reason


async def test_a_model_that_is_not_there_fails_with_the_engines_own_words(here: Site) -> None:
    await here.start(plan("a0"), fence(1), model=ModelRef(name="toy", path="/no/such/model"))
    (failed,) = await here.hear(EngineFailed)
    assert failed.reason == "exit code 2"
    assert "no model at /no/such/model" in failed.log_tail


async def test_an_engine_environment_that_is_not_there_is_named_with_the_fix(here: Site) -> None:
    sglang = EngineSettings(kind="sglang", form="cpu")
    await here.start(plan("a0"), fence(1), engine=sglang)
    (failed,) = await here.hear(EngineFailed)
    assert f"{here.folder}/no-venv/bin/python is not there" in failed.reason
    assert "make engine" in failed.reason


async def test_a_plan_that_the_engine_cannot_run_is_refused_with_its_reason(here: Site) -> None:
    await here.start(plan("a0"), fence(1), engine=EngineSettings(kind="vllm"))
    (failed,) = await here.hear(EngineFailed)
    assert failed.reason == "engine.kind: 'vllm' is not accepted: use one of emulated, sglang"


async def test_a_start_that_never_becomes_ready_fails_at_its_limit_and_is_ended(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXPIPE_EMULATED_FAULT", "never_ready")
    await here.start(plan("a0"), fence(1), limit_s=1.5)
    (failed,) = await here.hear(EngineFailed)
    assert "not ready within" in failed.reason
    await until(lambda: here.engine_pids() == [])


async def test_synthetic_prompts_find_a_broken_engine(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEXPIPE_EMULATED_FAULT", "engine_error")
    wanted = plan("a0")
    await here.start(wanted, fence(1))
    await here.hear(EngineReady)
    await here.warm(wanted, fence(2))
    (warmed,) = await here.hear(PlanWarmed)
    assert warmed.errors == 4
    assert warmed.reason is not None
    assert "500" in warmed.reason


async def test_nothing_can_be_placed_on_a_withdrawn_device_and_what_runs_there_is_lost(
    here: Site,
) -> None:
    await here.start(plan("a1"), fence(1))
    await here.hear(EngineReady)
    await here.withdraw("slot-1", present=False)
    (lost,) = await here.hear(EngineLost)
    assert lost.reason == "node-a/slot-1 was withdrawn"
    assert await here.devices() == ["slot-0"]
    await until(lambda: here.engine_pids() == [])
    await here.withdraw("slot-1", present=True)

    async def returned() -> bool:
        return await here.devices() == ["slot-0", "slot-1"]

    await here.until(returned)


async def test_a_device_that_is_gone_already_takes_its_engines_without_grace(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as here:
        await here.open(limits=HostingLimits(withdraw_grace_s=60.0))
        await here.start(plan("a0+a1"), fence(1))
        await here.hear(EngineReady)
        await here.withdraw("slot-1", present=False, at_once=True)
        (lost,) = await here.hear(EngineLost)
        assert lost.reason == "node-a/slot-1 was withdrawn"
        await until(lambda: here.engine_pids() == [])
        assert await here.devices() == ["slot-0"]


async def test_a_worker_beats_twice_a_second_until_its_node_has_failed(tmp_path: Path) -> None:
    async with (
        site(tmp_path) as here,
        connect(here.server.settings("monitor"), service="monitor", name="main") as monitor,
        monitor.overhear([Hearing(HostHeartbeat)]) as signs,
    ):
        await here.open()
        beats = [await asyncio.wait_for(anext(signs), 5) for _ in range(4)]
        assert {beat.message for beat in beats} == {'{"node":"node-a"}'}
        for slot in ("slot-0", "slot-1"):
            await here.withdraw(slot, present=False, at_once=True)

        async def nothing_placeable() -> bool:
            return await here.devices() == []

        await here.until(nothing_placeable)
        with suppress(TimeoutError):
            await asyncio.wait_for(anext(signs), 0.7)  # it was on its way
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(signs), 1.5)
        await here.withdraw("slot-0", present=True)
        await asyncio.wait_for(anext(signs), 5)


async def test_a_node_name_that_is_too_long_for_a_beat_is_one_line(tmp_path: Path) -> None:
    name = "n" * 63
    async with site(tmp_path, name) as here:
        with pytest.raises(InvalidInput, match="at most 60 bytes of JSON: use a shorter name"):
            await asyncio.wait_for(serve(here.settings(name), asyncio.Event()), 30)


async def test_two_workers_start_one_plan_as_a_gang_and_one_lost_rank_takes_both(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, "node-a", "node-b") as here:
        await here.open("node-a")
        await here.open("node-b")
        wanted = plan("a0", "b0")
        await here.start(wanted, fence(1))
        ready = await here.hear(EngineReady, count=2)
        assert {each.node for each in ready} == {"node-a", "node-b"}
        await here.warm(wanted, fence(2))
        assert (await here.hear(PlanWarmed))[0].errors == 0

        followers = [
            process
            for process in map(psutil.Process, here.engine_pids())
            if "--node-rank" in process.cmdline()
            and process.cmdline()[process.cmdline().index("--node-rank") + 1] == "1"
        ]
        for process in followers:
            process.send_signal(signal.SIGKILL)
        lost = await here.hear(EngineLost)
        assert lost[0].node == "node-b"
        await here.stop(wanted, fence(3))

        def both_stopped() -> bool:
            return {each.node for each in here.said(PlanStopped)} == {"node-a", "node-b"}

        await until(both_stopped)
    assert here.engine_pids() == []


@pytest.mark.parametrize("fails", ["node-a", "node-b"])
async def test_a_tensor_group_over_two_nodes_starts_as_a_gang_and_falls_with_either(
    tmp_path: Path, fails: str
) -> None:
    """TP8 as four ranks on each of two nodes of one switch domain; one node fails."""
    async with site(tmp_path, "node-a", "node-b") as here:
        write_checkpoint(
            tmp_path / "model", Shape(layers=4, heads=8, kv_heads=8, hidden=256, intermediate=512)
        )
        for name in ("node-a", "node-b"):
            await here.open(name, devices=slots(4))
        wanted = plan("a0+a1+a2+a3+b0+b1+b2+b3")
        await here.start(wanted, fence(1))
        ready = await here.hear(EngineReady, count=2)
        assert {each.node for each in ready} == {"node-a", "node-b"}
        assert len(here.engine_pids()) == 2 + 8
        await here.warm(wanted, fence(2))
        assert (await here.hear(PlanWarmed))[0].errors == 0

        failed_s = time.monotonic()
        for slot in slots(4):
            await here.withdraw(slot.device, present=False, node=fails, at_once=True)
        await here.hear(EngineLost, count=2)
        assert time.monotonic() - failed_s < 3.0  # a second where nobody else is at work
        lost = {each.node: each.reason for each in here.said(EngineLost)}
        (survivor,) = {"node-a", "node-b"} - {fails}
        assert "was withdrawn" in lost[fails]
        assert lost[survivor] == "exit code 1"
        await until(lambda: here.engine_pids() == [])


async def test_a_worker_that_stops_ends_its_engines_and_places_nothing_more(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.open()
        await here.start(plan("a0"), fence(1))
        await here.hear(EngineReady)
        await here.close()
        assert here.engine_pids() == []
        assert await here.devices() == []
        (lost,) = await here.hear(EngineLost)
        assert lost.reason == "the worker of node-a was stopped"


async def test_a_state_directory_serves_one_worker(here: Site) -> None:
    with pytest.raises(InvalidInput, match="another worker runs on it"):
        await serve(here.settings("node-a"), asyncio.Event())


async def test_a_worker_that_is_killed_is_followed_by_one_that_tells_what_was_lost(
    tmp_path: Path,
) -> None:
    async with site(tmp_path) as here:
        async with here.process() as worker:
            await here.start(plan("a0+a1"), fence(5))
            await here.hear(EngineReady)
            worker.kill()
            await worker.wait()
        await until(lambda: here.engine_pids() == [])
        await here.open()
        (lost,) = await here.hear(EngineLost)
        assert lost.fence == fence(5)
        assert "started anew" in lost.reason
        await here.start(plan("a0+a1"), fence(4))
        await until(lambda: bool(here.said(CommandSuperseded)))
        assert here.engine_pids() == []


async def test_settings_come_from_the_environment_over_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(
        f'node = "node-f"\nstate_dir = "{tmp_path}"\naddress = "10.0.0.1"\n'
        '[[devices]]\ndevice = "slot-0"\nkind = "cpu"\nmemory_bytes = 1000\ncore = 0\n'
    )
    monkeypatch.setenv("FLEXPIPE_WORKER_FILE", str(file))
    monkeypatch.setenv("FLEXPIPE_WORKER_ADDRESS", "10.0.0.2")
    monkeypatch.setenv("FLEXPIPE_ENGINE_VENV", "/opt/engine")
    settings = Settings()
    assert (settings.node, settings.address) == ("node-f", "10.0.0.2")
    assert settings.declared().devices[0].core == 0
    assert settings.python("sglang") == "/opt/engine/bin/python"
