"""Real SGLang on two emulated nodes: one is failed by command, and the service shifts by itself to the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from e2e.shell import Shell
from e2e.stage import staged
from e2e.test_faults import until_flowing
from e2e.test_sglang_toy import QUESTIONS
from flexpipe.cli import looking
from flexpipe.cli.chronicle import chronicling
from flexpipe.cli.judging import Judge
from flexpipe.cli.layouts import Layout, NodeLayout
from flexpipe.cli.models import ensure_model
from flexpipe.events.fleet import FleetChanged
from flexpipe.events.shift import ShiftCompleted
from flexpipe.model.shift import Outcome

pytestmark = [pytest.mark.processes, pytest.mark.sglang, pytest.mark.timeout(600)]

NODES = (NodeLayout("node-a", slots=1), NodeLayout("node-b", slots=1, address="127.0.0.2"))
STREAMS = 5
SHIFT_LIMIT_S = 240.0
"""A cold start of SGLang takes half a minute on two idle cores, and several times that on busy ones."""
PARKED_S = 300.0
"""The only plan dies, so its streams wait in the router until the loop's new plan is there."""


async def test_a_failed_node_is_left_by_the_loop_and_every_text_comes_out_the_same(
    tmp_path: Path,
) -> None:
    await ensure_model("toy")
    layout = Layout(folder=tmp_path / "instance", nodes=NODES, loop=True)
    async with staged(layout) as stage:
        await stage.apply(
            Path("ops/examples/toy.toml"),
            canary_synthetic_after_s=0.5,
            canary_requests=2,
            park_limit_s=PARKED_S,
        )
        served_on = (await stage.entry()).plans[0].plan.nodes
        questions = QUESTIONS[:STREAMS]
        unshifted = {
            answer.question: answer
            for answer in await asyncio.gather(*(stage.ask(each) for each in questions))
        }
        traffic = stage.traffic(questions, STREAMS)
        await traffic.start()
        await until_flowing(traffic, STREAMS)
        async with chronicling(stage.bus) as chronicle:
            code, out, err = await Shell(stage).run("fleet", "fail", *served_on)
            assert code == 0, (out, err)
            done = await chronicle.until(
                ShiftCompleted,
                lambda each: each.deployment == stage.name and each.gear != "g-empty",
                "the loop shifts the service to the other node",
                limit_s=SHIFT_LIMIT_S,
            )
            changes = chronicle.since(0, FleetChanged)
        record = await stage.closed(done.shift)
        answers = await traffic.finish(SHIFT_LIMIT_S)
        entry = await stage.assert_true_and_clean()
        async with httpx.AsyncClient(trust_env=False) as http:
            judged = await Judge(http, entry).judge(answers, unshifted)
        spans = await looking.read_spans(stage.bus, record.order.trace_id)
    assert record.outcome is Outcome.COMPLETED
    assert record.order.by == "estimator"
    assert [each.plan.nodes for each in entry.plans] != [served_on]
    assert len(answers) >= STREAMS
    assert [each.reason or each.answer.error for each in judged if not each.passed] == []
    # The trace begins at the loss: the fleet change, then proposal, price and the shift.
    assert record.order.trace_id in {each.trace_id for each in changes}
    names = {span.name for span in spans}
    assert {"fleet changed", "propose", "price"} <= names
