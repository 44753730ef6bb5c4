"""The way back: old plans admit again, what moved returns, and the new plans are cleaned up."""

from __future__ import annotations

from flexpipe.events.plan import GatePlan
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import Outcome, Phase
from flexpipe.transitions import entries
from flexpipe.transitions.case import Case
from flexpipe.transitions.moving import move_commands
from flexpipe.transitions.progress import Stage
from flexpipe.transitions.step import Again, Command, Go, HandOver, Step, Turn
from flexpipe.transitions.steps_forward import RETRIES
from flexpipe.transitions.steps_retire import first_retiring


class ReopenStep(Step):
    """Gates of old plans open again before anybody is sent there."""

    stage = Stage.REOPEN

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.holding(case)

    def awaited(self, case: Case) -> tuple[str, ...]:
        return case.at_fronts(case.alive(case.old))

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        return tuple(
            GatePlan(node=case.front_of(plan), fence=case.fence, plan=plan, admitting=True)
            for plan in case.alive(case.old)
            if f"{plan}@{case.front_of(plan)}" not in case.progress.answers
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.freeze_ack_limit_s

    def following(self, case: Case) -> Turn:
        return Go(Phase.UNDOING, Stage.RESTORE)

    def expired(self, case: Case) -> Turn:
        plan, _, node = case.missing(self.awaited(case))[0].partition("@")
        limit = case.policy.freeze_ack_limit_s
        late = f"{node} did not open the gate of {plan} again within {limit:g} s"
        if case.progress.tries < RETRIES:
            return Again(late)
        return Go(Phase.UNDOING, Stage.RESTORE, (f"{late}; passed over",))


class RestoreStep(Step):
    """One compare-and-set puts the old gear in force again, as far as it lives."""

    stage = Stage.RESTORE

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.restored(case)

    def following(self, case: Case) -> Turn:
        if case.progress.exposed and case.books.roster():
            return Go(Phase.UNDOING, Stage.RETURN)
        return unwinding(case)


class ReturnStep(HandOver):
    """Sequences that moved come back; with nowhere to come back to they finish where they are."""

    stage = Stage.RETURN

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.restored(case)

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        home = case.alive(tuple(plan.id for plan in case.source.plans))
        return move_commands(
            case,
            plans=(*case.new, *case.lost_source),
            to=home,
            limit_s=case.policy.hand_over_limit_s,
            finish_all=not home,
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.hand_over_limit_s

    def following(self, case: Case) -> Turn:
        return unwinding(case)

    def expired(self, case: Case) -> Turn:
        router = case.missing(self.awaited(case))[0]
        limit = case.policy.hand_over_limit_s
        late = f"router {router} did not take its sequences back within {limit:g} s"
        return (
            Again(late)
            if case.progress.tries < RETRIES
            else unwinding(case, f"{late}; passed over")
        )


def unwinding(case: Case, *notes: str) -> Go:
    """The undo is in force: decide the outcome and clean up."""
    gave_up = case.record.forward_only or bool(case.lost_source)
    turn = first_retiring(case, Phase.UNWINDING)
    return Go(
        turn.phase,
        turn.stage,
        notes=notes,
        outcome=Outcome.ABANDONED if gave_up else Outcome.ROLLED_BACK,
    )
