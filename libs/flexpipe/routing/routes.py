"""The route entries as this router holds them: which one is in force, and what clients may name.

Called by the machine with what a watch shows and with what a gate's refusal carries. Within one shift an entry's place
is told by its states, because what a gate shows has no revision.
"""

from __future__ import annotations

from pydantic import ValidationError

from flexpipe.events.route import RouteApplied, RouterSeat
from flexpipe.kernel.frozen import canonical_json
from flexpipe.kernel.ids import derived_id
from flexpipe.kernel.machine import Entry, Measure, Put
from flexpipe.model.deployment import Deployment
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.routing import attempts
from flexpipe.routing.effects import ServedModel, ServeModels
from flexpipe.routing.picking import CANARY_FIRST_DEBT
from flexpipe.routing.state import DeploymentState, Turn


def watched(turn: Turn, entry: Entry) -> str | None:
    """Take what a bucket holds now. Gives the deployment it concerns."""
    match entry.bucket:
        case "routes":
            _route(turn, entry)
            return entry.key
        case "deployments":
            _declaration(turn, entry)
            return entry.key
        case "roster":
            if entry.key == turn.state.router and entry.value is None:
                take_seat(turn, entry.revision)
    return None


def learned(turn: Turn, text: str) -> str | None:
    """Take the entry that a gate's refusal carried, if it is newer than the one in force."""
    try:
        entry = RouteEntry.model_validate_json(text)
    except ValidationError:
        _unreadable(turn, "gate")
        return None
    deployment = turn.state.deployments.get(entry.deployment)
    if deployment is None or deployment.entry is None or _age(entry) <= _age(deployment.entry):
        return None
    deployment.learned = True
    _put_in_force(turn, deployment, entry)
    return entry.deployment


def take_seat(turn: Turn, revision: int) -> None:
    """Write this router's key in the roster, unless it is leaving."""
    state = turn.state
    if state.stopping:
        return
    state.roster_writes += 1
    seat = RouterSeat(router=state.router, url=state.url, since_s=state.since_s)
    turn.ask(
        Put(
            write_id=derived_id(state.router, state.life, "seat", state.roster_writes),
            bucket="roster",
            key=state.router,
            value=seat.canonical_json(),
            expected=revision,
        )
    )


def serve_models(turn: Turn) -> None:
    """Say which deployments there are, when that has changed."""
    state = turn.state
    models = tuple(
        model for name in sorted(state.deployments) if (model := _served(state.deployments[name]))
    )
    text = canonical_json([model.model_dump(mode="json") for model in models])
    if text != state.served:
        state.served = text
        turn.ask(ServeModels(models=models))


def _route(turn: Turn, entry: Entry) -> None:
    deployment = turn.deployment(entry.key)
    if entry.value is None:
        if entry.revision >= deployment.revision:
            deployment.revision, deployment.entry, deployment.learned = entry.revision, None, False
        return
    try:
        route = RouteEntry.model_validate_json(entry.value)
    except ValidationError:
        _unreadable(turn, "routes")  # the last one stays in force
        return
    here = deployment.entry
    newer_shift = here is None or (route.term, route.shift) > (here.term, here.shift)
    if entry.revision < deployment.revision and not newer_shift:
        return  # an old picture, read before the watch caught up
    deployment.revision = entry.revision
    if not (deployment.learned and here is not None and _age(route) < _age(here)):
        deployment.learned = False
        _put_in_force(turn, deployment, route)
    applied = RouteApplied(
        router=turn.state.router,
        deployment=entry.key,
        revision=entry.revision,
        term=route.term,
        shift=route.shift,
    )
    turn.say(applied, entry.key, entry.revision, route.term, route.shift)


def _put_in_force(turn: Turn, deployment: DeploymentState, entry: RouteEntry) -> None:
    deployment.entry = entry
    attempts.forgive(deployment)
    attempts.plans_left(turn, deployment)
    plans = tuple(routed.plan.id for routed in entry.plans)
    canaries = tuple(routed.plan.id for routed in entry.in_state(PlanState.CANARY))
    deployment.picks.forget(plans)
    if any(plan not in deployment.canaries for plan in canaries):
        deployment.picks.canary_debt = CANARY_FIRST_DEBT
    kept = {plan: count for plan, count in deployment.canaries.items() if plan in canaries}
    deployment.canaries = kept


def _age(entry: RouteEntry) -> tuple[int, int, int]:
    """Where an entry stands: by term, shift, and how far that shift had come."""
    states = {routed.state for routed in entry.plans}
    if entry.in_flight is None:
        progress = 3  # committed, undone, or never begun
    elif PlanState.FROZEN in states:
        progress = 2
    elif PlanState.CANARY in states:
        progress = 1
    else:
        progress = 0
    return (entry.term, entry.shift, progress)


def _declaration(turn: Turn, entry: Entry) -> None:
    deployment = turn.deployment(entry.key)
    if entry.value is None:
        deployment.declared = None
        return
    try:
        deployment.declared = Deployment.model_validate_json(entry.value)
    except ValidationError:
        _unreadable(turn, "deployments")


def _served(deployment: DeploymentState) -> ServedModel | None:
    entry, declared = deployment.entry, deployment.declared
    if entry is None and declared is None:
        return None
    model = entry.model if entry is not None else declared.model  # type: ignore[union-attr]
    limits = [model.facts.context_tokens] if model.facts is not None else []
    if declared is not None:
        limits.append(declared.engine.max_total_tokens)
    admitting = entry is not None and any(
        routed.admit > 0 and routed.state in (PlanState.CANARY, PlanState.ACTIVE)
        for routed in entry.plans
    )
    return ServedModel(
        deployment=deployment.name,
        model=model,
        serves=admitting,
        context_tokens=min(limits) if limits else None,
    )


def _unreadable(turn: Turn, source: str) -> None:
    labels = {"source": source}
    turn.ask(Measure(name="flexpipe_router_unreadable_entries_total", value=1, labels=labels))
