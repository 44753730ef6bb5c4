"""Every fact of the event log as one sentence for people. Pure. Called by `flexpipe events`, `watch` and the commands
that follow a shift.

A message without a sentence here is shown by its fields; a test holds that the log has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from flexpipe.events import fleet, hatch, plan, planning, route, shift
from flexpipe.events.message import Message
from flexpipe.model.outlook import Load
from flexpipe.model.sequence import MovedSequence

FIELD_CHARS = 60
"""Of one field in the form without a sentence: a line stays a line."""


def sentence_of(message: Message) -> str:
    """One line."""
    said = _sentence(message)
    return " ".join((fields_of(message) if said is None else said).split())


def fields_of(message: Message) -> str:
    """Field by field, for messages that have no sentence."""
    values = message.model_dump(mode="json").items()
    return " ".join(f"{name}={_brief(value)}" for name, value in values)


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= FIELD_CHARS else text[: FIELD_CHARS - 1] + "…"


def _sentence(message: Message) -> str | None:
    match message:
        case fleet.FleetChanged():
            return f"fleet revision {message.revision}: {message.sentence}{_seen(message)}"
        case shift.ShiftEvent() | shift.ShiftRefused():
            return _of_shift(message)
        case planning.CandidatesProposed():
            return _proposed(message)
        case planning.BaselineResolved():
            return _baseline(message.baseline)
        case planning.ShiftDeclined():
            return f"{message.deployment}: no shift ({message.guard}): {message.reason}"
        case hatch.DeploymentPinned():
            return f"{message.deployment} is pinned by {message.by}: {message.reason}"
        case hatch.DeploymentUnpinned():
            return f"{message.deployment} is unpinned by {message.by}: automation is on again"
        case hatch.UrgentAnswered():
            return f"{message.deployment}: {message.verb} {message.outcome}: {message.says}"
        case plan.PlanReport():
            return _of_plan(message)
        case plan.CommandSuperseded():
            return (
                f"{message.target} refused {message.command} under {message.fence}: "
                f"it has accepted {message.highest}"
            )
        case route.RouteApplied() | route.CanaryObserved() | route.BatchHandedOver():
            return _of_router(message)
        case _:
            return None


def _seen(changed: fleet.FleetChanged) -> str:
    late_s = changed.at_s - changed.seen_s
    return f" (noticed after {late_s:.2f} s)" if changed.urgent and late_s > 0 else ""


def _of_shift(message: shift.ShiftEvent | shift.ShiftRefused) -> str | None:
    if isinstance(message, shift.ShiftRefused):
        return f"{message.deployment}: an order was refused: {message.reason}"
    name = f"{message.deployment} shift {message.shift}"
    match message:
        case shift.ShiftOrdered():
            return f"{name} ordered: {message.trigger}"
        case shift.ShiftPhaseChanged():
            return f"{name}: {message.phase}"
        case shift.ShiftCompleted():
            return (
                f"{name} completed after {message.duration_s:.1f} s ({message.start_class})"
                f"{_moved(message.moved)}"
            )
        case shift.ShiftRolledBack():
            return f"{name} rolled back after {message.duration_s:.1f} s: {message.reason}"
        case shift.ShiftAbandoned():
            return f"{name} abandoned after {message.duration_s:.1f} s: {message.reason}"
        case shift.PlanRetired():
            return f"{name}: plan {message.plan} is gone and its memory free"
        case _:
            return None


def _moved(moved: Sequence[MovedSequence]) -> str:
    pauses = [each.pause_ms for each in moved if each.pause_ms is not None]
    longest = f", longest pause {max(pauses):.0f} ms" if pauses else ""
    return f"; {len(moved)} sequences in flight{longest}" if moved else ""


def _proposed(message: planning.CandidatesProposed) -> str:
    best = f", best {message.candidates[0].gear.label}" if message.candidates else ""
    count = len(message.candidates)
    return (
        f"{message.deployment}: {count} candidate{'' if count == 1 else 's'} on fleet revision "
        f"{message.fleet_revision}{best}, beside {message.current.gear.label} in force; "
        f"{message.trigger}"
    )


def load_text(load: Load) -> str:
    """A load in words; no data and no traffic are different things."""
    match load.data:
        case "no-data":
            return f"no data: no router was heard for {load.window_s:g} s"
        case "idle":
            return f"no traffic over {load.window_s:g} s"
        case "busy":
            return (
                f"{load.arrived_per_s:.3g} requests/s over {load.window_s:g} s "
                f"({load.prompt_tokens:.0f} + {load.output_tokens:.0f} tokens)"
            )


def _baseline(baseline: planning.Baseline) -> str:
    on = f"on fleet revision {baseline.fleet_revision}"
    if baseline.gear is None:
        return (
            f"{baseline.deployment}: baseline {baseline.notation} FITS NOWHERE {on}: "
            f"{baseline.reason or 'no reason given'}"
        )
    return f"{baseline.deployment}: baseline {baseline.notation} fits {on}"


def _of_plan(message: plan.PlanReport) -> str | None:
    what = f"{message.fence.deployment} {message.plan} on {message.node}"
    match message:
        case plan.EngineReady():
            took_s = message.ready_s - message.start_s
            return f"{what}: engine ready after {took_s:.1f} s ({message.start_class})"
        case plan.EngineFailed():
            return f"{what}: engine did not start: {message.reason}"
        case plan.EngineLost():
            return f"{what}: engine lost: {message.reason}"
        case plan.PlanGated():
            return f"{what}: gate {'open' if message.admitting else 'closed'}"
        case plan.PlanWarmed():
            why = f": {message.reason}" if message.reason else ""
            return f"{what}: {message.requests} warm prompts, {message.errors} errors{why}"
        case plan.PlanDrained():
            return f"{what}: no request left"
        case plan.PlanStopped():
            return f"{what}: stopped, memory free on {_listed(message.released)}"
        case plan.PlanStuck():
            return f"{what}: {message.what} did not succeed: {message.reason}"
        case _:
            return None


def _listed(refs: Sequence[object]) -> str:
    return ", ".join(map(str, refs)) or "no device"


def _of_router(
    message: route.RouteApplied | route.CanaryObserved | route.BatchHandedOver,
) -> str:
    name = f"{message.deployment} at {message.router}"
    match message:
        case route.RouteApplied():
            return f"{name}: acts on route revision {message.revision}"
        case route.CanaryObserved():
            why = f": {message.reason}" if message.reason else ""
            return f"{name}: canary {message.plan}: {message.requests} requests, {message.errors} errors{why}"
        case route.BatchHandedOver():
            return (
                f"{name}: {len(message.moved)} sequences handed over, {message.remaining} to come, "
                f"{message.staying} stay"
            )
