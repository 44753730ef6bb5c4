"""Who goes where, and who waits: arrival, parking, dispatch, refusal.

Called by the machine and by `moving` and `attempts`. The only place that asks for `Dispatch`, so a plan that the route
entry does not admit gets nothing.
"""

from __future__ import annotations

from typing import Final

from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.model.route import PlanState, RoutedPlan
from flexpipe.routing import picking
from flexpipe.routing.effects import Dispatch, EndWithError, Refuse
from flexpipe.routing.inputs import RequestArrived
from flexpipe.routing.ledger import MoveCause
from flexpipe.routing.state import DeploymentState, SequenceState, Stage, Turn

RETRY_AFTER_S: Final = 5
"""What a refused client is told to wait: about one quick shift."""

RETRY_AFTER_STOP_S: Final = 60
"""A deployment stopped by hand comes back by hand."""


def arrive(turn: Turn, request: RequestArrived) -> None:
    """Take a request in: it is dispatched, parked or refused by `settle`."""
    state = turn.state
    if request.sequence in state.sequences:
        raise BrokenInvariant(f"sequence {request.sequence} arrived twice")
    deployment = state.deployments.get(request.deployment)
    if deployment is None or (deployment.entry is None and deployment.declared is None):
        # Nothing is kept of it: names come from clients, and there is no end of them.
        message = f"model: {request.deployment!r} is not served here"
        turn.ask(
            Refuse(sequence=request.sequence, status=404, code="model_not_found", message=message)
        )
        return
    state.arrivals += 1
    sequence = SequenceState(
        id=request.sequence,
        deployment=request.deployment,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        resumable=request.resumable,
        reason=request.reason,
        priority=request.priority,
        order=state.arrivals,
        arrived_at_s=turn.now_s,
        waiting_since_s=turn.now_s,
    )
    deployment.arrived += 1
    deployment.arrived_tokens += request.prompt_tokens
    turn.add(sequence)
    if state.stopping:
        _refuse(
            turn,
            sequence,
            503,
            "shutting_down",
            "this router is stopping",
            retry_after_s=RETRY_AFTER_S,
        )
    elif deployment.entry is None:
        message = f"deployment {deployment.name} is declared but was not started yet"
        _refuse(turn, sequence, 503, "not_started", message, retry_after_s=RETRY_AFTER_S)
    elif deployment.entry.stopped:
        message = f"deployment {deployment.name} is stopped"
        _refuse(
            turn, sequence, 503, "deployment_stopped", message, retry_after_s=RETRY_AFTER_STOP_S
        )
    else:
        drain(turn, deployment)
        _bound_parking(turn, deployment, sequence)


def drain(turn: Turn, deployment: DeploymentState) -> None:
    """Dispatch whoever waits and can go: moved ones first, then by priority, then by arrival."""
    waiting = list(turn.places.of(deployment.name, Stage.PARKED))
    if not waiting or not any_admits(turn, deployment):
        return
    waiting.sort(key=lambda each: (each.move is None, -each.priority, each.order))
    for sequence in waiting:
        plan = _pick(turn, deployment, sequence)
        if plan is not None:
            _dispatch(turn, deployment, sequence, plan)


def park(turn: Turn, sequence: SequenceState, cause: MoveCause) -> None:
    """Take a sequence off its plan; it waits for the next one."""
    if sequence.waiting_since_s is None:
        sequence.waiting_since_s = turn.now_s
    turn.place(sequence, Stage.PARKED)
    sequence.cut_at_s = None
    sequence.cause = cause


def expire(turn: Turn, deployment: DeploymentState) -> None:
    """Send away whoever has waited for the park limit."""
    limit_s = deployment.policy.park_limit_s
    stopped = deployment.entry is not None and deployment.entry.stopped
    for sequence in turn.places.of(deployment.name, Stage.PARKED):
        since_s = sequence.waiting_since_s
        if since_s is None:
            continue
        if stopped:
            give_up(turn, sequence, f"deployment {deployment.name} is stopped")
        elif turn.now_s >= since_s + limit_s:
            reason = f"no plan of {deployment.name} took this request within {limit_s:g} s"
            give_up(turn, sequence, reason)


def give_up(turn: Turn, sequence: SequenceState, reason: str) -> None:
    """End a sequence that cannot go on: a status while that is open, else one clear error."""
    if sequence.begun:
        turn.place(sequence, Stage.ENDING)
        turn.ask(EndWithError(sequence=sequence.id, message=reason))
    else:
        _refuse(turn, sequence, 503, "overloaded", reason, retry_after_s=RETRY_AFTER_S)


def refuse(turn: Turn, sequence: SequenceState, status: int, code: str, message: str) -> None:
    """End a sequence with an HTTP status, where that is still open, or with one clear error."""
    if sequence.begun:
        turn.place(sequence, Stage.ENDING)
        turn.ask(EndWithError(sequence=sequence.id, message=message))
    else:
        _refuse(turn, sequence, status, code, message, retry_after_s=None)


def admits(deployment: DeploymentState, routed: RoutedPlan, now_s: float) -> bool:
    """Whether new work may go to a plan: the route entry says so and this router can reach it."""
    if routed.state not in (PlanState.CANARY, PlanState.ACTIVE) or routed.admit <= 0:
        return False
    health = deployment.health.get(routed.plan.id)
    return health is None or (health.dead_since_s is None and health.refused_until_s <= now_s)


def any_admits(turn: Turn, deployment: DeploymentState) -> bool:
    """Whether any plan would take work now."""
    plans = deployment.entry.plans if deployment.entry is not None else ()
    return any(admits(deployment, routed, turn.now_s) for routed in plans)


def _pick(turn: Turn, deployment: DeploymentState, sequence: SequenceState) -> RoutedPlan | None:
    entry = deployment.entry
    if entry is None:
        return None
    admitting = [
        routed
        for routed in entry.plans
        if admits(deployment, routed, turn.now_s)
        and sequence.shunned.get(routed.plan.id, 0.0) <= turn.now_s
    ]
    if not admitting:
        return None
    # Once old plans are frozen, new and kept ones take all by the gear's weights: nobody is a canary any more.
    switching = bool(entry.in_state(PlanState.FROZEN))
    candidates = tuple(
        picking.Candidate(
            plan=routed.plan.id,
            share=routed.admit,
            running=turn.places.running(routed.plan.id),
            canary=routed.state is PlanState.CANARY and not switching,
        )
        for routed in sorted(admitting, key=lambda routed: routed.plan.id)
    )
    if sequence.epoch == 0:
        chosen = picking.pick_new(candidates, sequence.priority, deployment.picks)
    else:
        chosen = picking.pick_moved(candidates, deployment.picks)
    return None if chosen is None else entry.plan(chosen)


def _dispatch(
    turn: Turn, deployment: DeploymentState, sequence: SequenceState, routed: RoutedPlan
) -> None:
    entry = deployment.entry
    assert entry is not None
    if sequence.epoch > 0 and sequence.tokens > 0 and not sequence.cause.forced:
        sequence.moves += 1
    sequence.epoch += 1
    sequence.dispatched_at_s = turn.now_s
    turn.place(sequence, Stage.DISPATCHED, routed.plan.id)
    turn.ask(
        Dispatch(
            sequence=sequence.id,
            plan=routed.plan.id,
            front=routed.front,
            epoch=sequence.epoch,
            fence=f"{entry.term}.{entry.shift}.0",
            cause=sequence.cause,
            moves_limit=deployment.policy.moves_limit,
        )
    )


def _bound_parking(turn: Turn, deployment: DeploymentState, sequence: SequenceState) -> None:
    """A new request that finds no plan and no slot is refused; one that was moved never is."""
    if sequence.stage is not Stage.PARKED:
        return
    slots = deployment.policy.park_slots
    waiting = turn.places.unordered(deployment.name, Stage.PARKED)
    parked = sum(each.epoch == 0 for each in waiting)
    if parked > slots:
        message = f"{deployment.name} has no plan that takes requests now, and {slots} wait already"
        _refuse(turn, sequence, 503, "overloaded", message, retry_after_s=RETRY_AFTER_S)


def _refuse(
    turn: Turn,
    sequence: SequenceState,
    status: int,
    code: str,
    message: str,
    *,
    retry_after_s: int | None,
) -> None:
    turn.place(sequence, Stage.ENDING)
    turn.ask(
        Refuse(
            sequence=sequence.id,
            status=status,
            code=code,
            message=message,
            retry_after_s=retry_after_s,
        )
    )
