"""The planner as a machine: from fleet, load and routes to proposals and resolved baselines. It orders nothing.

It looks at each deployment once a cycle of its policy, and at once when a fleet change is urgent, a shift was abandoned
or a plan was lost. All times are those of its inputs; reports of routers are kept by their own time, so that it does
not matter in which order independent nodes and routers are heard.
"""

from __future__ import annotations

from typing import Final

from flexpipe.events.catalog import parse
from flexpipe.events.fleet import FleetChanged
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.planning import Baseline, BaselineResolved
from flexpipe.events.route import LoadObserved
from flexpipe.events.shift import PlanRetired, ShiftAbandoned, ShiftCompleted, ShiftRolledBack
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Entry,
    Input,
    Put,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.model.deployment import Deployment, Policy
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.planning.baseline import resolve
from flexpipe.planning.books import BUCKETS, Books
from flexpipe.planning.demand import Demand, Sample, sample_of
from flexpipe.planning.layouts import Drawings
from flexpipe.planning.proposal import View, gear_in_force, is_alive
from flexpipe.planning.saying import proposal_of
from flexpipe.planning.together import look_at_all
from flexpipe.planning.wishes import (
    ORIGIN_S,
    OVERTAKEN_LIMIT_S,
    STALE_S,
    Blow,
    Cause,
    Wish,
    joined,
    ready_at_s,
)

WATCHES: Final = BUCKETS

FIRST_LOOK_S: Final = 1.0
"""From the start, or from the first route entry of a deployment, to its first look: time to hear a router or two."""

BASELINE_WAIT_S: Final = 0.25
"""From a change to resolving baselines anew: a shift writes a dozen reservations one after the other."""


class _Course(Frozen):
    """When a deployment was looked at and will be."""

    due_at_s: float
    cycle: int = 0
    looked_at_s: float = 0.0
    wish: Wish | None = None
    bereft: tuple[str, ...] = ()  # devices of the plan that it lost last
    blow: Blow | None = None


class _Snapshot(Frozen):
    entries: tuple[Entry, ...]
    courses: dict[str, _Course]
    samples: dict[str, tuple[Sample, ...]]
    writes: dict[str, str]
    fleet_at_s: float
    baselines_at_s: float | None


class Planner:
    """The only writer of `baselines`. Made empty; `Started` tells it the world."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._books = Books()
        self._courses: dict[str, _Course] = {}
        self._demand: dict[str, Demand] = {}
        self._drawings: dict[str, Drawings] = {}  # saves time, is no state
        self._writes: dict[str, str] = {}  # write id → deployment whose baseline it is
        self._fleet_at_s = 0.0
        self._baselines_at_s: float | None = None

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input."""
        match event:
            case Started():
                self._forget()
                for entry in event.entries:
                    self._books.learn(entry)
                for deployment in self._books.deployments():
                    self._courses[deployment.name] = _Course(due_at_s=now_s + FIRST_LOOK_S)
                self._baselines_at_s = now_s
            case Watched():
                self._learn(now_s, event.entry)
            case Stored():
                self._stored(now_s, event)
            case Delivered():
                at_s = now_s if event.sent_at_s is None else min(now_s, event.sent_at_s)
                self._hear(now_s, at_s, parse(event.type, event.message))
            case Woken():
                pass
            case _:
                raise BrokenInvariant(f"the planner does not know {type(event).__name__}")
        do = (*self._propose(now_s), *self._resolve(now_s))
        return Effects(do=do, wake_at_s=self._next_wake())

    # -- taking in ------------------------------------------------------------------------------

    def _learn(self, now_s: float, entry: Entry) -> None:
        before = self._books.route(entry.key) if entry.bucket == "routes" else None
        was_declared = entry.bucket == "deployments" and self._books.deployment(entry.key)
        self._books.learn(entry)
        if entry.bucket == "baselines":
            return
        if self._baselines_at_s is None:
            self._baselines_at_s = now_s + BASELINE_WAIT_S
        match entry.bucket:
            case "fleet":
                self._fleet_at_s = now_s
            case "deployments":
                self._declared(now_s, entry.key, was_new=not was_declared)
            case "routes":
                self._routed(now_s, before, self._books.route(entry.key))

    def _declared(self, now_s: float, name: str, *, was_new: bool) -> None:
        if self._books.deployment(name) is None:
            self._courses.pop(name, None)
            self._demand.pop(name, None)
            self._drawings.pop(name, None)
            return
        course = self._courses.get(name)
        if course is None or was_new:
            course = _Course(due_at_s=now_s + FIRST_LOOK_S)
        due_at_s = min(course.due_at_s, now_s + FIRST_LOOK_S)
        self._courses[name] = course.model_copy(update={"due_at_s": due_at_s})

    def _routed(self, now_s: float, before: RouteEntry | None, after: RouteEntry | None) -> None:
        if after is None:
            return
        if before is None and after.deployment in self._courses:
            course = self._courses[after.deployment]
            self._change(after.deployment, due_at_s=min(course.due_at_s, now_s + FIRST_LOOK_S))
        for routed in () if before is None else before.plans:
            # A plan that is given up retires first: one that served and is not there any more died.
            serves = routed.state in (PlanState.ACTIVE, PlanState.FROZEN)
            if serves and after.plan(routed.plan.id) is None:
                sentence = (
                    f"plan {routed.plan.id} ({routed.plan.shape}) of {after.deployment} was lost"
                )
                self._change(after.deployment, bereft=tuple(sorted(map(str, routed.plan.devices))))
                self._wish(now_s, after.deployment, "plan", sentence)

    def _hear(self, now_s: float, at_s: float, message: Message) -> None:
        if isinstance(message, LoadObserved):
            self._loaded(message, at_s)
            return
        if now_s - at_s > STALE_S:
            return
        match message:
            case FleetChanged():
                for name in sorted(self._courses):
                    self._mourn(now_s, name, message)
                    if message.urgent:
                        self._wish(
                            now_s,
                            name,
                            "fleet",
                            message.sentence,
                            fleet_revision=message.revision,
                            trace_id=message.trace_id,
                            parent_span_id=message.span_id,
                        )
            case ShiftAbandoned():
                sentence = f"shift {message.shift} was abandoned: {message.reason}"
                self._wish(now_s, message.deployment, "shift", sentence, shift=message.shift)
            case PlanRetired():
                sentence = f"{message.deployment} gave up plan {message.plan}: there is room"
                for name in sorted(self._courses):
                    if self._is_down(name):
                        self._wish(now_s, name, "room", sentence)
            case ShiftCompleted():
                self._mended(message, at_s)
            case ShiftRolledBack():
                pass  # the route entry shows the gear; its cycle goes on
            case _:
                raise BrokenInvariant(f"the planner does not hear {type(message).__name__}")

    def _loaded(self, message: LoadObserved, at_s: float) -> None:
        deployment = self._books.deployment(message.deployment)
        if deployment is None:
            return
        demand = self._demand.setdefault(message.deployment, Demand())
        demand.hear(sample_of(message, at_s), deployment.policy.long_load_window_s)

    def _mourn(self, now_s: float, name: str, message: FleetChanged) -> None:
        """Remember a change that took something from a deployment: its plan may be gone from the entry already."""
        entry, own = self._books.route(name), set(self._courses[name].bereft)
        own |= {str(ref) for each in (entry.plans if entry else ()) for ref in each.plan.devices}
        taken = {str(each.device) for each in message.changes if each.what in ("left", "closed")}
        if own & taken:
            blow = Blow(at_s=now_s, trace_id=message.trace_id, span_id=message.span_id)
            self._change(name, blow=blow, bereft=())

    def _change(self, name: str, **changes: object) -> None:
        course = self._courses.get(name)
        if course is not None:
            self._courses[name] = course.model_copy(update=changes)

    def _mended(self, message: ShiftCompleted, at_s: float) -> None:
        """A shift that began after the blow has answered it: what is proposed from now on has other reasons."""
        course = self._courses.get(message.deployment)
        if course and course.blow and at_s - message.duration_s >= course.blow.at_s:
            self._change(message.deployment, blow=None)

    def _wish(self, now_s: float, name: str, cause: Cause, sentence: str, **more: object) -> None:
        facts = {"cause": cause, "sentence": sentence, "heard_at_s": now_s, **more}
        wish = Wish.model_validate({**facts, "until_s": now_s + OVERTAKEN_LIMIT_S})
        course = self._courses.get(name)
        if course is not None:
            self._change(name, wish=joined(course.wish, wish))

    def _is_down(self, name: str) -> bool:
        """Whether a deployment should serve and nothing of it is alive."""
        entry = self._books.route(name)
        if entry is None or entry.stopped:
            return False
        fleet = self._books.fleet()
        return not any(is_alive(plan, fleet) for plan in gear_in_force(entry).plans)

    # -- proposing ------------------------------------------------------------------------------

    def _propose(self, now_s: float) -> tuple[Effect, ...]:
        due = [name for name in sorted(self._courses) if now_s >= self._due_at_s(name)]
        views = [view for name in due if (view := self._view(now_s, name)) is not None]
        do: list[Effect] = []
        drawings = {view.deployment.name: self._drawings_of(view) for view in views}
        for view, found in look_at_all(views, self._books.held(), drawings) if views else ():
            name = view.deployment.name
            course = self._courses[name]
            wish = course.wish if now_s >= self._wish_ready_at_s(name) else None
            blow = course.blow if course.blow and now_s <= course.blow.at_s + ORIGIN_S else None
            said = proposal_of(
                view, found, wish, self._books.revision, cycle=course.cycle, blow=blow
            )
            do.extend(said)
        for name in due:
            self._looked(now_s, name)
        return tuple(do)

    def _view(self, now_s: float, name: str) -> View | None:
        """What a look at a deployment rests on; None where its first start or its next is the operator's to order."""
        deployment, entry = self._books.deployment(name), self._books.route(name)
        if deployment is None or entry is None or entry.stopped:
            return None
        short, long = self._demand.get(name, Demand()).loads(now_s, deployment.policy)
        return View(
            now_s=now_s,
            deployment=deployment,
            entry=entry,
            fleet=self._books.fleet(),
            short=short,
            long=long,
        )

    def _drawings_of(self, view: View) -> Drawings:
        """What was laid before for this deployment, while it and the fleet are what they were."""
        known = self._drawings.get(view.deployment.name)
        if known is None or not known.suits(view.deployment, view.fleet):
            known = self._drawings[view.deployment.name] = Drawings(view.deployment, view.fleet)
        return known

    def _looked(self, now_s: float, name: str) -> None:
        course, deployment = self._courses[name], self._books.deployment(name)
        policy = Policy() if deployment is None else deployment.policy
        is_answered = now_s >= self._wish_ready_at_s(name)
        self._change(
            name,
            due_at_s=now_s + policy.cycle_s,
            cycle=course.cycle + 1,
            looked_at_s=now_s,
            wish=None if is_answered else course.wish,
        )

    def _due_at_s(self, name: str) -> float:
        course = self._courses[name]
        return min(course.due_at_s, self._wish_ready_at_s(name))

    def _wish_ready_at_s(self, name: str) -> float:
        course, entry = self._courses[name], self._books.route(name)
        wish = course.wish
        if wish is None:
            return float("inf")
        is_over = wish.shift is None or entry is None or entry.in_flight != wish.shift
        return ready_at_s(
            wish,
            is_known=is_over and self._books.fleet().revision >= wish.fleet_revision,
            fleet_at_s=self._fleet_at_s,
            looked_at_s=course.looked_at_s,
        )

    def _next_wake(self) -> float | None:
        times = [self._due_at_s(name) for name in sorted(self._courses)]
        if self._baselines_at_s is not None:
            times.append(self._baselines_at_s)
        return min(times, default=None)

    # -- baselines ------------------------------------------------------------------------------

    def _resolve(self, now_s: float) -> tuple[Effect, ...]:
        """Resolve every baseline anew after a change, and write what differs; one batch of writes at a time."""
        if self._writes or self._baselines_at_s is None or now_s < self._baselines_at_s:
            return ()
        self._baselines_at_s = None
        if not self._books.fleet().nodes:
            return ()  # nobody has said yet what is there
        do: list[Effect] = []
        for deployment in self._books.deployments():
            do.extend(self._resolved(now_s, deployment))
        return tuple(do)

    def _resolved(self, now_s: float, deployment: Deployment) -> tuple[Effect, ...]:
        name, books = deployment.name, self._books
        gear, reason = resolve(deployment, books.route(name), books.fleet(), books.held())
        fresh = Baseline(
            deployment=name,
            notation=deployment.baseline,
            gear=gear,
            reason=reason,
            fleet_revision=books.fleet().revision,
        )
        known = books.baseline(name)
        if fresh == known:
            return ()
        expected = books.revision("baselines", name)
        write_id = f"baseline:{name}:{expected}"
        self._writes[write_id] = name
        put = Put(
            write_id=write_id,
            bucket="baselines",
            key=name,
            value=fresh.canonical_json(),
            expected=expected,
        )
        if known is not None and known.gear == gear:
            return (put,)
        return (put, publish(BaselineResolved(baseline=fresh), expected))

    def _stored(self, now_s: float, stored: Stored) -> None:
        for entry in stored.entries:
            self._books.learn(entry)
        self._writes.pop(stored.write_id, None)
        if stored.outcome == "conflict":
            # The rest of the list was dropped: all of it is reckoned anew.
            self._writes.clear()
            self._baselines_at_s = now_s

    # -- own state ------------------------------------------------------------------------------

    def snapshot(self) -> str:
        """Everything the machine knows, as canonical JSON."""
        return _Snapshot(
            entries=self._books.entries(),
            courses={name: self._courses[name] for name in sorted(self._courses)},
            samples={name: self._demand[name].samples for name in sorted(self._demand)},
            writes=self._writes,
            fleet_at_s=self._fleet_at_s,
            baselines_at_s=self._baselines_at_s,
        ).canonical_json()

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot."""
        state = _Snapshot.model_validate_json(snapshot)
        self._forget()
        for entry in state.entries:
            self._books.learn(entry)
        self._courses = dict(state.courses)
        self._demand = {name: Demand(samples) for name, samples in state.samples.items()}
        self._writes = dict(state.writes)
        self._fleet_at_s = state.fleet_at_s
        self._baselines_at_s = state.baselines_at_s
