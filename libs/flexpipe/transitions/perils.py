"""What makes a running shift turn back at once, whichever step it is in. Called before each judgement."""

from __future__ import annotations

from typing import Final

from flexpipe.transitions.case import Case
from flexpipe.transitions.progress import CanaryCount, Stage
from flexpipe.transitions.step import Undo

PREDICTED_FACTOR: Final = 1.5
"""A canary passes while medians of TTFT and ITL are at most this many times what was predicted: the shift protocol's
rule for orders that carry a prediction. A first roofline is good to about half of itself."""


def peril(case: Case) -> Undo | None:
    """The first reason to undo, or None. Lost engines of new plans come through `losses`, with their log."""
    return (
        _device_left(case)
        or _device_leaves(case)
        or _nothing_left(case)
        or _canary_failed(case)
        or _canary_slow(case)
        or _undeclared(case)
    )


def _device_left(case: Case) -> Undo | None:
    fleet = case.books.fleet()
    for plan in case.new:
        for device in case.plan(plan).devices:
            if fleet.device(device) is None:
                sentence = f"device {device} left the fleet; the new plan {plan} needs it"
                return Undo(sentence, lost=(plan,))
    return None


def _device_leaves(case: Case) -> Undo | None:
    """A notice of preemption, unless nothing else serves: then what is to be taken later serves till then."""
    if not case.alive(tuple(plan.id for plan in case.source.plans)):
        return None
    for plan in case.new:
        device = case.leaving(plan)
        if device is not None:
            return Undo(f"device {device} is to be preempted; the new plan {plan} needs it")
    return None


def _nothing_left(case: Case) -> Undo | None:
    wanted = tuple(plan.id for plan in case.target.plans)
    if wanted and not case.alive(wanted):
        return Undo("every plan of the new gear was lost")
    return None


def _canary_failed(case: Case) -> Undo | None:
    for seen in case.progress.canary:
        if seen.errors > 0:
            why = f": {seen.reason}" if seen.reason else ""
            return Undo(
                f"the canary of {seen.plan} failed at {seen.router}: {seen.errors} of {seen.requests} requests"
                f" ended in an error{why}"
            )
    return None


def _canary_slow(case: Case) -> Undo | None:
    """Against the order's prediction, where there is one and enough requests were seen, and a gear to go back to."""
    outlook = case.record.order.outlook
    if outlook is None or case.endangered:
        return None
    for predicted in outlook.plans:
        counts = tuple(each for each in case.progress.canary if each.plan == predicted.plan)
        figures = (("TTFT", "ttft_p50_ms"), ("ITL", "itl_p50_ms"))
        for name, field in figures:
            fault = _too_slow(case, counts, name, field, getattr(predicted, field))
            if fault is not None:
                return Undo(f"the canary of {predicted.plan} is slow: {fault}")
    return None


def _too_slow(
    case: Case, counts: tuple[CanaryCount, ...], name: str, field: str, predicted_ms: float
) -> str | None:
    """Over several routers, the mean of their medians, weighted by their requests."""
    told = [(each.requests, getattr(each, field)) for each in counts]
    told = [(requests, ms) for requests, ms in told if ms is not None]
    requests = sum(count for count, _ in told)
    if predicted_ms <= 0 or requests < case.policy.canary_requests:
        return None
    seen_ms = sum(count * ms for count, ms in told) / requests
    limit_ms = PREDICTED_FACTOR * predicted_ms
    if seen_ms <= limit_ms:
        return None
    return (
        f"{name} p50 {seen_ms:.1f} ms over {requests} requests, predicted {predicted_ms:.1f} ms,"
        f" at most {limit_ms:.1f} ms"
    )


def _undeclared(case: Case) -> Undo | None:
    needed = case.entry is None or case.progress.stage is Stage.START
    if case.deployment is None and needed:
        return Undo(f"deployment {case.name} is not declared any more")
    return None
