"""The steps of a smooth shift up to the point of no return: reserve, prepare, canary, freeze, hand over, commit."""

from __future__ import annotations

from typing import Final

from flexpipe.events.plan import GatePlan, StartPlan, WarmPlan
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import Outcome, Phase
from flexpipe.transitions import entries, reservations
from flexpipe.transitions.case import Case
from flexpipe.transitions.moving import move_commands
from flexpipe.transitions.progress import Stage
from flexpipe.transitions.step import Again, Close, Command, Go, HandOver, Reserve, Step, Turn, Undo
from flexpipe.transitions.steps_retire import first_retiring

RETRIES: Final = 2
"""Of a step whose answers are late. Three tries of a few seconds outlast a lost message and a leader change."""
PROMPTS_AT_ONCE: Final = 100
"""Synthetic prompts that one WarmPlan may ask for."""


class ReserveStep(Step):
    """One batch over all devices is the acceptance of the order."""

    stage = Stage.RESERVE

    def judge(self, case: Case) -> Turn:
        changes = reservations.wanted(case)
        if not changes:
            return after_reserving(case)
        fault = reservations.obstacle(case)
        if fault is not None and any(seat.thawed for seat in case.seats):
            return Undo(
                fault
            )  # the claim on a retiring plan came to this shift: it must clean it up
        if fault is not None:
            return Close(reason=fault)
        return Reserve(changes)


class StartStep(Step):
    """Engines of the new plans start as shadows: all ranks or none."""

    stage = Stage.START

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.holding(case)

    def awaited(self, case: Case) -> tuple[str, ...]:
        return case.at_nodes(tuple(seat.plan for seat in case.seats if not seat.thawed))

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        declared = case.deployment
        if declared is None:
            return ()
        return tuple(
            StartPlan(
                node=node,
                fence=case.fence,
                plan=case.plan(seat.plan),
                model=declared.model,
                engine=declared.engine,
                front_port=seat.front_port,
                rendezvous=seat.rendezvous,
                limit_s=case.policy.engine_start_limit_s,
            )
            for seat in case.seats
            if not seat.thawed
            for node in case.plan(seat.plan).nodes
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.engine_start_limit_s

    def following(self, case: Case) -> Turn:
        return Go(Phase.PREPARING, Stage.OPEN)

    def expired(self, case: Case) -> Turn:
        plan, _, node = case.missing(self.awaited(case))[0].partition("@")
        limit = case.policy.engine_start_limit_s
        return Undo(f"engine of {plan} on {node} did not become ready within {limit:g} s")


class OpenStep(Step):
    """Their gates open: from now on the route entry alone decides who is sent there."""

    stage = Stage.OPEN

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.holding(case)

    def awaited(self, case: Case) -> tuple[str, ...]:
        return case.at_fronts(case.new)

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        return tuple(
            GatePlan(node=case.front_of(plan), fence=case.fence, plan=plan, admitting=True)
            for plan in case.new
            if f"{plan}@{case.front_of(plan)}" not in case.progress.answers
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.freeze_ack_limit_s

    def following(self, case: Case) -> Turn:
        return after_preparing(case)

    def expired(self, case: Case) -> Turn:
        late = _late(case, self.awaited(case), "open the gate", case.policy.freeze_ack_limit_s)
        return Again(late) if case.progress.tries < RETRIES else Undo(late)


class ObserveStep(Step):
    """New plans take a small share of new requests."""

    stage = Stage.OBSERVE

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.canary(case)

    def limit_s(self, case: Case) -> float:
        return min(case.policy.canary_synthetic_after_s, case.policy.canary_limit_s)

    def done(self, case: Case) -> bool:
        return case.endangered or not _short_of_requests(case)

    def following(self, case: Case) -> Turn:
        return Go(Phase.FREEZING, Stage.FREEZE)

    def expired(self, case: Case) -> Turn:
        if case.policy.canary_synthetic_after_s >= case.policy.canary_limit_s:
            return self.following(case)
        return Go(Phase.CANARY, Stage.FILL)


class FillStep(Step):
    """Synthetic prompts fill up where requests are short, or where nothing serves yet."""

    stage = Stage.FILL

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.canary(case) if case.progress.exposed else entries.holding(case)

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        return tuple(
            WarmPlan(
                node=case.front_of(plan),
                fence=case.fence,
                plan=plan,
                requests=min(PROMPTS_AT_ONCE, short),
                # The canary passes at its own limit; prompts that are merely slow must not fail it just before.
                limit_s=case.policy.canary_limit_s + case.policy.canary_synthetic_after_s,
            )
            for plan, short in _short_of_requests(case)
        )

    def limit_s(self, case: Case) -> float:
        spent = case.policy.canary_synthetic_after_s if case.progress.exposed else 0.0
        return max(case.policy.canary_limit_s - spent, 0.0)

    def done(self, case: Case) -> bool:
        if case.endangered:
            return True  # what is losing its old gear cannot wait for prompts
        warmed = dict(case.progress.warmed)
        return all(warmed.get(plan, 0) >= PROMPTS_AT_ONCE for plan, _ in _short_of_requests(case))

    def following(self, case: Case) -> Turn:
        return Go(Phase.FREEZING, Stage.FREEZE)


class FreezeStep(Step):
    """Old plans take nothing more, and everybody who could send them something says so."""

    stage = Stage.FREEZE

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.frozen(case)

    def awaited(self, case: Case) -> tuple[str, ...]:
        return case.at_fronts(case.alive(case.old))

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        return tuple(
            GatePlan(
                node=case.front_of(plan),
                fence=case.fence,
                plan=plan,
                admitting=False,
                route_entry=entry_text,
            )
            for plan in case.alive(case.old)
            if f"{plan}@{case.front_of(plan)}" not in case.progress.answers
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.freeze_ack_limit_s

    def done(self, case: Case) -> bool:
        if not case.books.roster() and case.old:
            return False  # somebody may be about to register with an older entry in hand
        return super().done(case) and not self._silent_routers(case)

    def following(self, case: Case) -> Turn:
        return after_freezing(case)

    def expired(self, case: Case) -> Turn:
        limit = case.policy.freeze_ack_limit_s
        silent = self._silent_routers(case)
        if case.missing(self.awaited(case)):
            late = _late(case, self.awaited(case), "close the gate", limit)
        elif silent:
            late = f"router {silent[0]} did not apply the freeze within {limit:g} s"
        else:
            late = f"no router was on the roster within {limit:g} s to apply the freeze"
        if case.progress.tries < RETRIES:
            return Again(late)
        if case.forward_only or not case.old:
            passed = f"{late}; passed over"
            turn = after_freezing(case)
            return Go(turn.phase, turn.stage, notes=(passed,))
        return Undo(f"{late}, {RETRIES + 1} times")

    def _silent_routers(self, case: Case) -> tuple[str, ...]:
        wanted = case.progress.freeze_revision
        return tuple(
            router for router in case.books.roster() if case.applied.get(router, 0) < max(wanted, 1)
        )


class MoveStep(HandOver):
    """Routers hand over the sequences of old plans."""

    stage = Stage.MOVE

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.frozen(case)

    def commands(self, case: Case, entry_text: str | None) -> tuple[Command, ...]:
        return move_commands(
            case,
            plans=case.old,
            to=case.alive(tuple(plan.id for plan in case.target.plans)),
            limit_s=case.policy.hand_over_limit_s,
            finish_all=not case.target.shares,
        )

    def limit_s(self, case: Case) -> float:
        return case.policy.hand_over_limit_s

    def following(self, case: Case) -> Turn:
        return Go(Phase.COMMITTING, Stage.COMMIT)

    def expired(self, case: Case) -> Turn:
        router = case.missing(self.awaited(case))[0]
        limit = case.policy.hand_over_limit_s
        late = f"router {router} did not finish the hand-over within {limit:g} s"
        if case.progress.tries < RETRIES:
            return Again(late)
        if case.forward_only:
            return Go(Phase.COMMITTING, Stage.COMMIT, notes=(f"{late}; passed over",))
        return Undo(f"{late}, {RETRIES + 1} times")


class CommitStep(Step):
    """One compare-and-set puts the new gear in force. The point of no return."""

    stage = Stage.COMMIT

    def entry(self, case: Case) -> RouteEntry | None:
        return entries.committed(case)

    def following(self, case: Case) -> Turn:
        turn = first_retiring(case, Phase.RETIRING)
        serving = case.alive(tuple(plan.id for plan in case.target.plans))
        wanted = bool(case.target.shares) or case.progress.imposed
        gave_up = wanted and bool(case.lost_source) and not serving
        return Go(
            turn.phase,
            turn.stage,
            outcome=Outcome.ABANDONED if gave_up else Outcome.COMPLETED,
            reason=case.record.reason or ("no plan is left that serves" if gave_up else None),
        )


def after_reserving(case: Case) -> Go:
    """The order is accepted: start what is new, or switch at once where nothing is."""
    if any(not seat.thawed for seat in case.seats):
        return Go(Phase.PREPARING, Stage.START)
    if case.seats:
        return Go(Phase.PREPARING, Stage.OPEN)
    return Go(Phase.FREEZING, Stage.FREEZE)


def after_preparing(case: Case) -> Go:
    """A canary where something else serves beside it; synthetic prompts alone where nothing does, or by the hatch."""
    if case.endangered:
        note = "canary skipped: the old gear is losing its devices or engines"
        return Go(Phase.FREEZING, Stage.FREEZE, notes=(note,))
    if case.progress.forced or not case.source.shares:
        return Go(Phase.CANARY, Stage.FILL)
    return Go(Phase.CANARY, Stage.OBSERVE)


def after_freezing(case: Case) -> Go:
    """Hand over where there is somebody to hand over and something to hand over."""
    if case.old and case.books.roster():
        return Go(Phase.HANDING_OVER, Stage.MOVE)
    return Go(Phase.COMMITTING, Stage.COMMIT)


def _short_of_requests(case: Case) -> tuple[tuple[str, int], ...]:
    """New plans with fewer requests than the canary wants, and how many are missing."""
    seen = dict(case.progress.warmed)
    for count in case.progress.canary:
        seen[count.plan] = seen.get(count.plan, 0) + count.requests
    short = ((plan, case.policy.canary_requests - seen.get(plan, 0)) for plan in case.new)
    return tuple((plan, missing) for plan, missing in short if missing > 0)


def _late(case: Case, awaited: tuple[str, ...], what: str, limit_s: float) -> str:
    plan, _, node = case.missing(awaited)[0].partition("@")
    return f"{node} did not {what} of {plan} within {limit_s:g} s"
