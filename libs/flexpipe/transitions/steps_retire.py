"""Clean-up: plans that a shift gives up drain, stop and are released. Forward only, retried until done.

The same steps serve the old plans after a commit (phases retiring, releasing) and the new ones after an undo (phase
unwinding).
"""

from __future__ import annotations

from flexpipe.events.plan import DrainPlan, StopPlan
from flexpipe.model.plan import Plan
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import Phase
from flexpipe.transitions import entries, reservations
from flexpipe.transitions.case import Case
from flexpipe.transitions.moving import move_commands, serving
from flexpipe.transitions.progress import Stage
from flexpipe.transitions.step import Again, Close, Command, Go, HandOver, Reserve, Step, Turn


class DrainStep(Step):
    """Plans finish what they have."""

    stage = Stage.DRAIN

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.without_lost(case)

    def awaited(self, case: Case) -> tuple[str, ...]:
        return case.at_fronts(draining(case))

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        return tuple(
            DrainPlan(
                node=case.front_of(plan),
                fence=case.fence,
                plan=plan,
                limit_s=case.policy.retiring_limit_s,
            )
            for plan in draining(case)
            if f"{plan}@{case.front_of(plan)}" not in case.progress.answers
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.retiring_limit_s

    def done(self, case: Case) -> bool:
        late = set(case.missing(self.awaited(case)))
        return late <= set(case.progress.stuck)

    def following(self, case: Case) -> Turn:
        if case.missing(self.awaited(case)):
            return self.expired(case)
        return Go(case.record.phase, Stage.STOP)

    def expired(self, case: Case) -> Turn:
        plan = case.missing(self.awaited(case))[0].partition("@")[0]
        limit = case.policy.retiring_limit_s
        note = f"{plan} still had requests after {limit:g} s: they are moved or ended"
        return Go(case.record.phase, Stage.FORCE if case.books.roster() else Stage.STOP, (note,))


class ForceStep(HandOver):
    """What stays is replayed elsewhere, or ends with one clear error."""

    stage = Stage.FORCE

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.without_lost(case)

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        return move_commands(
            case,
            plans=case.progress.claims,
            to=serving(case),
            limit_s=case.policy.hand_over_limit_s,
            forced=True,
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.hand_over_limit_s

    def following(self, case: Case) -> Turn:
        return Go(case.record.phase, Stage.STOP)

    def expired(self, case: Case) -> Turn:
        router = case.missing(self.awaited(case))[0]
        limit = case.policy.hand_over_limit_s
        note = f"router {router} did not clear the retiring plans within {limit:g} s; passed over"
        return Go(case.record.phase, Stage.STOP, (note,))


class StopStep(Step):
    """Engines end, and their memory is seen free. A node that is lost or left the fleet counts as stopped."""

    stage = Stage.STOP

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.without_lost(case)

    def awaited(self, case: Case) -> tuple[str, ...]:
        return tuple(
            f"{plan}@{node}"
            for plan in case.progress.claims
            for node in case.plan(plan).nodes
            if case.books.answering(node)
        )

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        return tuple(
            StopPlan(
                node=node,
                fence=case.fence,
                plan=plan,
                limit_s=case.policy.release_limit_s,
            )
            for plan in case.progress.claims
            for node in case.plan(plan).nodes
            if f"{plan}@{node}" not in case.progress.answers
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.release_limit_s

    def following(self, case: Case) -> Turn:
        phase = case.record.phase
        return Go(Phase.RELEASING if phase is Phase.RETIRING else phase, Stage.FREE)

    def expired(self, case: Case) -> Turn:
        plan, _, node = case.missing(self.awaited(case))[0].partition("@")
        limit = case.policy.release_limit_s
        return Again(f"{node} did not report {plan} gone within {limit:g} s")


class FreeStep(Step):
    """One batch gives the memory back."""

    stage = Stage.FREE

    def judge(self, case: Case) -> Turn:
        plans = claimed(case)
        changes = reservations.released(case.books, case.name, plans)
        return Reserve(changes) if changes else Go(case.record.phase, Stage.STRIKE)


class StrikeStep(Step):
    """The plans leave the route entry; only now the record can close."""

    stage = Stage.STRIKE

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.without_claims(case)

    def following(self, case: Case) -> Turn:
        return Close()


def first_retiring(case: Case, phase: Phase) -> Go:
    """Where clean-up begins: nothing to drain where nothing was ever sent there, nothing to stop where all is gone."""
    if not case.progress.claims:
        return Go(phase if phase is Phase.UNWINDING else Phase.RELEASING, Stage.STRIKE)
    if draining(case):
        return Go(phase, Stage.DRAIN)
    lost = any(plan in case.progress.lost for plan in case.progress.claims)
    exposed = phase is Phase.RETIRING or case.progress.exposed
    if lost and exposed and case.books.roster():
        return Go(phase, Stage.FORCE)
    return Go(phase, Stage.STOP)


def draining(case: Case) -> tuple[str, ...]:
    """Claimed plans that may still have requests: alive, and in the route entry."""
    entry = case.entry
    if entry is None:
        return ()
    routed = {each.plan.id for each in entry.plans}
    return tuple(plan for plan in case.alive(case.progress.claims) if plan in routed)


def claimed(case: Case) -> tuple[Plan, ...]:
    """The plans this shift still has to clean up."""
    return tuple(case.plan(plan) for plan in case.progress.claims)
