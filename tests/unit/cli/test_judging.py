"""The judge lets a stream through only on the word of an engine."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from flexpipe.cli.judging import Judge, Judgement
from flexpipe.cli.traffic import Answer, Question
from flexpipe.model.deployment import ModelRef, Policy
from flexpipe.model.fence import Fence
from flexpipe.model.route import PlanState, RoutedPlan, RouteEntry
from flexpipe.testing.builders import a_plan

QUESTION = Question("hello", 3)


def answered(text: str, *tokens: int) -> Answer:
    return Answer(
        QUESTION,
        text=text,
        prompt_ids=[1, 2],
        token_ids=list(tokens),
        finish="length",
        usage={"completion_tokens": len(tokens)},
        ids={"chatcmpl-1"},
    )


EXPECTED = answered("abc", 5, 6, 7)
ENTRY = RouteEntry(
    deployment="toy",
    model=ModelRef(name="toy", path="models/toy"),
    policy=Policy(),
    term=1,
    shift=1,
    plans=(
        RoutedPlan(
            plan=a_plan("node-a/cpu0"),
            front="http://engine",
            admit=1.0,
            state=PlanState.ACTIVE,
            fence=Fence(deployment="toy", term=1, shift=1, step=1),
        ),
    ),
)


async def judged(answer: Answer, status: int, body: dict[str, Any]) -> Judgement:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=body))
    async with httpx.AsyncClient(transport=transport) as http:
        (judgement,) = await Judge(http, ENTRY).judge([answer], {QUESTION: EXPECTED})
    return judgement


def scores(behind: float) -> dict[str, Any]:
    """What an engine says of three tokens whose last one lies so far behind its own choice."""
    at = [None, (-0.1, 5, None), (-0.1, 6, None), (-0.1 - behind, 8, None)]
    top = [None, [(-0.1, 5, None)], [(-0.1, 6, None)], [(-0.1, 7, None)]]
    return {"meta_info": {"input_token_logprobs": at, "input_top_logprobs": top}}


async def test_an_identical_stream_needs_no_engine() -> None:
    judgement = await judged(answered("abc", 5, 6, 7), 500, {})
    assert judgement.passed
    assert judgement.identical


@pytest.mark.parametrize(("behind", "passes"), [(5e-4, True), (2e-3, False)])
async def test_another_stream_passes_only_where_the_engine_might_have_said_it(
    behind: float, passes: bool
) -> None:
    judgement = await judged(answered("abd", 5, 6, 8), 200, scores(behind))
    assert (judgement.forced, judgement.identical, judgement.passed) == (True, False, passes)


@pytest.mark.parametrize(("status", "body"), [(500, {}), (409, {}), (200, {})])
async def test_a_stream_that_no_engine_judged_does_not_pass(
    status: int, body: dict[str, Any]
) -> None:
    judgement = await judged(answered("abd", 5, 6, 8), status, body)
    assert not judgement.passed
    assert judgement.reason.startswith("not judged")


async def test_a_stream_that_broke_does_not_pass() -> None:
    judgement = await judged(answered("ab", 5, 6), 200, scores(0))
    assert not judgement.passed
    assert judgement.identical is None
