"""What the routing machine says about the past: canaries, load, closed sequences. Nobody waits for any of it.

Called by the modules that change a sequence; counts tokens once, wherever word of them comes from.
"""

from __future__ import annotations

import math
from typing import Final

from flexpipe.events.route import CanaryObserved, LoadObserved, PlanLoad, SequenceClosed
from flexpipe.kernel.machine import Measure
from flexpipe.model.route import PlanState
from flexpipe.routing.effects import CountTokens
from flexpipe.routing.inputs import Segments
from flexpipe.routing.state import (
    AT_ENGINE,
    CanaryCount,
    DeploymentState,
    PlanWindow,
    SequenceState,
    Stage,
    Turn,
)

COUNT_LIMIT_S: Final = 1.0
"""Counting asks this process only; without an answer the counts known are used."""

WINDOW_SAMPLES: Final = 512
"""Latency samples a plan and window: enough for a p99, small in a snapshot."""

CANARY_EVERY_S: Final = 0.25
"""Between two reports of one canary beyond the requests that make it pass. Errors are told of at once."""

CLOSED_PER_S: Final = 50.0
"""`SequenceClosed` messages a deployment and second: a sample under load, everything at ordinary rates."""

CLOSED_BURST: Final = 200.0
"""A hand-over of hundreds may close together and should still be seen whole."""

LEDGER_VIOLATION: Final = "ledger-violation"
"""The finish of a sequence whose ledger broke its law; always reported."""


def note_tokens(turn: Turn, sequence: SequenceState, tokens: int) -> None:
    """Take the newest count of a sequence's tokens; counts never go back."""
    fresh = tokens - sequence.tokens
    if fresh <= 0:
        return
    if sequence.plan is not None:
        window = plan_window(turn.deployment(sequence.deployment), sequence.plan)
        window.output_tokens += fresh
        if sequence.stage is Stage.STREAMING and sequence.counted_at_s > 0:
            gap_ms = (turn.now_s - sequence.counted_at_s) * 1e3 / fresh
            _sample(window.itl_ms, gap_ms)
            canary = _canary(turn.deployment(sequence.deployment), sequence.plan)
            if canary is not None:
                _sample(canary.itl_ms, gap_ms)
    sequence.tokens = tokens
    sequence.counted_at_s = turn.now_s


def note_first_token(turn: Turn, sequence: SequenceState) -> None:
    """The first token under an epoch came: the plan works, and its canary has one more request.

    A canary's TTFT counts from the dispatch: what a request waited for before is not the canary's.
    """
    deployment = turn.deployment(sequence.deployment)
    assert sequence.plan is not None
    canary = _canary(deployment, sequence.plan)
    if sequence.ttft_ms is None:
        sequence.ttft_ms = (turn.now_s - sequence.arrived_at_s) * 1e3
        _sample(plan_window(deployment, sequence.plan).ttft_ms, sequence.ttft_ms)
        if canary is not None:
            _sample(canary.ttft_ms, (turn.now_s - sequence.dispatched_at_s) * 1e3)
    if canary is not None:
        canary.requests += 1
        if canary.requests <= deployment.policy.canary_requests or _may_tell(turn, canary):
            _say_canary(turn, deployment, sequence.plan, canary)


def note_plan_error(turn: Turn, deployment: DeploymentState, plan: str, reason: str) -> None:
    """An attempt failed by the plan's fault."""
    plan_window(deployment, plan).failed += 1
    canary = _canary(deployment, plan)
    if canary is not None:
        canary.errors += 1
        canary.reason = reason
        _say_canary(turn, deployment, plan, canary)


def note_closed(turn: Turn, sequence: SequenceState, finish: str, segments: Segments) -> None:
    """A sequence left the machine."""
    deployment = turn.deployment(sequence.deployment)
    if sequence.plan is not None and finish in ("stop", "length"):
        plan_window(deployment, sequence.plan).finished += 1
        _canary_learned(turn, deployment, sequence.plan)
    labels = {"deployment": sequence.deployment, "finish": finish}
    turn.ask(Measure(name="flexpipe_router_requests_total", value=1, labels=labels))
    if not _may_report(turn, deployment) and finish != LEDGER_VIOLATION:
        return
    closed = SequenceClosed(
        router=turn.state.router,
        deployment=sequence.deployment,
        sequence=sequence.id,
        prompt_tokens=sequence.prompt_tokens,
        output_tokens=sequence.tokens,
        finish=finish,
        moves=sequence.moves,
        segments=segments,
        ttft_ms=sequence.ttft_ms,
        duration_ms=(turn.now_s - sequence.arrived_at_s) * 1e3,
    )
    turn.say(closed, sequence.id)


def pace(turn: Turn, load_every_s: float) -> None:
    """Tell the load this often from now on."""
    state = turn.state
    state.load_every_s = load_every_s
    if state.load_at_s is not None:
        state.load_at_s = min(state.load_at_s, turn.now_s + load_every_s)


def load_due(turn: Turn) -> None:
    """Start or finish a load report, whichever is due."""
    state = turn.state
    if state.load_asked_at_s is not None:
        if turn.now_s >= state.load_asked_at_s + COUNT_LIMIT_S:
            say_load(turn)
        return
    if state.load_at_s is None or turn.now_s < state.load_at_s:
        return
    streaming = tuple(
        key for key in sorted(state.sequences) if state.sequences[key].stage is Stage.STREAMING
    )
    state.load_asked_at_s = turn.now_s
    if streaming:
        turn.ask(CountTokens(sequences=streaming))
    else:
        say_load(turn)


def say_load(turn: Turn) -> None:
    """Publish the load of every deployment that has a route entry, and open the next window."""
    state = turn.state
    state.load_asked_at_s = None
    due = state.load_at_s if state.load_at_s is not None else turn.now_s
    state.load_at_s = max(due, turn.now_s - state.load_every_s) + state.load_every_s
    for name in sorted(state.deployments):
        deployment = state.deployments[name]
        if deployment.entry is None:
            continue
        for plan in sorted(deployment.canaries):
            _canary_learned(turn, deployment, plan)
        mine = state.of(name)
        waits = [sample for each in deployment.window.values() for sample in each.ttft_ms]
        parked = sum(each.stage is Stage.PARKED for each in mine)
        load = LoadObserved(
            router=state.router,
            deployment=name,
            window_s=round(turn.now_s - deployment.window_since_s, 6),
            arrived=deployment.arrived,
            queued=sum(each.stage is Stage.DISPATCHED for each in mine),
            parked=parked,
            prompt_tokens=deployment.arrived_tokens,
            ttft_p95_ms=percentile(waits, 0.95),
            plans=tuple(_plan_load(deployment, plan, mine) for plan in _plans(deployment, mine)),
        )
        turn.say(load, name, turn.now_s)
        deployment.arrived = deployment.arrived_tokens = 0
        deployment.window = {}
        deployment.window_since_s = turn.now_s


def plan_window(deployment: DeploymentState, plan: str) -> PlanWindow:
    """The present window of one plan."""
    return deployment.window.setdefault(plan, PlanWindow())


def _plans(deployment: DeploymentState, mine: tuple[SequenceState, ...]) -> tuple[str, ...]:
    routed = deployment.entry.plans if deployment.entry is not None else ()
    used = {each.plan for each in mine if each.plan is not None and each.stage in AT_ENGINE}
    return tuple(sorted({*(each.plan.id for each in routed), *deployment.window, *used}))


def _plan_load(deployment: DeploymentState, plan: str, mine: tuple[SequenceState, ...]) -> PlanLoad:
    window = deployment.window.get(plan, PlanWindow())
    return PlanLoad(
        plan=plan,
        running=sum(each.plan == plan and each.stage in AT_ENGINE for each in mine),
        finished=window.finished,
        failed=window.failed,
        output_tokens=window.output_tokens,
        ttft_p50_ms=percentile(window.ttft_ms, 0.50),
        ttft_p99_ms=percentile(window.ttft_ms, 0.99),
        itl_p50_ms=percentile(window.itl_ms, 0.50),
        itl_p99_ms=percentile(window.itl_ms, 0.99),
    )


def percentile(samples: list[float], share: float) -> float | None:
    """Nearest-rank percentile; None of nothing."""
    if not samples:
        return None
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def _sample(samples: list[float], value: float) -> None:
    if len(samples) < WINDOW_SAMPLES:
        samples.append(round(value, 3))


def _canary(deployment: DeploymentState, plan: str) -> CanaryCount | None:
    routed = deployment.entry.plan(plan) if deployment.entry is not None else None
    if routed is None or routed.state is not PlanState.CANARY:
        return None
    return deployment.canaries.setdefault(plan, CanaryCount())


def _canary_learned(turn: Turn, deployment: DeploymentState, plan: str) -> None:
    """Tell of a canary anew where more is known of its latency than was told."""
    canary = _canary(deployment, plan)
    is_news = canary is not None and len(canary.itl_ms) > canary.itl_told
    if canary is not None and is_news and _may_tell(turn, canary):
        _say_canary(turn, deployment, plan, canary)


def _may_tell(turn: Turn, canary: CanaryCount) -> bool:
    return turn.now_s >= canary.told_at_s + CANARY_EVERY_S


def _say_canary(turn: Turn, deployment: DeploymentState, plan: str, canary: CanaryCount) -> None:
    assert deployment.entry is not None
    canary.itl_told = len(canary.itl_ms)
    canary.told_at_s = turn.now_s
    observed = CanaryObserved(
        router=turn.state.router,
        deployment=deployment.name,
        plan=plan,
        shift=deployment.entry.shift,
        requests=canary.requests,
        errors=canary.errors,
        reason=canary.reason,
        ttft_p50_ms=percentile(canary.ttft_ms, 0.50),
        itl_p50_ms=percentile(canary.itl_ms, 0.50),
    )
    turn.say(observed, deployment.name, plan, observed.shift, canary.requests, canary.errors)


def _may_report(turn: Turn, deployment: DeploymentState) -> bool:
    """A token bucket: `CLOSED_PER_S` in the long run, `CLOSED_BURST` at once."""
    passed_s = max(0.0, turn.now_s - deployment.closed_at_s)
    allowance = min(CLOSED_BURST, deployment.closed_tokens + passed_s * CLOSED_PER_S)
    deployment.closed_at_s = turn.now_s
    deployment.closed_tokens = allowance - 1 if allowance >= 1 else allowance
    return allowance >= 1
