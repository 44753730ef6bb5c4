"""What makes a running shift turn back at once, whichever step it is in. Called before each judgement."""

from __future__ import annotations

from flexpipe.transitions.case import Case
from flexpipe.transitions.progress import Stage
from flexpipe.transitions.step import Undo


def peril(case: Case) -> Undo | None:
    """The first reason to undo, or None. Lost engines of new plans come through `losses`, with their log."""
    return _device_left(case) or _nothing_left(case) or _canary_failed(case) or _undeclared(case)


def _device_left(case: Case) -> Undo | None:
    fleet = case.books.fleet()
    for plan in case.new:
        for device in case.plan(plan).devices:
            if fleet.device(device) is None:
                return Undo(f"device {device} left the fleet; the new plan {plan} needs it")
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


def _undeclared(case: Case) -> Undo | None:
    needed = case.entry is None or case.progress.stage is Stage.START
    if case.deployment is None and needed:
        return Undo(f"deployment {case.name} is not declared any more")
    return None
