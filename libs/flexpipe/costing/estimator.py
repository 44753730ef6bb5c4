"""The estimator as a machine: each proposal becomes an order for the best candidate that passes the gate, or is
declined with the verdicts and prices of all.

It watches what is declared and what is in force, hears proposals and how orders end, and writes no bucket: what it
knows beyond those is remembered in a `Desk` a deployment. It never waits for an answer: an order that nobody answers
counts as gone after a while, and until then none follows it.
"""

from __future__ import annotations

from typing import Final

from flexpipe.costing import telling
from flexpipe.costing.books import Books
from flexpipe.costing.desk import Desk, Ordered, Promise, Refusal
from flexpipe.costing.guards import Asked, judge
from flexpipe.costing.pressing import Pressing, loads_to_judge_by, pressing
from flexpipe.costing.weighing import Weighed, weigh
from flexpipe.events.catalog import parse
from flexpipe.events.planning import CandidatesProposed, Declined
from flexpipe.events.shift import (
    ShiftAbandoned,
    ShiftCompleted,
    ShiftOrdered,
    ShiftRefused,
    ShiftRolledBack,
)
from flexpipe.kernel.errors import BrokenInvariant, InvalidInput
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Entry,
    Input,
    Started,
    Watched,
    Woken,
)
from flexpipe.model.deployment import Deployment

OVERTAKEN_LIMIT_S: Final = 12.0
"""How long a proposal waits for what it rests on. Watched buckets are compared in full every ten seconds."""

Ended = ShiftCompleted | ShiftRolledBack | ShiftAbandoned


class _Snapshot(Frozen):
    entries: tuple[Entry, ...]
    desks: tuple[tuple[str, Desk], ...]
    fleet_revision: int


class Estimator:
    """The gate in front of the executor. Made empty; `Started` tells it what is declared and in force."""

    def __init__(self) -> None:
        self._books = Books()
        self._desks: dict[str, Desk] = {}
        self._fleet_revision = 0  # of the newest proposal seen
        self._now_s = 0.0
        self._out: list[Effect] = []

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input. Raises InvalidInput on a message that cannot be read."""
        self._now_s = now_s
        self._out = []
        match event:
            case Started():
                self._start(event)
            case Watched():
                self._learn(event.entry)
            case Delivered():
                sent_s = now_s if event.sent_at_s is None else min(event.sent_at_s, now_s)
                self._hear(event, sent_s)
            case Woken():
                pass
            case _:
                raise BrokenInvariant(f"the estimator does not know {type(event).__name__}")
        for name in sorted(self._desks):
            self._consider(name)
        waiting = [desk.pending_until_s for desk in self._desks.values() if desk.pending]
        return Effects(do=tuple(self._out), wake_at_s=min(waiting, default=None))

    # -- taking in ------------------------------------------------------------------------------

    def _start(self, started: Started) -> None:
        """Buckets are read anew; what is remembered of deployments that are still declared stays."""
        self._books = Books()
        for entry in started.entries:
            self._books.learn(entry)
        declared = {entry.key for entry in started.entries if entry.bucket == "deployments"}
        self._desks = {name: desk for name, desk in self._desks.items() if name in declared}
        for name in sorted(declared):
            self._desks[name] = self._desk(name).with_route(self._books.route(name))

    def _learn(self, entry: Entry) -> None:
        before = self._books.route(entry.key)
        self._books.learn(entry)
        if entry.bucket == "deployments" and entry.value is None:
            self._desks.pop(entry.key, None)
        if entry.bucket == "routes":
            after = self._books.route(entry.key)
            # Of the last entry with it too: the message that says how it ended follows that.
            flying = {route.in_flight for route in (before, after) if route is not None}
            desk = self._desk(entry.key).with_route(after)
            self._desks[entry.key] = desk.seen_flying(self._now_s, flying)

    def _hear(self, event: Delivered, sent_s: float) -> None:
        message = parse(event.type, event.message)
        match message:
            case CandidatesProposed():
                self._take(message)
            case ShiftOrdered():
                desk = self._desk(message.deployment)
                self._desks[message.deployment] = desk.accepted(
                    self._now_s, message.order_id, message.shift, message.target_gear
                )
            case ShiftRefused():
                self._refused(message)
            case ShiftCompleted() | ShiftRolledBack() | ShiftAbandoned():
                self._ended(message, sent_s)
            case _:
                raise BrokenInvariant(f"the estimator does not hear {event.type}")

    def _take(self, proposal: CandidatesProposed) -> None:
        """A proposal waits for what it rests on; a newer one takes its place."""
        name = proposal.deployment
        self._fleet_revision = max(self._fleet_revision, proposal.fleet_revision)
        desk = self._desk(name)
        is_late = proposal.at_s < desk.newest_s
        older = proposal if is_late else desk.pending
        newer = desk.pending if is_late else proposal
        if older is not None:
            self._say_declined(older, "fresh", "a newer proposal came before it was considered")
        self._desks[name] = desk.model_copy(
            update={
                "newest_s": max(desk.newest_s, proposal.at_s),
                "pending": newer,
                "pending_until_s": self._now_s + OVERTAKEN_LIMIT_S,
            }
        )

    def _refused(self, refused: ShiftRefused) -> None:
        desk = self._desk(refused.deployment)
        ordered = desk.ordered
        if ordered is None or ordered.order_id != refused.order_id:
            return  # somebody else's order
        desk = self._held(desk, refused.deployment, ordered.gear, refused.reason)
        self._desks[refused.deployment] = desk.model_copy(update={"ordered": None})

    def _ended(self, ended: Ended, sent_s: float) -> None:
        """The cooldown counts from here, whoever ordered the shift and however it ended."""
        name = ended.deployment
        desk = self._desk(name)
        ordered = desk.ordered
        is_ours = ordered is not None and ordered.shift == ended.shift
        known = desk.flying is not None and desk.flying[0] == ended.shift
        if ordered is not None and ordered.shift is None and not known:
            # Memory that somebody else holds: rolled back before it was accepted, so nothing has tied it to its order.
            is_ours = True
        gear = (
            ordered.gear
            if is_ours and ordered
            else desk.flying[1]
            if known and desk.flying
            else None
        )
        if isinstance(ended, ShiftCompleted):
            desk = desk.release(ended.gear)
        elif gear is not None:
            desk = self._held(desk, name, gear, ended.reason)
        changes: dict[str, object] = {
            "ended_s": sent_s,
            "ended_shift": ended.shift,
            "over_since_s": None,  # of another gear
        }
        if is_ours and ordered is not None:
            changes["ordered"] = None
            if isinstance(ended, ShiftCompleted):
                changes["promise"] = self._promise(ordered, ended, name)
        self._desks[name] = desk.model_copy(update=changes)

    def _promise(self, ordered: Ordered, ended: ShiftCompleted, name: str) -> Promise | None:
        """Hold the time that was predicted against what it took, and keep the outlook until a window has passed."""
        self._out.extend(telling.time_measured(ordered, ended))
        deployment = self._books.deployment(name)
        if deployment is None:
            return None
        return Promise(plans=ordered.plans, due_s=self._now_s + deployment.policy.load_window_s)

    # -- deciding -------------------------------------------------------------------------------

    def _consider(self, name: str) -> None:
        desk = self._desk(name)
        proposal = desk.pending
        if proposal is None or not self._is_due(desk, proposal):
            return
        route = self._books.route(name)
        desk = desk.tidy(self._now_s, None if route is None else route.in_flight)
        deployment = self._books.deployment(name)
        if deployment is None:
            self._say_declined(proposal, "declared", f"deployment {name} is not declared")
            del self._desks[name]
            return
        desk = desk.loaded(proposal)
        desk = self._decide(desk, proposal, deployment)
        desk = self._compare(desk, proposal)
        changes: dict[str, object] = {"pending": None, "queued": proposal.load.queued}
        if proposal.load.data == "busy" and proposal.load.arrived_per_s > 0:
            changes["busy_load"] = proposal.load
        self._desks[name] = desk.model_copy(update=changes)

    def _is_due(self, desk: Desk, proposal: CandidatesProposed) -> bool:
        """Whether this machine has read what the proposal rests on, or has waited for it long enough."""
        watched = [seen for seen in proposal.seen if seen.bucket != "fleet"]
        has_read = all(self._books.revision(s.bucket, s.key) >= s.revision for s in watched)
        return has_read or self._now_s >= desk.pending_until_s

    def _decide(self, desk: Desk, proposal: CandidatesProposed, deployment: Deployment) -> Desk:
        if not proposal.candidates:
            first = proposal.rejected[0] if proposal.rejected else None
            why = "" if first is None else f": {first.what}: {first.reason}"
            reason = f"no gear but the one in force is possible{why}"
            return self._decline(desk, proposal, "candidates", reason)
        need = pressing(proposal, desk, deployment, self._now_s)
        loads = loads_to_judge_by(proposal, desk, need)
        try:
            weighed = weigh(proposal, deployment, loads)
        except InvalidInput as error:
            return self._decline(desk, proposal, "predicted", str(error))
        declined: list[Declined] = []
        for each in weighed:
            verdicts = judge(self._asked(desk, proposal, deployment, need, each))
            if all(verdict.passed for verdict in verdicts):
                return self._order(desk, proposal, need, each)
            declined.append(Declined(gear=each.candidate.gear, price=each.price, verdicts=verdicts))
        best = declined[0].verdicts[-1]
        return self._decline(desk, proposal, best.guard, best.says, tuple(declined))

    def _asked(
        self,
        desk: Desk,
        proposal: CandidatesProposed,
        deployment: Deployment,
        need: Pressing | None,
        weighed: Weighed,
    ) -> Asked:
        name = deployment.name
        return Asked(
            now_s=self._now_s,
            deployment=deployment,
            proposal=proposal,
            route=self._books.route(name),
            route_revision=self._books.revision("routes", name),
            fleet_revision=self._fleet_revision,
            desk=desk,
            pressing=need,
            load=weighed.load,
            current=weighed.current,
            candidate=weighed.candidate,
            price=weighed.price,
        )

    def _order(
        self, desk: Desk, proposal: CandidatesProposed, need: Pressing | None, best: Weighed
    ) -> Desk:
        order = telling.order(proposal, best, need, self._now_s)
        self._out.extend(telling.ordered(proposal, order, self._now_s))
        return desk.ordering(self._now_s, order.order_id, best.candidate.gear, best.price)

    def _decline(
        self,
        desk: Desk,
        proposal: CandidatesProposed,
        guard: str,
        reason: str,
        declined: tuple[Declined, ...] = (),
    ) -> Desk:
        """No order, and said, unless nothing asked for it and the same was said a moment ago."""
        refusal = Refusal(
            guard=guard,
            gear=declined[0].gear.id if declined else None,
            fleet_revision=proposal.fleet_revision,
            said_s=self._now_s,
        )
        if not proposal.urgent and desk.refusal is not None and desk.refusal.covers(refusal):
            self._out.append(telling.declined_again(proposal, guard))
            return desk
        self._say_declined(proposal, guard, reason, declined)
        return desk.model_copy(update={"refusal": refusal})

    def _say_declined(
        self,
        proposal: CandidatesProposed,
        guard: str,
        reason: str,
        declined: tuple[Declined, ...] = (),
    ) -> None:
        self._out.extend(telling.declined(proposal, guard, reason, declined, self._now_s))

    def _compare(self, desk: Desk, proposal: CandidatesProposed) -> Desk:
        """Hold what was predicted of a gear against what its clients see, a window after it came into force."""
        promise = desk.promise
        if promise is None or self._now_s < promise.due_s or proposal.load.data != "busy":
            return desk
        plans = tuple(plan.id for plan in proposal.current.gear.plans)
        if plans == promise.plans:
            self._out.extend(telling.itl_measured(proposal))
        return desk.model_copy(update={"promise": None})

    def _held(self, desk: Desk, name: str, gear: str, reason: str) -> Desk:
        deployment = self._books.deployment(name)
        if deployment is None:
            return desk
        cycle_s = deployment.policy.cycle_s
        return desk.hold(gear, reason, self._now_s, cycle_s, self._fleet_revision)

    # -- own state ------------------------------------------------------------------------------

    def _desk(self, name: str) -> Desk:
        return self._desks.get(name) or Desk()

    def snapshot(self) -> str:
        """Everything the machine knows, as canonical JSON."""
        return _Snapshot(
            entries=self._books.entries(),
            desks=tuple((name, self._desks[name]) for name in sorted(self._desks)),
            fleet_revision=self._fleet_revision,
        ).canonical_json()

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot. Raises ValueError where another version gave it."""
        kept = _Snapshot.model_validate_json(snapshot)
        self._books = Books()
        for entry in kept.entries:
            self._books.learn(entry)
        self._desks = dict(kept.desks)
        self._fleet_revision = kept.fleet_revision
