"""Orders to routers: which sequences go where."""

from __future__ import annotations

from flexpipe.events.route import MoveSequences
from flexpipe.transitions.case import Case


def move_commands(
    case: Case,
    *,
    plans: tuple[str, ...],
    to: tuple[str, ...],
    limit_s: float,
    finish_all: bool = False,
    forced: bool = False,
) -> tuple[MoveSequences, ...]:
    """One order to each router on the roster that has not answered this step.

    `from_plans` names all of `plans`, also lost ones; those are named in `lost_plans` as well.
    """
    return tuple(
        MoveSequences(
            router=router,
            fence=case.fence,
            from_plans=plans,
            to_plans=to,
            lost_plans=tuple(plan for plan in plans if plan in case.progress.lost),
            finish_all=finish_all,
            forced=forced,
            route_revision=case.revision,
            limit_s=limit_s,
        )
        for router in case.books.roster()
        if router not in case.progress.answers
    )


def serving(case: Case) -> tuple[str, ...]:
    """Plans of the route entry that take new requests: where sequences can go."""
    entry = case.entry
    return () if entry is None else tuple(r.plan.id for r in entry.plans if r.admit > 0)
