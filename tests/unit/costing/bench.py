"""The estimator alone, with a clock of its own and a planner and executor of paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, TypeVar

from flexpipe.costing import Estimator
from flexpipe.events.catalog import parse
from flexpipe.events.message import Message
from flexpipe.events.planning import CandidatesProposed, ShiftDeclined
from flexpipe.events.shift import OrderShift, Seen
from flexpipe.kernel.frozen import canonical_json
from flexpipe.kernel.ids import span_id, trace_id
from flexpipe.kernel.machine import (
    Delivered,
    Effects,
    Entry,
    Input,
    Measure,
    Publish,
    Span,
    Started,
    Watched,
    Woken,
)
from flexpipe.model.deployment import Deployment
from flexpipe.model.fence import Fence
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import Candidate, Load
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState, RoutedPlan, RouteEntry
from flexpipe.model.shift import StartClass
from flexpipe.performance.outlook import balanced_gear, gear_outlook
from simulation.looping import CHAT, a_load, a_plan_on

M = TypeVar("M", bound=Message)

EPOCH_S = 1_700_000_000.0
ONE, TWO, THREE, WIDE = (
    a_plan_on("b1/g0"),
    a_plan_on("b1/g1"),
    a_plan_on("b3/g0"),
    a_plan_on("b2/g0", "b2/g1"),
)
"""Plans of the 7B: an A100 each holds the SLO up to nine requests a second, the wide one somewhat more than twice."""
CARRIED, OVER = 5.0, 14.0
"""Requests a second that one plan carries, and that it does not while two do."""
NO_DATA = Load(data="no-data", window_s=60.0)
IDLE = Load(data="idle", window_s=60.0)


def gear_of(*plans: Plan, deployment: Deployment = CHAT) -> Gear:
    """These plans, balanced."""
    return balanced_gear(plans, deployment, a_load(OVER))


def candidate(
    gear: Gear,
    *,
    now: Gear,
    load: Load,
    stays_s: float = 600.0,
    deployment: Deployment = CHAT,
) -> Candidate:
    """As the planner says it: outlook under the load, what is to be started beside what runs."""
    running = {plan.id for plan in now.plans}
    return Candidate(
        gear=gear,
        outlook=gear_outlook(gear, deployment, load),
        starts=tuple(plan.id for plan in gear.plans if plan.id not in running),
        stays_s=stays_s,
    )


class Bench:
    """`chat` runs on plan ONE; its load was known for an hour."""

    def __init__(
        self, deployment: Deployment = CHAT, *plans: Plan, machine: Estimator | None = None
    ) -> None:
        self.deployment = deployment
        self.name = deployment.name
        self.now_s = EPOCH_S
        self.machine = machine or Estimator()
        self.effects: list[Effects] = []
        self.wake_at_s: float | None = None
        self.fleet_revision = 1
        self.route_revision = 0
        self.serving: tuple[Plan, ...] = ()
        self.answer: OrderShift | ShiftDeclined | None = None  # the last one that was said
        self._ids = count(1)
        declared = Entry(
            bucket="deployments",
            key=self.name,
            value=deployment.canonical_json(),
            revision=1,
        )
        self.take(Started(entries=(declared, self._entry(plans or (ONE,)))))
        self.look(CARRIED)
        self.now_s += 3600.0

    # -- what happens --------------------------------------------------------------------------

    def take(self, event: Input) -> list[Message]:
        """Feed one input; what is said because of it."""
        effects = self.machine.handle(self.now_s, event)
        self.effects.append(effects)
        self.wake_at_s = effects.wake_at_s
        return [parse(e.type, e.message) for e in effects.do if isinstance(e, Publish)]

    def hear(self, message: Message) -> list[Message]:
        """A message arrives."""
        return self.take(
            Delivered(
                type=type(message).__name__,
                message=message.canonical_json(),
                message_id=f"m-{next(self._ids)}",
            )
        )

    def pass_time(self, seconds: float) -> list[Message]:
        """Let time pass; the wake-up comes where one was wished for."""
        self.now_s += seconds
        if self.wake_at_s is not None and self.wake_at_s <= self.now_s:
            return self.take(Woken())
        return []

    def route(self, *plans: Plan, **changes: Any) -> None:
        """The route entry changes."""
        self.take(Watched(entry=self._entry(plans, **changes)))

    def proposal(
        self,
        *gears: Gear,
        load: float | Load = OVER,
        long: float | Load | None = None,
        stays_s: float = 600.0,
        now_stays_s: float = 600.0,
        dead: Sequence[Plan] = (),
        **changes: Any,
    ) -> CandidatesProposed:
        """What the planner would propose now."""
        short = load if isinstance(load, Load) else a_load(load)
        wide = short if long is None else long if isinstance(long, Load) else a_load(long)
        now = gear_of(*self.serving) if self.serving else Gear()
        living = [plan for plan in self.serving if plan not in dead]
        current = Candidate(
            gear=now,
            outlook=gear_outlook(gear_of(*living) if living else Gear(), self.deployment, short),
            stays_s=now_stays_s,
        )
        facts: dict[str, Any] = {
            "deployment": self.name,
            "proposal": f"proposal-{next(self._ids)}",
            "fleet_revision": self.fleet_revision,
            "trigger": "a test looks",
            "urgent": False,
            "load": short,
            "long_load": wide.model_copy(update={"window_s": 600.0}),
            "current": current,
            "candidates": tuple(
                candidate(gear, now=now, load=short, stays_s=stays_s, deployment=self.deployment)
                for gear in gears
            ),
            "seen": (Seen(bucket="routes", key=self.name, revision=self.route_revision),),
            "at_s": self.now_s,
            "trace_id": trace_id("fleet", 7),
            "parent_span_id": span_id("propose", 7),
        }
        return CandidatesProposed.model_validate({**facts, **changes})

    def look(self, load: float | Load, *gears: Gear, **changes: Any) -> OrderShift | ShiftDeclined:
        """The planner proposes; what becomes of it at once. What is declined as before gives what was said before."""
        said = self.hear(self.proposal(*gears, load=load, **changes))
        assert len(said) <= 1
        answer = said[0] if said else self.answer
        assert isinstance(answer, OrderShift | ShiftDeclined)
        assert said or isinstance(answer, ShiftDeclined), "an order is not followed by silence"
        self.answer = answer
        return answer

    def ordered(self, load: float | Load, *gears: Gear, **changes: Any) -> OrderShift:
        """The same, where an order is expected."""
        answer = self.look(load, *gears, **changes)
        assert isinstance(answer, OrderShift), f"declined by {answer.guard}: {answer.reason}"
        return answer

    def declined(self, load: float | Load, *gears: Gear, **changes: Any) -> ShiftDeclined:
        """The same, where none is."""
        answer = self.look(load, *gears, **changes)
        assert isinstance(answer, ShiftDeclined), f"ordered: {answer.order.trigger}"
        return answer

    def keep_looking(self, load: float, *, cycles: int, **changes: Any) -> None:
        """Cycles without candidates, so that the load becomes known."""
        for _ in range(cycles):
            self.declined(load, **changes)
            self.now_s += self.deployment.policy.cycle_s

    def commit(self, order: OrderShift, shift: int = 2) -> None:
        """The executor takes the order and it goes well."""
        self.accept(order, shift)
        self.route(*order.order.target.plans)
        self.hear(completed(shift, order.order.target, deployment=self.name))

    def accept(self, order: OrderShift, shift: int = 2) -> None:
        """The executor takes the order."""
        target = order.order.target
        self.hear(accepted(shift, order.order_id, target, deployment=self.name))
        self.route(*self.serving, in_flight=shift)

    # -- what was asked for ---------------------------------------------------------------------

    def spans(self) -> list[Span]:
        """All so far."""
        return [e for effects in self.effects for e in effects.do if isinstance(e, Span)]

    def measures(self, name: str) -> list[Measure]:
        """All readings of one metric so far."""
        every = (e for effects in self.effects for e in effects.do if isinstance(e, Measure))
        return [measure for measure in every if measure.name == name]

    def _entry(self, plans: Iterable[Plan], **changes: Any) -> Entry:
        self.serving = tuple(plans)
        self.route_revision += 1
        fence = Fence(deployment=self.name, term=1, shift=1, step=1)
        routed = tuple(
            RoutedPlan(
                plan=plan, front="http://h:31000", admit=1.0, state=PlanState.ACTIVE, fence=fence
            )
            for plan in self.serving
        )
        facts: dict[str, Any] = {
            "deployment": self.name,
            "model": self.deployment.model,
            "policy": self.deployment.policy,
            "term": 1,
            "shift": 1,
            "plans": routed,
        }
        value = RouteEntry.model_validate({**facts, **changes}).canonical_json()
        return Entry(bucket="routes", key=self.name, value=value, revision=self.route_revision)


def accepted(shift: int, order_id: str, target: Gear, *, deployment: str = "chat") -> Message:
    """`ShiftOrdered`."""
    return parse(
        "ShiftOrdered",
        _json(
            deployment=deployment,
            shift=shift,
            order_id=order_id,
            source_gear="g-before",
            target_gear=target.id,
            trigger="a test",
        ),
    )


def completed(
    shift: int, target: Gear, *, deployment: str = "chat", duration_s: float = 50.0
) -> Message:
    """`ShiftCompleted`."""
    return parse(
        "ShiftCompleted",
        _json(
            deployment=deployment,
            shift=shift,
            gear=target.id,
            start_class=str(StartClass.COLD),
            duration_s=duration_s,
        ),
    )


def rolled_back(shift: int, reason: str = "engine of p-1 failed to start") -> Message:
    """`ShiftRolledBack`."""
    return parse(
        "ShiftRolledBack",
        _json(deployment="chat", shift=shift, gear="g-before", reason=reason, duration_s=9.0),
    )


def _json(**fields: object) -> str:
    return canonical_json(fields)
