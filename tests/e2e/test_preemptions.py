"""Cards that go in the middle of a switch, on real processes: the target's, the source's, both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.stage import EXAMPLE, QUICK, Stage, staged, until
from e2e.test_faults import QUESTIONS, until_flowing
from flexpipe.cli import altering
from flexpipe.cli.altering import Alteration
from flexpipe.cli.chronicle import Chronicle, chronicling
from flexpipe.cli.layouts import Layout, NodeLayout
from flexpipe.cli.models import ensure_model
from flexpipe.cli.traffic import Answer
from flexpipe.events.shift import ShiftCompleted, ShiftOrdered, ShiftPhaseChanged
from flexpipe.model.shift import Outcome, Phase, ShiftRecord

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

LONG_CANARY = {"canary_requests": 1000, "canary_limit_s": 4.0, "park_limit_s": 60.0}
TAKEN = Alteration(change="preempt")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Three nodes of one slot and the whole loop; tp1 serves on node-a."""
    await ensure_model("emulated")
    layout = Layout(
        folder=tmp_path / "instance",
        nodes=tuple(NodeLayout(f"node-{letter}", slots=1) for letter in "abc"),
        device_kind="emulated",
        loop=True,
    )
    async with staged(layout) as it:
        await it.apply(EXAMPLE, **{**QUICK, **LONG_CANARY})
        assert (await it.entry()).plans[0].plan.nodes == ("node-a",)
        yield it


async def take(stage: Stage, *nodes: str) -> None:
    await altering.alter(stage.bus, nodes, TAKEN, lambda _: None)


async def switching(stage: Stage, chronicle: Chronicle) -> int:
    """A shift from node-a to node-b, once it is in its canary; its number."""
    ordered = await stage.shift("tp1@node-b/cpu0", wait_s=None)
    assert isinstance(ordered, ShiftOrdered), ordered
    await chronicle.until(
        ShiftPhaseChanged,
        lambda each: each.shift == ordered.shift and each.phase is Phase.CANARY,
        "the canary",
        limit_s=40.0,
    )
    return ordered.shift


async def under_load(stage: Stage, *taken: str) -> tuple[ShiftRecord, list[Answer]]:
    """Take nodes in the canary, with six streams running; the record and what the streams brought."""
    traffic = stage.traffic(QUESTIONS, 6)
    await traffic.start()
    await until_flowing(traffic, 6)
    async with chronicling(stage.bus) as chronicle:
        number = await switching(stage, chronicle)
        await take(stage, *taken)
    record = await stage.closed(number)
    return record, await traffic.finish(90.0)


async def test_a_target_that_is_taken_in_the_switch_rolls_back(stage: Stage) -> None:
    record, answers = await under_load(stage, "node-b")
    assert record.outcome is Outcome.ROLLED_BACK
    assert "node-b" in (record.reason or "")
    assert all(answer.whole for answer in answers), [answer.error for answer in answers]
    entry = await stage.assert_true_and_clean()
    assert [each.plan.nodes for each in entry.plans] == [("node-a",)]


async def test_a_source_that_is_taken_in_the_switch_goes_forward(stage: Stage) -> None:
    record, answers = await under_load(stage, "node-a")
    assert record.outcome is Outcome.COMPLETED
    assert all(answer.whole for answer in answers), [answer.error for answer in answers]
    entry = await stage.assert_true_and_clean()
    assert [each.plan.nodes for each in entry.plans] == [("node-b",)]


async def test_with_both_taken_it_is_abandoned_and_recovers_when_a_block_returns(
    stage: Stage,
) -> None:
    await take(stage, "node-c")
    traffic = stage.traffic(QUESTIONS, 6)
    await traffic.start()
    await until_flowing(traffic, 6)
    async with chronicling(stage.bus) as chronicle:
        number = await switching(stage, chronicle)
        await take(stage, "node-a", "node-b")

        async def is_abandoned() -> bool:
            return (await stage.record(number)).outcome is Outcome.ABANDONED or not (
                await stage.entry()
            ).plans

        await until(is_abandoned, "nothing serves any more")
        since = chronicle.mark
        await altering.alter(stage.bus, ("node-c",), Alteration(change="restore"), lambda _: None)
        await chronicle.until(
            ShiftCompleted,
            lambda each: each.deployment == stage.name and each.gear != "g-empty",
            "the loop starts it on what came back",
            limit_s=60.0,
            since=since,
        )
    answers = await traffic.finish(90.0)
    assert all(answer.whole for answer in answers), [answer.error for answer in answers]
    entry = await stage.assert_true_and_clean()
    assert [each.plan.nodes for each in entry.plans] == [("node-c",)]
