"""Laws of the gate and of the estimator behind it, under questions and histories that hypothesis makes up."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexpipe.costing import Estimator
from flexpipe.costing.desk import ANSWER_LIMIT_S, REPEATED_S, Desk
from flexpipe.costing.guards import GUARDS, Asked, judge
from flexpipe.costing.pressing import Pressing
from flexpipe.costing.pricing import price
from flexpipe.events.message import Message
from flexpipe.events.planning import ShiftDeclined
from flexpipe.events.shift import OrderShift, ShiftRefused
from flexpipe.kernel.machine import Measure
from flexpipe.model.deployment import Policy
from flexpipe.model.outlook import GuardVerdict
from flexpipe.model.plan import Plan
from flexpipe.model.route import Pin, RouteEntry
from simulation.looping import CHAT, a_load
from unit.costing.bench import (
    IDLE,
    NO_DATA,
    ONE,
    OVER,
    THREE,
    TWO,
    WIDE,
    Bench,
    accepted,
    completed,
    gear_of,
    rolled_back,
)

NAMES = tuple(guard.__name__ for guard in GUARDS)
GEARS = (gear_of(ONE), gear_of(ONE, TWO), gear_of(ONE, TWO, THREE), gear_of(WIDE), gear_of(TWO))
DECLINES = "flexpipe_estimator_declines_total"
OUTCOMES = ("flexpipe_estimator_orders_total", DECLINES)
LOADS = st.sampled_from((NO_DATA, IDLE, a_load(3.0), a_load(OVER), a_load(30.0, queued=50)))


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    """One candidate of one proposal, in some situation."""
    bench = Bench(CHAT.model_copy(update={"policy": draw(policies())}), *draw(running()))
    route = RouteEntry.model_validate_json(bench._entry(bench.serving).value or "")
    route = route.model_copy(
        update={
            "pin": draw(st.sampled_from((None, None, Pin(reason="r 1", by="ann", at_s=1.0)))),
            "stopped": draw(st.sampled_from((False, False, True))),
            "in_flight": draw(st.sampled_from((None, None, 4))),
        }
    )
    proposal = bench.proposal(
        draw(st.sampled_from(GEARS)),
        load=draw(LOADS),
        long=draw(LOADS),
        stays_s=draw(st.sampled_from((10.0, 200.0, 600.0))),
        fleet_revision=draw(st.integers(1, 3)),
        at_s=bench.now_s - draw(st.sampled_from((0.0, 20.0, 100.0))),
    )
    (candidate,) = proposal.candidates
    needs = (None, None, Pressing(says="2 plans were lost", forces=draw(st.booleans())))
    return Asked(
        now_s=bench.now_s,
        deployment=bench.deployment,
        proposal=proposal,
        route=draw(st.sampled_from((route, route, None))),
        route_revision=draw(st.integers(1, 4)),
        fleet_revision=draw(st.integers(1, 3)),
        desk=draw(desks(bench.now_s, candidate.gear.id)),
        pressing=draw(st.sampled_from(needs)),
        load=proposal.load,
        current=proposal.current,
        candidate=candidate,
        price=price(bench.deployment, proposal.load, proposal.current, candidate),
    )


def policies() -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy,
        automatic=st.sampled_from((True, True, True, False)),
        hysteresis=st.sampled_from((1.0, 1.4, 5.0)),
        horizon_s=st.sampled_from((60.0, 600.0)),
    )


def running() -> st.SearchStrategy[tuple[Plan, ...]]:
    return st.sampled_from(((ONE,), (ONE, TWO), (ONE, TWO, THREE)))


@st.composite
def desks(draw: st.DrawFn, now_s: float, gear: str) -> Desk:
    desk = Desk(
        ended_s=draw(st.sampled_from((None, now_s - 5.0, now_s - 500.0))),
        ended_shift=3,
        seen_since_s=draw(st.sampled_from((None, now_s - 5.0, now_s - 500.0))),
    )
    if draw(st.booleans()):
        desk = desk.hold(gear, "port 31000 taken", now_s, 15.0, draw(st.integers(1, 3)))
    return desk


@settings(max_examples=150, deadline=None)
@given(questions())
def test_guards_are_asked_in_their_order_and_the_first_no_is_the_last_word(asked: Asked) -> None:
    verdicts = judge(asked)
    assert tuple(v.guard for v in verdicts) == NAMES[: len(verdicts)]
    assert all(verdict.passed for verdict in verdicts[:-1])
    assert len(verdicts) == len(GUARDS) or not verdicts[-1].passed


@settings(max_examples=150, deadline=None)
@given(questions())
def test_every_verdict_is_one_sentence_with_a_number_or_a_name(asked: Asked) -> None:
    for guard in GUARDS:
        verdict = guard(asked)
        assert re.search(r"\d", verdict.says) or asked.name in verdict.says, verdict
        assert "\n" not in verdict.says
        assert verdict.guard == guard.__name__


@settings(max_examples=150, deadline=None)
@given(questions())
def test_what_does_not_pay_never_passes_whatever_presses(asked: Asked) -> None:
    pays = asked.price.gain_tokens > asked.deployment.policy.hysteresis * asked.price.cost_tokens
    assert pays or not all(verdict.passed for verdict in judge(asked))


@settings(max_examples=100, deadline=None)
@given(questions(), st.integers(0, len(GUARDS) - 1))
def test_later_guards_are_not_asked(asked: Asked, refusing: int) -> None:
    heard: list[int] = []

    def spy(place: int) -> Callable[[Asked], GuardVerdict]:
        def guard(_: Asked) -> GuardVerdict:
            heard.append(place)
            return GuardVerdict(guard=f"guard-{place}", passed=place != refusing, says="1")

        return guard

    judge(asked, tuple(spy(place) for place in range(len(GUARDS))))
    assert heard == list(range(refusing + 1))


def test_no_guard_stands_twice_and_each_says_why_it_is_there() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(guard.__doc__ for guard in GUARDS)


# -- the estimator over whole histories --------------------------------------------------------


@dataclass
class History:
    """Plays drawn events to a bench and keeps what was ordered and when a next order may come."""

    bench: Bench
    said_s: float = float("-inf")  # when a proposal was answered aloud
    open_until_s: float = 0.0
    ordered: OrderShift | None = None
    shift: int = 1
    revision: int = 10

    def play(self, what: str, draw: int) -> None:
        getattr(self, what)(draw)

    def propose(self, draw: int) -> None:
        loads = (NO_DATA, IDLE, a_load(3.0), a_load(OVER), a_load(30.0, queued=draw))
        before = self.bench.now_s
        said = self.bench.hear(
            self.bench.proposal(
                GEARS[draw % len(GEARS)],
                GEARS[(draw + 1) % len(GEARS)],
                load=loads[draw % 5],
                long=loads[draw % 3 + 2],
                now_stays_s=(600.0, 600.0, 30.0)[draw % 3],
            )
        )
        outcomes = [
            effect.name
            for effect in self.bench.effects[-1].do
            if isinstance(effect, Measure) and effect.name in OUTCOMES
        ]
        assert len(outcomes) == 1, "a proposal leads to an order or is declined, once"
        if not said:
            assert outcomes == [DECLINES], "an order is always said"
            assert before - self.said_s < REPEATED_S, "a refusal is said once a minute"
        else:
            self.said_s = before
        self.heard(said, before)

    def heard(self, said: list[Message], now_s: float) -> None:
        for message in said:
            assert isinstance(message, OrderShift | ShiftDeclined)
            if isinstance(message, OrderShift):
                assert now_s >= self.open_until_s, "an order follows one that has not ended"
                self.ordered = message
                self.open_until_s = now_s + ANSWER_LIMIT_S

    def take(self, _: int) -> None:
        if self.ordered is None:
            return
        self.shift += 1
        target = self.ordered.order.target
        self.bench.hear(accepted(self.shift, self.ordered.order_id, target))
        self.bench.route(*self.bench.serving, in_flight=self.shift)
        self.open_until_s = float("inf")

    def refuse(self, _: int) -> None:
        if self.ordered is None or self.open_until_s == float("inf"):
            return
        self.bench.hear(
            ShiftRefused(deployment="chat", order_id=self.ordered.order_id, reason="port 1 taken")
        )
        self.over()

    def end_well(self, _: int) -> None:
        if self.open_until_s == float("inf") and self.ordered is not None:
            self.bench.route(*self.ordered.order.target.plans)
            self.bench.hear(completed(self.shift, self.ordered.order.target))
            self.over()

    def end_badly(self, _: int) -> None:
        if self.open_until_s == float("inf"):
            self.bench.route(*self.bench.serving)
            self.bench.hear(rolled_back(self.shift))
            self.over()

    def lose(self, _: int) -> None:
        if self.open_until_s != float("inf"):
            self.bench.route(*self.bench.serving[1:])

    def wait(self, draw: int) -> None:
        self.bench.now_s += (0.5, 15.0, 40.0, 200.0)[draw % 4]

    def restart(self, _: int) -> None:
        again = Estimator()
        again.restore(self.bench.machine.snapshot())
        assert again.snapshot() == self.bench.machine.snapshot()
        self.bench.machine = again

    def over(self) -> None:
        self.ordered = None
        self.open_until_s = 0.0


EVENTS = ("propose", "propose", "take", "refuse", "end_well", "end_badly", "lose", "wait")
HISTORIES = st.lists(
    st.tuples(st.sampled_from((*EVENTS, "wait", "restart")), st.integers(0, 59)), max_size=25
)


@settings(max_examples=150, deadline=None)
@given(HISTORIES)
def test_a_deployment_never_has_two_orders_at_once(events: list[tuple[str, int]]) -> None:
    history = History(Bench())
    for what, draw in events:
        history.play(what, draw)


@settings(max_examples=30, deadline=None)
@given(HISTORIES)
def test_equal_histories_end_in_equal_machines(events: list[tuple[str, int]]) -> None:
    one, two = History(Bench()), History(Bench())
    for what, draw in events:
        one.play(what, draw)
        if what != "restart":
            two.play(what, draw)
    assert one.bench.machine.snapshot() == two.bench.machine.snapshot()
    assert one.bench.effects == two.bench.effects


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_order_of_candidates_in_a_proposal_does_not_matter(order: tuple[int, ...]) -> None:
    bench = Bench()
    proposal = bench.proposal(*GEARS[1:4], load=25.0, proposal="p")
    shuffled = tuple(proposal.candidates[place] for place in order)
    (answer,) = bench.hear(proposal.model_copy(update={"candidates": shuffled}))
    (first,) = Bench().hear(Bench().proposal(*GEARS[1:4], load=25.0, proposal="p"))
    assert isinstance(answer, OrderShift)
    assert answer == first
