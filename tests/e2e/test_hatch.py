"""The escape hatch on real processes: by command, typed by hand, with the automation dead, in the middle of a shift."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import nats
import pytest
import pytest_asyncio

from e2e.shell import Shell
from e2e.stage import EXAMPLE, QUICK, Stage, staged, until
from flexpipe.cli import looking
from flexpipe.cli.chronicle import chronicling
from flexpipe.cli.layouts import Layout, NodeLayout
from flexpipe.cli.models import ensure_model
from flexpipe.cli.traffic import Question
from flexpipe.events.hatch import CancelShift, UrgentAnswered
from flexpipe.events.outgoing import publish
from flexpipe.events.shift import ShiftCompleted, ShiftOrdered, ShiftPhaseChanged
from flexpipe.kernel.errors import Refused
from flexpipe.model.route import PlanState
from flexpipe.model.shift import Outcome, Phase, StartClass

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

AUTOMATION = ("planner", "estimator")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def instance(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Three slots, the whole loop, the emulated example on its baseline tp1."""
    await ensure_model("emulated")
    layout = Layout(
        folder=tmp_path_factory.mktemp("hatch"),
        nodes=(NodeLayout("node-a", slots=3),),
        device_kind="emulated",
        loop=True,
    )
    async with staged(layout) as it:
        await it.apply(EXAMPLE, **QUICK)
        yield it


@pytest_asyncio.fixture(loop_scope="module")
async def stage(instance: Stage) -> AsyncIterator[Stage]:
    """Every test begins in pp2, unpinned, with nothing else running, and finds a baseline resolved."""
    shell = Shell(instance)
    await shell.run("unpin", instance.name)
    if (await instance.entry()).plans[0].plan.shape != "pp2":
        told = await instance.shift("pp2")
        assert isinstance(told, ShiftCompleted), told
    await instance.assert_true_and_clean()

    async def is_resolved() -> bool:
        return any(each.gear for each in await looking.read_baselines(instance.bus))

    await until(is_resolved, "the planner resolves the baseline")
    yield instance


async def assert_baseline_and_pinned(stage: Stage) -> None:
    entry = await stage.assert_true_and_clean()
    assert [each.plan.shape for each in entry.plans] == ["tp1"]
    assert entry.pin is not None


async def test_by_command_it_forces_the_baseline_and_pins_it_until_unpinned(stage: Stage) -> None:
    shell = Shell(stage)
    code, out, err = await shell.run(
        "downshift", stage.name, "--reason", "the night shift wants to sleep"
    )
    assert code == 0, (out, err)
    await assert_baseline_and_pinned(stage)
    pin = (await stage.entry()).pin
    assert pin is not None
    assert "the night shift wants to sleep" in pin.reason
    with pytest.raises(Refused, match="pinned"):
        await stage.shift("pp2")
    code, out, err = await shell.run("unpin", stage.name)
    assert code == 0, (out, err)
    assert (await stage.entry()).pin is None


async def test_twice_is_once(stage: Stage) -> None:
    shell = Shell(stage)
    assert (await shell.run("downshift", stage.name))[0] == 0
    shifts = len(await looking.read_shifts(stage.bus, stage.name))
    assert (await shell.run("downshift", stage.name))[0] == 0
    assert len(await looking.read_shifts(stage.bus, stage.name)) == shifts
    await assert_baseline_and_pinned(stage)


async def test_a_message_typed_by_hand_pulls_it_with_planner_and_estimator_stopped(
    stage: Stage,
) -> None:
    for name in AUTOMATION:
        await stage.kill(name, signal.SIGSTOP)
    try:
        settings = stage.instance.operator
        client = await nats.connect(
            settings.url, user=settings.user, password=settings.password.get_secret_value()
        )
        async with chronicling(stage.bus) as chronicle:
            await client.publish(f"flexpipe.urgent.downshift.{stage.name}", b"{}")
            await client.flush()
            await chronicle.until(
                ShiftCompleted,
                lambda each: each.deployment == stage.name,
                "it shifts",
                limit_s=40.0,
            )
        await client.close()
        await assert_baseline_and_pinned(stage)
    finally:
        for name in AUTOMATION:
            await stage.kill(name, signal.SIGCONT)


async def test_a_shift_on_its_way_elsewhere_is_undone_first(stage: Stage) -> None:
    async with chronicling(stage.bus) as chronicle:
        ordered = await stage.shift("tp1 + pp2@node-a/cpu1,node-a/cpu2", wait_s=None)
        assert isinstance(ordered, ShiftOrdered), ordered
        await chronicle.until(
            ShiftPhaseChanged,
            lambda each: each.phase is Phase.PREPARING,
            "it prepares",
            limit_s=20.0,
        )
        code, out, err = await Shell(stage).run("downshift", stage.name)
        assert code == 0, (out, err)
    await assert_baseline_and_pinned(stage)
    undone = await stage.record(ordered.shift)
    assert undone.outcome in (Outcome.ROLLED_BACK, Outcome.COMPLETED)


async def test_a_retiring_baseline_is_let_in_again(stage: Stage) -> None:
    """Two texts for one prompt cannot be moved, so the old plan retires for as long as they last."""
    assert (await Shell(stage).run("downshift", stage.name))[0] == 0
    assert (await Shell(stage).run("unpin", stage.name))[0] == 0
    question = Question("Say something very long.", 1500)
    body = {**question.body(stage.model), "n": 2}
    async with stage.http.stream(
        "POST", "/v1/chat/completions", json=body, timeout=60.0
    ) as response:
        lines = response.aiter_lines()
        await anext(lines)
        told = await stage.shift("pp2")
        assert isinstance(told, ShiftCompleted), told
        states = {each.plan.shape: each.state for each in (await stage.entry()).plans}
        assert states == {"tp1": PlanState.RETIRING, "pp2": PlanState.ACTIVE}
        assert (await Shell(stage).run("downshift", stage.name))[0] == 0
    await assert_baseline_and_pinned(stage)
    newest = (await looking.read_shifts(stage.bus, stage.name))[-1]
    assert (newest.outcome, newest.start_class) == (Outcome.COMPLETED, StartClass.WARM)


async def test_cancel_undoes_the_shift_in_flight_and_pins_nothing(stage: Stage) -> None:
    async with chronicling(stage.bus) as chronicle:
        ordered = await stage.shift("tp1", wait_s=None)
        assert isinstance(ordered, ShiftOrdered), ordered
        await chronicle.until(
            ShiftPhaseChanged,
            lambda each: each.phase is Phase.PREPARING,
            "it prepares",
            limit_s=20.0,
        )
        await stage.bus.publish(publish(CancelShift(deployment=stage.name), ordered.order_id))
        answer = await chronicle.until(
            UrgentAnswered, lambda each: each.verb == "cancel", "an answer", limit_s=10.0
        )
    assert answer.outcome != "refused", answer.says
    record = await stage.closed(ordered.shift)
    assert record.outcome is Outcome.ROLLED_BACK
    entry = await stage.assert_true_and_clean()
    assert entry.pin is None
    assert [each.plan.shape for each in entry.plans] == ["pp2"]
