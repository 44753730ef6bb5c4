"""What goes wrong in a shift, on real processes: every stream whole, a true route entry, a readable reason."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from e2e.stage import EXAMPLE, QUICK, Stage, staged, until
from flexpipe.bus.hearing import Hearing
from flexpipe.cli import ordering
from flexpipe.cli.layouts import Layout, NodeLayout
from flexpipe.cli.models import ensure_model
from flexpipe.cli.traffic import Answer, Question, Traffic
from flexpipe.engines.emulated.checkpoint import FIRST_WORD_ID, IM_END_ID, SHAPES
from flexpipe.engines.emulated.oracle import Oracle
from flexpipe.events import shift as shift_events
from flexpipe.events.message import Message
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.route import PlanState
from flexpipe.model.shift import Phase, ShiftRecord

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

QUESTIONS = [Question(f"Say something long about the number {number}.", 250) for number in range(6)]
ORACLE = Oracle(SHAPES["toy"].vocab_size, FIRST_WORD_ID, IM_END_ID)


@pytest.fixture
async def two_nodes(tmp_path: Path) -> AsyncIterator[Callable[..., Stage]]:
    """A function that stages two nodes, the second one with a fault of its engines; tp1 serves on the first."""
    await ensure_model("emulated")
    closers = []

    async def make(
        fault: str = "", routers: tuple[str, ...] = ("router-1",), **policy: object
    ) -> Stage:
        env = {"FLEXPIPE_EMULATED_FAULT": fault} if fault else {}
        layout = Layout(
            folder=tmp_path / "instance",
            nodes=(NodeLayout("node-a"), NodeLayout("node-b", env=env)),
            routers=routers,
            device_kind="emulated",
        )
        context = staged(layout)
        stage = await context.__aenter__()
        closers.append(context)
        await stage.apply(EXAMPLE, **{**QUICK, **policy})
        return stage

    yield make  # type: ignore[misc]
    for context in closers:
        await context.__aexit__(None, None, None)


async def shift_under_load(
    stage: Stage,
    gear: str,
    at: Phase | None = None,
    do: Callable[[], Awaitable[None]] | None = None,
) -> tuple[Message, list[Answer]]:
    """A shift with six streams running, until its record has closed; `do` is done when it enters phase `at`."""
    traffic = stage.traffic(QUESTIONS, 6)
    await traffic.start()
    await until_flowing(traffic, 6)
    doing = None if at is None or do is None else asyncio.create_task(_when(stage, at, do))
    outcome = await stage.shift(gear)
    assert isinstance(outcome, shift_events.ShiftEvent)
    await stage.closed(outcome.shift)
    if doing is not None:
        assert doing.done(), f"the shift never entered {at}"
        await doing
    return outcome, await traffic.finish(60.0)


async def _when(stage: Stage, at: Phase, do: Callable[[], Awaitable[None]]) -> None:
    async with stage.bus.listen(
        (Hearing(shift_events.ShiftPhaseChanged, key=stage.name),)
    ) as heard:
        async for delivered in heard:
            if shift_events.ShiftPhaseChanged.model_validate_json(delivered.message).phase is at:
                await do()
                return


async def until_flowing(traffic: Traffic, width: int) -> None:
    """All streams bring tokens."""

    async def is_flowing() -> bool:
        return traffic.flowing == width

    await until(is_flowing, "all streams bring tokens")


def assert_whole(answers: list[Answer]) -> None:
    """Every stream ended by itself, with exactly the tokens of an undisturbed run."""
    assert len(answers) >= 6
    assert [answer.error for answer in answers if not answer.whole] == []
    for answer in answers:
        assert answer.token_ids == ORACLE.continuation(answer.prompt_ids, len(answer.token_ids))
        assert len(answer.token_ids) == answer.question.max_tokens


FORWARD = [phase for phase in Phase if phase not in (Phase.CLOSED, Phase.UNDOING, Phase.UNWINDING)]


def reason_of(record: ShiftRecord) -> str:
    """What `flexpipe shift N` says."""
    assert record.reason is not None
    assert "\n" not in record.reason
    return record.reason


@pytest.mark.parametrize(
    ("fault", "says"),
    [("start_fails", "start"), ("never_ready", "not become ready")],
    ids=["fails-to-start", "never-ready"],
)
async def test_a_shadow_that_does_not_come_up_changes_nothing(
    two_nodes: Callable[..., object], fault: str, says: str
) -> None:
    stage: Stage = await two_nodes(fault, engine_start_limit_s=4.0)  # type: ignore[misc]
    outcome, answers = await shift_under_load(stage, "tp1@node-b/cpu0")
    assert isinstance(outcome, shift_events.ShiftRolledBack)
    assert_whole(answers)
    record = await stage.closed(outcome.shift)
    assert says in reason_of(record)
    assert not record.moved
    entry = await stage.assert_true_and_clean()
    assert [str(each.plan.devices[0]) for each in entry.plans] == ["node-a/cpu0"]


async def test_a_canary_whose_engine_errs_is_undone_at_once(
    two_nodes: Callable[..., object],
) -> None:
    stage: Stage = await two_nodes("engine_error")  # type: ignore[misc]
    outcome, answers = await shift_under_load(stage, "tp1@node-b/cpu0")
    assert isinstance(outcome, shift_events.ShiftRolledBack)
    assert_whole(answers)
    assert reason_of(await stage.closed(outcome.shift))
    await stage.assert_true_and_clean()


@asynccontextmanager
async def unmovable_stream(stage: Stage) -> AsyncIterator[None]:
    """A long request that cannot be resumed elsewhere: the plan that has it stays retiring until the block ends."""
    body = {**Question("Go on and on.", 6000).body(stage.model), "presence_penalty": 0.5}
    async with stage.http.stream(
        "POST", "/v1/chat/completions", json=body, timeout=60.0
    ) as response:
        assert response.status_code == 200, await response.aread()
        lines = response.aiter_lines()
        await anext(lines)

        async def read_on() -> None:
            with contextlib.suppress(
                httpx.HTTPError
            ):  # it ends with its plan, where that is what the test does
                async for _ in lines:
                    pass

        reading = asyncio.create_task(read_on())
        yield
        reading.cancel()
        await asyncio.wait({reading})


@pytest.mark.parametrize("at", [Phase.PREPARING, Phase.CANARY, Phase.HANDING_OVER, Phase.RETIRING])
async def test_a_rank_of_the_new_plan_that_dies_breaks_no_stream(stage: Stage, at: Phase) -> None:
    (serving,) = (await stage.entry()).plans

    async def kill_new() -> None:
        target = (await stage.record_in_flight()).order.target.plans[0].id

        async def is_there() -> bool:
            return bool(stage.engine_pids(target))

        await until(is_there, "the new engine's processes are there")
        os.kill(stage.engine_pids(target)[-1], signal.SIGKILL)

    async with unmovable_stream(stage):
        traffic = stage.traffic(QUESTIONS, 6)
        await traffic.start()
        await until_flowing(traffic, 6)
        killing = asyncio.create_task(_when(stage, at, kill_new))
        outcome = await stage.shift("pp2")
        await killing

        async def is_back() -> bool:
            active = [
                each for each in (await stage.entry()).plans if each.state is PlanState.ACTIVE
            ]
            return [each.plan.id for each in active] == [serving.plan.id]

        # Rolled back; or, where it died after the commit, the retiring plan was let in again.
        await until(is_back, "the old plan serves")
        assert_whole(await traffic.finish(60.0))
    if at in (Phase.PREPARING, Phase.CANARY):
        assert isinstance(outcome, shift_events.ShiftRolledBack), outcome
        assert reason_of(await stage.record(outcome.shift))
    await stage.assert_true_and_clean()


async def test_a_serving_engine_that_dies_in_the_switch_drives_the_shift_forward(
    stage: Stage,
) -> None:
    serving = (await stage.entry()).plans[0].plan.id

    async def kill_old() -> None:
        os.kill(stage.engine_pids(serving)[0], signal.SIGKILL)

    outcome, answers = await shift_under_load(stage, "pp2", Phase.HANDING_OVER, kill_old)
    assert isinstance(outcome, shift_events.ShiftCompleted), outcome
    assert_whole(answers)
    await stage.closed(outcome.shift)
    entry = await stage.assert_true_and_clean()
    assert [each.plan.shape for each in entry.plans] == ["pp2"]


async def test_a_target_that_is_taken_away_in_the_switch_rolls_back(
    two_nodes: Callable[..., object],
) -> None:
    stage: Stage = await two_nodes(canary_requests=1000, canary_limit_s=5.0)  # type: ignore[misc]

    async def take() -> None:
        await ordering.set_device(stage.bus, DeviceRef(node="node-b", device="cpu0"), present=False)

    outcome, answers = await shift_under_load(stage, "tp1@node-b/cpu0", Phase.CANARY, take)
    assert isinstance(outcome, shift_events.ShiftRolledBack)
    assert_whole(answers)
    record = await stage.closed(outcome.shift)
    assert "node-b/cpu0" in reason_of(record)
    await stage.assert_true_and_clean()


async def test_a_router_that_does_not_ack_the_freeze_rolls_back(
    two_nodes: Callable[..., object],
) -> None:
    stage: Stage = await two_nodes(  # type: ignore[misc]
        routers=("router-1", "router-2"),
        freeze_ack_limit_s=1.0,
        canary_limit_s=3.0,
        hand_over_limit_s=5.0,
    )
    await stage.kill("router-2", signal.SIGSTOP)
    try:
        outcome, answers = await shift_under_load(stage, "tp1@node-b/cpu0")
    finally:
        await stage.kill("router-2", signal.SIGCONT)
    assert isinstance(outcome, shift_events.ShiftRolledBack)
    assert_whole(answers)
    record = await stage.closed(outcome.shift)
    assert "router-2" in reason_of(record)
    await stage.assert_true_and_clean()


async def test_an_executor_killed_at_every_persisted_transition_goes_on_after_its_restart(
    stage: Stage,
) -> None:
    terms = [(await stage.entry()).term]
    for at in FORWARD:
        shape = (await stage.entry()).plans[0].plan.shape
        other = "pp2" if shape == "tp1" else "tp1"
        outcome, answers = await shift_under_load(stage, other, at, lambda: stage.kill("executor"))
        assert isinstance(outcome, shift_events.ShiftCompleted | shift_events.ShiftRolledBack), at
        assert_whole(answers)
        entry = await stage.assert_true_and_clean()
        terms.append(entry.term)
        wanted = other if isinstance(outcome, shift_events.ShiftCompleted) else shape
        assert [each.plan.shape for each in entry.plans] == [wanted], at
    assert terms == sorted(set(terms)), "every life of the executor leads under a higher term"


@pytest.mark.parametrize("at", [Phase.UNDOING, Phase.UNWINDING])
async def test_an_executor_killed_in_an_undo_goes_on_with_it(
    two_nodes: Callable[..., object], at: Phase
) -> None:
    stage: Stage = await two_nodes("engine_error")  # type: ignore[misc]
    outcome, answers = await shift_under_load(
        stage, "tp1@node-b/cpu0", at, lambda: stage.kill("executor")
    )
    assert isinstance(outcome, shift_events.ShiftRolledBack)
    assert_whole(answers)
    assert reason_of(await stage.record(outcome.shift))
    entry = await stage.assert_true_and_clean()
    assert [each.plan.nodes for each in entry.plans] == [("node-a",)]


async def test_a_client_that_leaves_in_mid_shift_leaves_nothing_behind(stage: Stage) -> None:
    traffic = stage.traffic(QUESTIONS, 6)
    await traffic.start()

    await until_flowing(traffic, 6)
    left: list[asyncio.Task[None]] = []

    def tell(message: Message) -> None:
        if isinstance(message, shift_events.ShiftPhaseChanged) and message.phase is Phase.FREEZING:
            left.append(asyncio.create_task(traffic.abort()))

    outcome = await stage.shift("pp2", tell)
    assert isinstance(outcome, shift_events.ShiftCompleted)
    await asyncio.gather(*left)
    await stage.closed(outcome.shift)
    (routed,) = (await stage.assert_true_and_clean()).plans

    async def is_empty() -> bool:
        (load,) = (await stage.http.get(f"{routed.front}/v1/loads")).json()["loads"]
        return not (load["num_running_reqs"] or load["num_waiting_reqs"] or load["num_used_tokens"])

    await until(is_empty, "the engine holds no request", 5.0)


async def test_a_lost_plan_outside_a_shift_is_taken_out_and_the_other_carries_on(
    two_nodes: Callable[..., object],
) -> None:
    stage: Stage = await two_nodes()  # type: ignore[misc]
    outcome = await stage.shift("tp1@node-a/cpu0 + tp1@node-b/cpu0")
    assert isinstance(outcome, shift_events.ShiftCompleted)
    await stage.closed(outcome.shift)
    lost = next(
        each.plan.id for each in (await stage.entry()).plans if each.plan.nodes == ("node-b",)
    )
    traffic = stage.traffic(QUESTIONS, 6)
    await traffic.start()

    await until_flowing(traffic, 6)
    os.kill(stage.engine_pids(lost)[0], signal.SIGKILL)

    async def is_out() -> bool:
        return [each.plan.nodes for each in (await stage.entry()).plans] == [("node-a",)]

    await until(is_out, "the lost plan is out of the entry")
    assert_whole(await traffic.finish(60.0))
    await stage.assert_true_and_clean()


async def test_stopping_lets_running_streams_finish_and_refuses_later_ones(stage: Stage) -> None:
    traffic = stage.traffic(QUESTIONS, 3)
    await traffic.start()

    await until_flowing(traffic, 3)
    finishing = asyncio.create_task(traffic.finish(60.0))
    outcome = await stage.shift("empty")
    assert isinstance(outcome, shift_events.ShiftCompleted)
    answers = await finishing
    assert all(answer.whole for answer in answers)
    refused = await stage.ask(QUESTIONS[0])
    assert refused.error is not None
    assert refused.error.startswith("HTTP 503")
    await stage.closed(outcome.shift)
    assert (await stage.entry()).plans == ()
