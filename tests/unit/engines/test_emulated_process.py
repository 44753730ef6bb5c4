"""The engine as a process: its ranks, its nodes, its faults and its end."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from contract.engine_harness import EngineProcess, until
from flexpipe.engines.emulated.checkpoint import write_checkpoint
from flexpipe.engines.emulated.oracle import Oracle
from flexpipe.engines.port import LaunchSpec
from flexpipe.testing.ports import free_ports

pytestmark = pytest.mark.processes

TABLE = "start_s = 0.05\n[decode_step_ms.default]\nbase = 5.0\n"
OPEN = {"FLEXPIPE_GATE_OPEN": "1", "FLEXPIPE_PLAN_ID": "p-1"}
TOLD = {"x-flexpipe-plan": "p-1", "x-flexpipe-fence": "0.0.0"}
START_LIMIT_S = 15.0
END_LIMIT_S = 2.0
"""A second is what is promised; tests share two cores with others."""

Launch = Callable[..., EngineProcess]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts engine processes of one port block; they end with the test."""
    write_checkpoint(tmp_path / "model")
    (tmp_path / "table.toml").write_text(TABLE)
    ports = free_ports(4)
    with ExitStack() as stack:

        def start(line: str = "", *, port: int = 0, fault: str = "") -> EngineProcess:
            argv = (
                *(sys.executable, "-m", "flexpipe.engines.emulated"),
                *("--model-path", str(tmp_path / "model"), "--port", str(ports + port)),
                *("--performance", str(tmp_path / "table.toml")),
                *line.replace("MEET", f"127.0.0.1:{ports + 3}").split(),
            )
            env = OPEN | ({"FLEXPIPE_EMULATED_FAULT": fault} if fault else {})
            spec = LaunchSpec(argv=argv, env=env, front=f"http://127.0.0.1:{ports + port}")
            return stack.enter_context(EngineProcess(spec, dict(os.environ), tmp_path))

        yield start


def http(engine: EngineProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=engine.front, trust_env=False, timeout=10, headers=TOLD)


def body(count: int, **fields: object) -> dict[str, object]:
    return {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": count}, **fields}


async def rank_pids(engine: EngineProcess) -> list[int]:
    async with http(engine) as client:
        pids: list[int] = (await client.get("/server_info")).json()["rank_pids"]
    return pids


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


async def until_dead(pids: list[int], limit_s: float = END_LIMIT_S) -> None:
    async def dead() -> bool:
        return not any(map(alive, pids))

    await until(dead, limit_s, f"{pids} are gone")


async def test_the_oracle_judges_a_running_engine(launch: Launch) -> None:
    engine = launch("--tp-size 2")
    await engine.ready(START_LIMIT_S)
    async with http(engine) as client:
        answer = (await client.post("/generate", json=body(20))).json()
    rule = Oracle(vocab_size=4096, first_id=460, eos_id=2)
    assert answer["output_ids"] == rule.continuation([1, 2, 3], 20)


async def test_sigterm_ends_streams_ranks_and_process_in_a_second(launch: Launch) -> None:
    engine = launch("--tp-size 2 --pp-size 2")
    await engine.ready(START_LIMIT_S)
    pids = await rank_pids(engine)
    assert len(pids) == 4
    async with (
        http(engine) as client,
        client.stream("POST", "/generate", json=body(5000, stream=True)) as response,
    ):
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        engine.popen.terminate()
        rest = [line async for line in lines if line]
    assert '"type":"abort"' in rest[-2]
    assert '"status_code":503' in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert await engine.exit_status(END_LIMIT_S) == 0
    await until_dead(pids)


async def test_a_signal_to_the_whole_group_is_a_graceful_end_too(launch: Launch) -> None:
    engine = launch("--tp-size 2")
    await engine.ready(START_LIMIT_S)
    os.killpg(engine.popen.pid, signal.SIGTERM)
    assert await engine.exit_status(END_LIMIT_S) == 0


async def test_a_rank_that_dies_takes_the_engine_with_it(launch: Launch) -> None:
    engine = launch("--pp-size 2")
    await engine.ready(START_LIMIT_S)
    pids = await rank_pids(engine)
    with pytest.raises(httpx.TransportError):
        await stream_and_kill(engine, pids[1])
    assert await engine.exit_status(END_LIMIT_S) == 1
    assert "rank 1" in engine.log
    await until_dead(pids)


async def test_ranks_do_not_outlive_a_killed_front(launch: Launch) -> None:
    engine = launch("--tp-size 2")
    await engine.ready(START_LIMIT_S)
    pids = await rank_pids(engine)
    engine.popen.kill()
    await until_dead(pids)


async def stream_and_kill(engine: EngineProcess, pid: int) -> None:
    """Kill a process at the first event of a stream, and read on."""
    async with (
        http(engine) as client,
        client.stream("POST", "/generate", json=body(5000, stream=True)) as response,
    ):
        async for _ in response.aiter_lines():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


NODES = "--tp-size 2 --nnodes 2 --dist-init-addr MEET"


async def test_two_nodes_are_ready_together_or_not_at_all(launch: Launch) -> None:
    front = launch(f"{NODES} --node-rank 0")
    async with http(front) as client:

        async def answers() -> bool:
            try:
                return (await client.get("/ready")).status_code == 503
            except httpx.TransportError:
                return False

        await until(answers, START_LIMIT_S, "the front answers while its peer is absent")
        assert (await client.post("/generate", json=body(2))).status_code == 503
        peer = launch(f"{NODES} --node-rank 1", port=1)
        await front.ready(START_LIMIT_S)
        assert (await client.post("/generate", json=body(2))).status_code == 200
        assert peer.popen.poll() is None


async def test_a_lost_node_ends_the_requests_and_then_the_front(launch: Launch) -> None:
    front, peer = launch(f"{NODES} --node-rank 0"), launch(f"{NODES} --node-rank 1", port=1)
    await front.ready(START_LIMIT_S)
    async with (
        http(front) as client,
        client.stream("POST", "/generate", json=body(5000, stream=True)) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        peer.popen.kill()
        rest = [line async for line in lines if line]
        assert "node 1 of this engine is gone" in rest[-2]
        assert rest[-1] == "data: [DONE]"
    assert await front.exit_status(END_LIMIT_S) == 1
    assert "node 1 is gone" in front.log


async def test_half_of_a_tensor_group_lives_as_long_as_the_other(launch: Launch) -> None:
    wide = "--tp-size 4 --nnodes 2 --dist-init-addr MEET"
    front, peer = launch(f"{wide} --node-rank 0"), launch(f"{wide} --node-rank 1", port=1)
    await front.ready(START_LIMIT_S)
    pids = await rank_pids(front)
    assert len(pids) == 2
    async with http(front) as client:
        assert (await client.get("/server_info")).json()["tp_size"] == 4
        assert (await client.post("/generate", json=body(2))).status_code == 200
    os.kill(pids[1], signal.SIGKILL)
    assert await front.exit_status(END_LIMIT_S) == 1
    assert await peer.exit_status(END_LIMIT_S) == 1


async def test_a_node_ends_when_node_0_does(launch: Launch) -> None:
    front, peer = launch(f"{NODES} --node-rank 0"), launch(f"{NODES} --node-rank 1", port=1)
    await front.ready(START_LIMIT_S)
    front.popen.kill()
    assert await peer.exit_status(END_LIMIT_S) == 1
    assert "node 0 is gone" in peer.log


async def test_nodes_that_do_not_meet_give_up(launch: Launch) -> None:
    peer = launch(f"{NODES} --node-rank 1 --dist-timeout 0.3", port=1)
    assert await peer.exit_status(START_LIMIT_S) == 1
    assert "no welcome from" in peer.log
    front = launch(f"{NODES} --node-rank 0 --dist-timeout 0.3")
    assert await front.exit_status(START_LIMIT_S) == 1
    assert "nodes [1] did not arrive in 0.3 s" in front.log


async def test_a_stranger_is_not_taken_for_a_node(launch: Launch) -> None:
    front = launch(f"{NODES} --node-rank 0")
    stranger = launch(f"{NODES} --node-rank 1 --plan-id p-other", port=1)
    assert await stranger.exit_status(START_LIMIT_S) == 1
    assert "refused: this is plan 'p-1'" in stranger.log
    launch(f"{NODES} --node-rank 1", port=1)
    await front.ready(START_LIMIT_S)


async def test_a_port_in_use_is_one_line(launch: Launch) -> None:
    first = launch()
    await first.ready(START_LIMIT_S)
    second = launch()
    assert await second.exit_status(START_LIMIT_S) == 1
    assert second.log.strip().endswith("Address already in use")
    assert second.log.count("\n") == 1


async def test_a_refused_start_is_one_line(launch: Launch) -> None:
    engine = launch("--tp-size 3")
    assert await engine.exit_status(START_LIMIT_S) == 2
    assert engine.log == "emulated engine: 4 attention heads do not divide over tp 3\n"


async def test_a_start_that_fails_says_so(launch: Launch) -> None:
    engine = launch(fault="start_fails")
    assert await engine.exit_status(START_LIMIT_S) == 1
    assert "start failed" in engine.log


async def test_an_engine_that_errs_answers_500(launch: Launch) -> None:
    engine = launch(fault="engine_error")
    await engine.ready(START_LIMIT_S)
    async with http(engine) as client:
        assert (await client.post("/generate", json=body(2))).status_code == 500
        assert (await client.post("/abort_request", json={"rid": "x"})).status_code == 200
        assert (await client.get("/ready")).status_code == 200


async def test_an_engine_that_never_gets_ready_stays_so(launch: Launch) -> None:
    engine = launch("--time-scale 1000", fault="never_ready")
    statuses: list[int] = []
    async with http(engine) as client:

        async def asked_often() -> bool:
            try:
                statuses.append((await client.get("/ready")).status_code)
            except httpx.TransportError:
                return False
            return len(statuses) >= 20

        await until(asked_often, START_LIMIT_S, "twenty answers")
    assert set(statuses) == {503}
    engine.popen.terminate()
    assert await engine.exit_status(END_LIMIT_S) == 0


async def test_a_crash_after_tokens_cuts_streams_without_a_word(launch: Launch) -> None:
    engine = launch(fault="crash_after_tokens=5")
    await engine.ready(START_LIMIT_S)
    async with http(engine) as client:
        with pytest.raises(httpx.TransportError):
            await client.post("/generate", json=body(50, stream=True))
    assert await engine.exit_status(END_LIMIT_S) == 1
    assert "crashed after 5 tokens" in engine.log
