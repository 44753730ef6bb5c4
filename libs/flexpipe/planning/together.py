"""Looks at several deployments in one pass, so that they do not all reach for the same blocks.

Each would find the same free blocks best. Those that fall short of their demand choose first, and the others prefer
what is left; they may still say that they want the same, because only the executor gives blocks away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flexpipe.model.fleet import DeviceRef
from flexpipe.model.shift import DeviceReservations
from flexpipe.planning.layouts import Drawings
from flexpipe.planning.proposal import Look, View, look


def look_at_all(
    views: Sequence[View],
    held: Mapping[DeviceRef, DeviceReservations],
    drawings: Mapping[str, Drawings],
) -> tuple[tuple[View, Look], ...]:
    """A look for each view, in the order of their deployments' names. `drawings` by the same names."""

    def look_at(view: View, avoid: frozenset[DeviceRef]) -> Look:
        return look(view, held, avoid, drawings.get(view.deployment.name))

    looks = {view.deployment.name: look_at(view, frozenset()) for view in views}
    by_need = sorted(
        views,
        key=lambda view: (not looks[view.deployment.name].falls_short, view.deployment.name),
    )
    claimed: set[DeviceRef] = set()
    for view in by_need:
        name = view.deployment.name
        if claimed & _reached_for(looks[name]):
            looks[name] = look_at(view, frozenset(claimed))
        if looks[name].falls_short:
            claimed |= _best_of(looks[name])
    ordered = sorted(views, key=lambda view: view.deployment.name)
    return tuple((view, looks[view.deployment.name]) for view in ordered)


def _reached_for(found: Look) -> set[DeviceRef]:
    return {
        ref
        for candidate in found.candidates
        for plan in candidate.gear.plans
        if plan.id in candidate.starts
        for ref in plan.devices
    }


def _best_of(found: Look) -> set[DeviceRef]:
    best = found.model_copy(update={"candidates": found.candidates[:1]})
    return _reached_for(best)
