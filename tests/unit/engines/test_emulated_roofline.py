"""The emulated engine that stands for hardware: it is told what the performance model reckons, and keeps to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexpipe.engines.emulated.adapter import EmulatedAdapter
from flexpipe.engines.emulated.arguments import Refused, parse_arguments
from flexpipe.engines.emulated.checkpoint import SHAPES, write_checkpoint
from flexpipe.engines.emulated.oracle import Oracle
from flexpipe.engines.emulated.scheduler import Scheduler
from flexpipe.engines.emulated.sequences import Limits
from flexpipe.engines.emulated.table import Curve, PerformanceTable, StepTime
from flexpipe.engines.port import RankGroup
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.fence import Fence
from flexpipe.model.plan import Plan
from flexpipe.performance.starting import cold_start_s
from flexpipe.performance.steps import step_times
from flexpipe.testing.llamas import A100, H100, L40S, LLAMA_2_7B, LLAMA_2_70B, a_llama, a_plan_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama-70b")
    write_checkpoint(folder, SHAPES["70b"])
    return folder


def launched(plan: Plan, model: Path) -> PerformanceTable:
    """What an engine started for this plan of the 70B keeps to."""
    deployment = a_llama(LLAMA_2_70B, time_scale=6.0)
    ref = deployment.model.model_copy(update={"path": str(model)})
    group = RankGroup(
        plan=plan,
        fence=Fence(deployment="llama-70b", term=1, shift=1, step=1),
        model=ref,
        engine=deployment.engine,
        node=plan.nodes[0],
        node_rank=0,
        host="127.0.0.1",
        front_port=31_000,
        rendezvous="127.0.0.1:31001",
    )
    arguments = parse_arguments(EmulatedAdapter("python").launch(group).argv[3:])
    assert arguments.time_scale == 6.0
    return arguments.table


PLANS = [
    pytest.param(a_plan_of(LLAMA_2_70B, H100, tp=4, path="nvswitch"), id="tp4 H100"),
    pytest.param(a_plan_of(LLAMA_2_70B, A100, tp=4, pp=2), id="tp4pp2 A100"),
    pytest.param(a_plan_of(LLAMA_2_70B, L40S, tp=2, pp=4, path="pcie"), id="tp2pp4 L40S"),
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("batch", [1, 3, 20, 100, 256])
@pytest.mark.parametrize("context", [100, 1500])
def test_its_steps_are_those_of_the_model(
    plan: Plan, batch: int, context: int, model: Path
) -> None:
    step = launched(plan, model).step_time("tp4")
    times = step_times(plan, LLAMA_2_70B, "bfloat16", context_tokens=float(context))
    assert step.ms(batch, batch * context) == pytest.approx(times.decode_ms(batch), rel=0.05)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("tokens", [10, 700, 3000, 20_000])
def test_its_prompts_take_what_they_hold_up_in_the_model(
    plan: Plan, tokens: int, model: Path
) -> None:
    times = step_times(plan, LLAMA_2_70B, "bfloat16", context_tokens=1.0)
    read_s = launched(plan, model).prefill_s(tokens)
    assert read_s == pytest.approx(times.prefill_busy_ms(tokens) / 1e3, rel=0.06)


@pytest.mark.parametrize("plan", PLANS)
def test_its_start_and_its_memory_are_the_plan_s(plan: Plan, model: Path) -> None:
    table = launched(plan, model)
    engine = a_llama(LLAMA_2_70B).engine
    assert table.start_s == pytest.approx(cold_start_s(plan, LLAMA_2_70B, engine), abs=0.01)
    assert table.max_total_tokens == plan.kv_tokens
    assert table.weights_bytes == LLAMA_2_70B.weights_bytes
    assert table.kv_bytes_per_token == 327_680


def test_a_model_that_was_never_read_cannot_be_reckoned() -> None:
    deployment = a_llama(LLAMA_2_7B)
    group = RankGroup(
        plan=a_plan_of(LLAMA_2_7B, H100),
        fence=Fence(deployment="m", term=1, shift=1, step=1),
        model=deployment.model.model_copy(update={"facts": None}),
        engine=deployment.engine,
        node="n0",
        node_rank=0,
        host="127.0.0.1",
        front_port=31_000,
        rendezvous="127.0.0.1:31001",
    )
    with pytest.raises(InvalidInput, match="apply the deployment again"):
        EmulatedAdapter("python").launch(group)


# -- curves ---------------------------------------------------------------------------------------


def test_a_curve_is_straight_between_its_points_flat_before_and_goes_on_after() -> None:
    curve = Curve.read("2:10,4:20,8:30")
    assert [curve.ms(size) for size in (1, 2, 3, 4, 6, 8, 12)] == [10, 10, 15, 20, 25, 30, 40]
    assert Curve.read("5:7").ms(100) == 7


@given(
    sizes=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=8, unique=True),
    at=st.floats(0.0, 2e6),
)
def test_a_curve_goes_through_its_points(sizes: list[float], at: float) -> None:
    points = tuple((size, size / 2) for size in sorted(sizes))
    curve = Curve(points=points)
    assert all(curve.ms(size) == pytest.approx(ms, rel=1e-6) for size, ms in points)
    if len(points) > 1:
        assert curve.ms(at) == pytest.approx(max(at, points[0][0]) / 2, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("text", ["", "1", "1:x", "2:1,1:2", "1:1,1:2", "1:-1", "0:1", "1:nan"])
def test_what_is_no_curve_is_refused_in_one_line(text: str, model: Path) -> None:
    with pytest.raises(Refused, match="a curve must read like") as caught:
        parse_arguments(["--model-path", str(model), "--port", "31000", "--decode-curve-ms", text])
    assert "\n" not in str(caught.value)


def test_a_figure_that_makes_no_sense_is_named(model: Path) -> None:
    with pytest.raises(Refused, match="max_running"):
        parse_arguments(["--model-path", str(model), "--port", "31000", "--max-running", "0"])
    with pytest.raises(Refused, match="start_s"):
        parse_arguments(["--model-path", str(model), "--port", "31000", "--start-s", "-1"])


async def test_the_scheduler_spends_what_the_curve_and_the_kv_say() -> None:
    """40 steps of 5 ms and 0.1 ms for each of about 120 tokens of KV: 0.68 s at ten times the pace."""
    curve = Curve.read("1:5,2:9")
    table = PerformanceTable(
        decode_step_ms={"default": StepTime(base=0.0, curve=curve, kv_token_ms=0.1)},
        prefill_curve=Curve.read("1:1,1000:1"),
    )
    scheduler = Scheduler(
        table=table,
        layout="tp1",
        context_tokens=4096,
        oracle=Oracle(vocab_size=4096, first_id=1000, eos_id=2),
        time_scale=10.0,
    )
    running = asyncio.create_task(scheduler.run())
    try:
        loop = asyncio.get_running_loop()
        began = loop.time()
        limits = Limits(
            max_new_tokens=41, min_new_tokens=0, stop_token_ids=frozenset(), ignore_eos=True
        )
        sequence = scheduler.submit("r", list(range(1000, 1100)), limits, 0, None)
        async with asyncio.timeout(20):
            while sequence.finish is None:
                await sequence.changed.wait()
                sequence.changed.clear()
        expected_s = (40 * 5 + 0.1 * sum(range(101, 141))) / 1e3 / 10
        assert expected_s * 0.95 <= loop.time() - began < expected_s * 5
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
