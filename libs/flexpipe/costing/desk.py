"""What the estimator remembers of one deployment: its order, its last shift, what failed, what was lost.

Frozen values that the estimator puts in place of one another; nothing here looks at a bus or decides anything.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

from pydantic import Field

from flexpipe.events.planning import CandidatesProposed
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import Load, Price
from flexpipe.model.route import PlanState, RouteEntry

ANSWER_LIMIT_S: Final = 30.0
"""How long an order may stay without an answer before another one may be given. The executor waits for what an order
rests on for at most 12 s; longer is an executor that is away, and its queue keeps the order anyhow."""
HELD_LIMIT: Final = 32
"""Gears held back at once, the oldest forgotten first: a proposal has at most twelve."""
HELD_FIRST_CYCLES: Final = 2
"""A gear that failed is left alone for two cycles, then four, eight, …"""
HELD_DOUBLINGS: Final = 5
"""… and 64 cycles at most, a quarter of an hour: whatever was in the way, somebody has looked at it by then."""
REPEATED_S: Final = 60.0
"""A refusal that stays the same is said once a minute: once a cycle it would bury the rest of the event log."""
FORGIVEN: Final = 2
"""Failures that a change of the fleet excuses: what was in the way may be gone. A third one says that it was not."""


class Ordered(Frozen):
    """An order given and not yet ended. `shift` is None until the executor accepted it."""

    order_id: str
    gear: str
    plans: tuple[str, ...]
    price: Price
    at_s: float
    until_s: float  # nothing is heard of it by then: it counts as gone
    shift: int | None = None


class Held(Frozen):
    """A gear that was refused or rolled back, and is left alone for a while."""

    gear: str
    failures: Annotated[int, Field(ge=1)]
    until_s: float
    fleet_revision: int  # at the last failure
    reason: str

    def holds(self, now_s: float, fleet_revision: int) -> bool:
        """Whether it still does."""
        excused = fleet_revision > self.fleet_revision and self.failures <= FORGIVEN
        return now_s < self.until_s and not excused


class Refusal(Frozen):
    """What was said last of why nothing is ordered."""

    guard: str
    gear: str | None  # the best candidate; None where there is none
    fleet_revision: int
    said_s: float

    def covers(self, other: Refusal) -> bool:
        """Whether another one, later, says nothing new. Numbers move in every cycle and are no news."""
        fields = ("guard", "gear", "fleet_revision")
        is_same = all(getattr(self, field) == getattr(other, field) for field in fields)
        return is_same and other.said_s - self.said_s < REPEATED_S


class Promise(Frozen):
    """A gear that came into force by an order, until what was predicted of it was held against what came."""

    plans: tuple[str, ...]
    due_s: float  # a whole window of load lies behind the shift by then


class Desk(Frozen):
    """One deployment."""

    newest_s: float = 0.0  # of the newest proposal seen
    pending: CandidatesProposed | None = None  # waits for what it rests on
    pending_until_s: float = 0.0
    ordered: Ordered | None = None
    flying: tuple[int, str] | None = (
        None  # the shift last accepted, whoever ordered it, and its target
    )
    ended_s: float | None = None  # when the last shift was committed or rolled back
    ended_shift: int = 0
    serving: tuple[str, ...] = ()  # plans in force when nothing was in flight
    lost: tuple[str, ...] = ()  # of them, gone without a shift, and nothing new since
    held: tuple[Held, ...] = ()
    refusal: Refusal | None = None  # the last one that was said, and nothing was ordered since
    busy_load: Load | None = None  # the newest load that was one
    seen_since_s: float | None = None  # load was known in every proposal since then
    over_since_s: float | None = None  # more came than the gear in force carries, in every one
    queued: int = 0  # of the newest proposal
    promise: Promise | None = None

    def with_route(self, entry: RouteEntry | None) -> Desk:
        """After a change of the route entry: a plan that is gone without a shift was lost, until a new one serves."""
        if entry is None or entry.stopped:
            return self.model_copy(update={"serving": (), "lost": ()})
        there = {routed.plan.id for routed in entry.plans}
        gone = {plan for plan in self.serving if plan not in there}
        lost = tuple(sorted({*self.lost, *gone}))
        if entry.in_flight is not None:
            serving = tuple(plan for plan in self.serving if plan in there)
            return self.model_copy(update={"serving": serving, "lost": lost})
        serving = tuple(sorted(routed.plan.id for routed in entry.in_state(PlanState.ACTIVE)))
        if set(serving) - set(self.serving):
            lost = ()
        return self.model_copy(update={"serving": serving, "lost": lost})

    def ordering(self, now_s: float, order_id: str, gear: Gear, price: Price) -> Desk:
        """After an order was given: no other one until it has ended, or was not answered for too long."""
        ordered = Ordered(
            order_id=order_id,
            gear=gear.id,
            plans=tuple(plan.id for plan in gear.plans),
            price=price,
            at_s=now_s,
            until_s=now_s + ANSWER_LIMIT_S,
        )
        return self.model_copy(update={"ordered": ordered, "refusal": None})

    def accepted(self, now_s: float, order_id: str, shift: int, gear: str) -> Desk:
        """After the executor took an order, ours or somebody else's."""
        changes: dict[str, object] = {"flying": (shift, gear)}
        if self.ordered is not None and self.ordered.order_id == order_id:
            until_s = now_s + ANSWER_LIMIT_S
            changes["ordered"] = self.ordered.model_copy(
                update={"shift": shift, "until_s": until_s}
            )
        return self.model_copy(update=changes)

    def seen_flying(self, now_s: float, in_flight: Collection[int | None]) -> Desk:
        """While the route entry shows the shift of our order, its end may take as long as it takes."""
        ordered = self.ordered
        if ordered is None or ordered.shift is None or ordered.shift not in in_flight:
            return self
        longer = ordered.model_copy(update={"until_s": now_s + ANSWER_LIMIT_S})
        return self.model_copy(update={"ordered": longer})

    def holding(self, gear: str) -> Held | None:
        """What holds a gear back."""
        return next((held for held in self.held if held.gear == gear), None)

    def hold(
        self, gear: str, reason: str, now_s: float, cycle_s: float, fleet_revision: int
    ) -> Desk:
        """Leave a gear alone for a while, twice as long as the last time."""
        before = self.holding(gear)
        failures = 1 if before is None else before.failures + 1
        cycles = HELD_FIRST_CYCLES * 2 ** min(failures - 1, HELD_DOUBLINGS)
        held = Held(
            gear=gear,
            failures=failures,
            until_s=now_s + cycles * cycle_s,
            fleet_revision=fleet_revision,
            reason=reason,
        )
        rest = tuple(each for each in self.held if each.gear != gear)
        return self.model_copy(update={"held": (*rest, held)[-HELD_LIMIT:]})

    def release(self, gear: str) -> Desk:
        """A gear that came into force has not failed."""
        return self.model_copy(update={"held": tuple(h for h in self.held if h.gear != gear)})

    def loaded(self, proposal: CandidatesProposed) -> Desk:
        """After a proposal's load was seen, and before it is judged by what was seen earlier."""
        load, at_s = proposal.load, proposal.at_s
        is_over = load.arrived_per_s > proposal.current.outlook.good_requests_per_s
        seen, over = load.data != "no-data", load.data == "busy" and is_over
        return self.model_copy(
            update={
                "seen_since_s": (self.seen_since_s or at_s) if seen else None,
                "over_since_s": (self.over_since_s or at_s) if over else None,
            }
        )

    def seen_s(self, now_s: float) -> float:
        """For how long load has been known. Windows are not longer than that, whatever they are called."""
        return 0.0 if self.seen_since_s is None else max(now_s - self.seen_since_s, 0.0)

    def over_s(self, now_s: float) -> float:
        """For how long more has come than the gear in force carries."""
        return 0.0 if self.over_since_s is None else max(now_s - self.over_since_s, 0.0)

    def tidy(self, now_s: float, in_flight: int | None) -> Desk:
        """Without an order that nobody has answered within its limit."""
        ordered = self.ordered
        if ordered is None or now_s < ordered.until_s:
            return self
        if ordered.shift is not None and ordered.shift == in_flight:
            return self
        return self.model_copy(update={"ordered": None})
