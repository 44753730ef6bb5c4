"""A front is ready when the engine of that plan says so, whoever else answers at its address before."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from flexpipe.engines.client import EngineClient
from flexpipe.hosting.effects import PollReady
from flexpipe.worker.probing import poll_ready

PLAN = "p-ours"
Answers = Callable[[str], httpx.Response]


def gate_of(plan: str) -> httpx.Response:
    state = {"plan": plan, "admitting": False, "fence": [1, 1, 1], "route_entry": None}
    return httpx.Response(200, content=json.dumps(state | {"admitted": 0, "refused": 0}))


def stranger(_: str) -> httpx.Response:
    return httpx.Response(200, text="It works!")


def without_gate(path: str) -> httpx.Response:
    return httpx.Response(200 if path == "/ready" else 404)


def another_plan(path: str) -> httpx.Response:
    return httpx.Response(200) if path == "/ready" else gate_of("p-theirs")


def starting(path: str) -> httpx.Response:
    return httpx.Response(503) if path == "/ready" else gate_of(PLAN)


def nobody(path: str) -> httpx.Response:
    raise httpx.ConnectError("refused")


def ours(path: str) -> httpx.Response:
    return httpx.Response(200) if path == "/ready" else gate_of(PLAN)


async def polled(answers: list[Answers], limit_s: float) -> tuple[bool, int]:
    """The outcome where each poll meets the next of `answers`, and the last one from then on; polls made."""
    polls = 0

    def serve(request: httpx.Request) -> httpx.Response:
        nonlocal polls
        polls += request.url.path == "/ready"
        return answers[min(polls, len(answers)) - 1](request.url.path)

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as http:
        effect = PollReady(group="g", front="http://engine:1", plan=PLAN, limit_s=limit_s)
        return await poll_ready(EngineClient(http, effect.front), effect), polls


@pytest.mark.parametrize("before", [stranger, without_gate, another_plan, starting, nobody])
async def test_only_the_plans_own_engine_is_ready(before: Answers) -> None:
    assert await polled([before, before, ours], limit_s=5.0) == (True, 3)
    assert (await polled([before], limit_s=0.25))[0] is False
