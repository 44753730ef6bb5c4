"""What becomes of an attempt that failed, and of the plan it failed on.

Called by the machine. Whom a failure counts against follows the kind: a client's mistake and a busy engine count
against nobody, a plan that cannot be reached or broke off is dead for this router until it is seen alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flexpipe.routing import admission, moving, reports
from flexpipe.routing.effects import Probe
from flexpipe.routing.inputs import AttemptFailed, FailureKind, ProbeAnswered
from flexpipe.routing.ledger import MoveCause
from flexpipe.routing.state import (
    DeploymentState,
    PlanHealth,
    SequenceState,
    Stage,
    Turn,
)

FAILURES_MAX: Final = 4
"""Engines that one request may break before it is taken to be the cause and ends."""

ERRORS_TO_DEATH: Final = 3
"""5xx answers in a row, without a token between them, before a plan counts as dead."""

PROBE_EVERY_S: Final = 0.5
"""How soon a plan that came back is used again; a probe is one small GET."""

BUSY_BACKOFF_S: Final = 0.5
"""How long a sequence keeps away from a plan whose queue was full."""

GATE_BACKOFF_S: Final = 0.25
"""How long a plan whose gate said no is left alone, unless a newer route entry says more."""

GONE_GRACE_S: Final = 0.5
"""A plan that the route entry no longer has is usually emptied by a hand-over ordered right behind the entry; without
one its sequences leave by themselves after this."""


def failed(turn: Turn, sequence: SequenceState, failure: AttemptFailed) -> None:
    """Retry, wait or end, by what failed. Before the first content the status is still open."""
    deployment = turn.deployment(sequence.deployment)
    plan = sequence.plan
    assert plan is not None
    match failure.kind:
        case FailureKind.CLIENT:
            status = failure.status or 400
            admission.refuse(turn, sequence, status, "engine_refused", failure.reason)
            return
        case FailureKind.GATE:
            _health(deployment, plan).refused_until_s = turn.now_s + GATE_BACKOFF_S
        case FailureKind.BUSY:
            sequence.shunned[plan] = turn.now_s + BUSY_BACKOFF_S
        case FailureKind.SERVER:
            _count_error(turn, deployment, plan, failure.reason)
            sequence.shunned[plan] = turn.now_s + BUSY_BACKOFF_S
            sequence.failures += 1
        case FailureKind.UNREACHABLE:
            _mark_dead(turn, deployment, plan, failure.reason)
        case FailureKind.BROKE:
            _mark_dead(turn, deployment, plan, failure.reason)
            sequence.failures += 1
    if sequence.begun and not sequence.resumable:
        why = sequence.reason or "not resumable"
        message = f"the engine failed ({failure.reason}) and this request cannot be resumed ({why})"
        admission.refuse(turn, sequence, 502, "engine_failed", message)
    elif sequence.failures >= FAILURES_MAX:
        message = f"{sequence.failures} attempts failed, the last one: {failure.reason}"
        admission.refuse(turn, sequence, 502, "engine_failed", message)
    else:
        moving.slipped_away(turn, sequence)
        if sequence.move is not None:
            sequence.move.tokens = max(sequence.move.tokens, sequence.tokens)
        admission.park(turn, sequence, MoveCause.LOST_PLAN)


def plans_left(turn: Turn, deployment: DeploymentState) -> None:
    """A route entry came into force: if it misses a plan that has sequences, these are looked after soon."""
    if deployment.gone_at_s is None and any(_orphans(turn, deployment)):
        deployment.gone_at_s = turn.now_s + GONE_GRACE_S


def orphans_due(turn: Turn, deployment: DeploymentState) -> None:
    """Take sequences off plans that the route entry does not have any more, whatever their engines still say.

    They wait for the next plan, as after a broken connection: a node that was switched off breaks none. Those of a plan
    that a hand-over is emptying are the hand-over's.
    """
    if deployment.gone_at_s is None or turn.now_s < deployment.gone_at_s:
        return
    deployment.gone_at_s = None
    hand_over = deployment.hand_over
    leaving = () if hand_over is None or hand_over.is_done else hand_over.source_plans
    for sequence in tuple(_orphans(turn, deployment)):
        if sequence.plan in leaving:
            deployment.gone_at_s = turn.now_s + GONE_GRACE_S
        elif sequence.stage is Stage.CUTTING:
            moving.let_go(turn, sequence)
        elif sequence.begun and not sequence.resumable:
            admission.give_up(turn, sequence, _lost(sequence))
        else:
            moving.slipped_away(turn, sequence)
            admission.park(turn, sequence, MoveCause.LOST_PLAN)


def began_late(turn: Turn, sequence: SequenceState) -> None:
    """Content reached the client under an attempt that was given up meanwhile: its status is not open any more."""
    sequence.begun = True
    if sequence.stage is Stage.PARKED and not sequence.resumable:
        admission.give_up(turn, sequence, _lost(sequence))


def works(turn: Turn, deployment: DeploymentState, plan: str) -> None:
    """A plan gave a token: its errors are forgotten."""
    health = deployment.health.get(plan)
    if health is not None:
        health.errors_in_a_row = 0


def probes_due(turn: Turn, deployment: DeploymentState) -> None:
    """Ask after plans that are taken for dead; forget those that the route entry no longer has."""
    entry = deployment.entry
    for plan in sorted(deployment.health):
        health = deployment.health[plan]
        routed = entry.plan(plan) if entry is not None else None
        if routed is None:
            del deployment.health[plan]
        elif health.dead_since_s is not None and turn.now_s >= health.probe_at_s:
            health.probe_at_s = turn.now_s + PROBE_EVERY_S
            turn.ask(Probe(plan=plan, front=routed.front))


def probed(turn: Turn, answer: ProbeAnswered) -> None:
    """A plan taken for dead answered, or did not."""
    for name in sorted(turn.state.deployments):
        health = turn.state.deployments[name].health.get(answer.plan)
        if health is not None and answer.alive:
            health.dead_since_s = None
            health.errors_in_a_row = 0


def forgive(deployment: DeploymentState) -> None:
    """A newer route entry: what it admits is tried again."""
    for health in deployment.health.values():
        health.dead_since_s = None
        health.refused_until_s = 0.0


def wake_at_s(turn: Turn, deployment: DeploymentState) -> list[float]:
    """When health or patience asks for another look."""
    times = [
        health.probe_at_s
        for health in deployment.health.values()
        if health.dead_since_s is not None
    ]
    if deployment.gone_at_s is not None:
        times.append(deployment.gone_at_s)
    refused = [health.refused_until_s for health in deployment.health.values()]
    limit_s = deployment.policy.park_limit_s
    for sequence in turn.places.unordered(deployment.name, Stage.PARKED):
        if sequence.waiting_since_s is not None:
            times.append(sequence.waiting_since_s + limit_s)
            times.extend(until for until in sequence.shunned.values() if until > turn.now_s)
            times.extend(until for until in refused if until > turn.now_s)
    return times


def at_engine(sequence: SequenceState, epoch: int) -> bool:
    """Whether word of this epoch still concerns the sequence."""
    return sequence.epoch == epoch and sequence.runs


def _orphans(turn: Turn, deployment: DeploymentState) -> Iterator[SequenceState]:
    entry = deployment.entry
    routed = set() if entry is None else {each.plan.id for each in entry.plans}
    for sequence in turn.state.of(deployment.name):
        if sequence.runs and sequence.plan not in routed:
            yield sequence


def _lost(sequence: SequenceState) -> str:
    return f"its plan is lost, and it cannot be resumed ({sequence.reason or 'not resumable'})"


def _health(deployment: DeploymentState, plan: str) -> PlanHealth:
    return deployment.health.setdefault(plan, PlanHealth())


def _count_error(turn: Turn, deployment: DeploymentState, plan: str, reason: str) -> None:
    health = _health(deployment, plan)
    health.errors_in_a_row += 1
    if health.errors_in_a_row >= ERRORS_TO_DEATH:
        _mark_dead(turn, deployment, plan, reason)
    else:
        reports.note_plan_error(turn, deployment, plan, reason)


def _mark_dead(turn: Turn, deployment: DeploymentState, plan: str, reason: str) -> None:
    health = _health(deployment, plan)
    if health.dead_since_s is None:
        health.dead_since_s = turn.now_s
        health.probe_at_s = turn.now_s + PROBE_EVERY_S
    reports.note_plan_error(turn, deployment, plan, reason)
