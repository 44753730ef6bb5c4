"""What the estimator makes of proposals, and of what becomes of its orders."""

from __future__ import annotations

import pytest

from flexpipe.costing import Estimator
from flexpipe.costing.desk import ANSWER_LIMIT_S, HELD_FIRST_CYCLES, REPEATED_S
from flexpipe.costing.estimator import OVERTAKEN_LIMIT_S
from flexpipe.events.planning import ShiftDeclined
from flexpipe.events.shift import OrderShift, ShiftRefused
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.machine import Delivered, Entry, Started, Watched
from flexpipe.model.deployment import Policy
from flexpipe.model.gear import Gear, PlanShare
from flexpipe.model.outlook import Load, Rejected
from flexpipe.model.route import Pin
from simulation.looping import CHAT, a_load
from unit.costing.bench import (
    CARRIED,
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

PAIR = gear_of(ONE, TWO)
LINE = gear_of(ONE, WIDE)
POLICY = CHAT.policy
A_LITTLE_OVER = 9.9
"""More than one plan carries, not so much that the SLO is certain to be missed."""


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- orders ------------------------------------------------------------------------------------


def test_a_change_that_pays_is_ordered_with_its_prediction_price_and_trace(bench: Bench) -> None:
    proposal = bench.proposal(PAIR)
    (order,) = bench.hear(proposal)
    assert isinstance(order, OrderShift)
    assert order.order.target == PAIR
    assert order.order.by == "estimator"
    assert order.order.ordered_at_s == bench.now_s
    assert order.order.outlook == proposal.candidates[0].outlook
    assert order.order.price is not None
    assert order.order.price.gain_tokens > 1.4 * order.order.price.cost_tokens
    assert order.seen == proposal.seen
    assert order.order.trigger.startswith("a test looks; ")
    assert "SLO-good tokens over 600 s" in order.order.trigger
    (span,) = bench.spans()
    assert (span.name, span.trace_id) == ("price", proposal.trace_id)
    assert span.parent_span_id == proposal.parent_span_id
    assert order.order.trace_id == proposal.trace_id
    assert order.order.parent_span_id == span.span_id
    (reading,) = bench.measures("flexpipe_estimator_orders_total")
    assert reading.labels == {"deployment": "chat"}


def test_the_candidate_that_is_worth_most_is_ordered_whatever_its_place(bench: Bench) -> None:
    many = 25.0  # more than a pair carries
    assert bench.ordered(many, PAIR, LINE).order.target == LINE
    assert Bench().ordered(many, LINE, PAIR).order.target == LINE


@pytest.mark.parametrize("turned", [False, True])
def test_of_gears_that_are_worth_alike_the_one_on_the_fewest_devices_is_ordered(
    bench: Bench, *, turned: bool
) -> None:
    some = 18.0  # a pair carries it, and so does a pair with one more
    gears = [gear_of(ONE, TWO, THREE), PAIR]
    assert bench.ordered(some, *(gears[::-1] if turned else gears)).order.target == PAIR


def test_the_best_that_passes_is_ordered_where_the_best_does_not(bench: Bench) -> None:
    order = bench.ordered(25.0, LINE, PAIR)
    bench.hear(ShiftRefused(deployment="chat", order_id=order.order_id, reason="no port is free"))
    assert bench.ordered(25.0, LINE, PAIR).order.target == PAIR


def test_a_proposal_that_pays_nothing_is_declined_with_verdicts_and_prices_of_all(
    bench: Bench,
) -> None:
    said = bench.declined(CARRIED, PAIR, LINE)
    assert (said.guard, len(said.declined)) == ("paying", 2)
    assert said.reason == said.declined[0].verdicts[-1].says
    for each in said.declined:
        assert [verdict.passed for verdict in each.verdicts] == [True] * 11 + [False]
        assert each.price.cost_tokens > 0
        assert ("gain", each.price.gain_tokens, "tokens") in each.price.rows
    (reading,) = bench.measures("flexpipe_estimator_declines_total")[-1:]
    assert reading.labels == {"deployment": "chat", "guard": "paying"}


def test_a_proposal_without_candidates_is_declined_with_what_stands_in_the_way(
    bench: Bench,
) -> None:
    rejected = (Rejected(what="tp4", reason="no block of 4 is free"),)
    said = bench.declined(OVER, rejected=rejected)
    assert said.guard == "candidates"
    assert "tp4: no block of 4 is free" in said.reason


def test_a_model_whose_facts_were_never_read_is_declined_in_one_line() -> None:
    model = CHAT.model.model_copy(update={"facts": None})
    bench = Bench()
    bare = CHAT.model_copy(update={"model": model}).canonical_json()
    bench.take(Watched(entry=Entry(bucket="deployments", key="chat", value=bare, revision=9)))
    said = bench.declined(OVER, PAIR)
    assert said.guard == "predicted"
    assert "model.facts" in said.reason


# -- what is said, and how often ------------------------------------------------------------------


def test_a_refusal_that_stays_the_same_is_counted_each_time_and_said_once_a_minute(
    bench: Bench,
) -> None:
    said = []
    for _ in range(9):
        answers = bench.hear(bench.proposal(PAIR, load=CARRIED))
        said += [bench.now_s] * len(answers)
        bench.now_s += POLICY.cycle_s
    assert POLICY.cycle_s == 15.0
    assert [at_s - said[0] for at_s in said] == [0.0, REPEATED_S, 2 * REPEATED_S]
    counted = bench.measures("flexpipe_estimator_declines_total")
    assert sum(each.labels["guard"] == "paying" for each in counted) == 9


def test_a_refusal_by_another_guard_or_of_another_gear_or_on_another_fleet_is_said_at_once(
    bench: Bench,
) -> None:
    def is_said(load: float | Load, gear: Gear, **changes: object) -> bool:
        return bool(bench.hear(bench.proposal(gear, load=load, **changes)))

    assert is_said(CARRIED, PAIR)
    assert not is_said(CARRIED, PAIR)
    assert is_said(IDLE, PAIR)
    assert is_said(IDLE, LINE)
    assert is_said(IDLE, LINE, fleet_revision=2)
    bench.fleet_revision = 2
    assert not is_said(IDLE, LINE)


def test_whoever_asks_for_a_look_is_answered_each_time(bench: Bench) -> None:
    for _ in range(3):
        (said,) = bench.hear(bench.proposal(PAIR, load=CARRIED, urgent=True))
        assert isinstance(said, ShiftDeclined)


def test_the_first_refusal_after_an_order_is_said(bench: Bench) -> None:
    for _ in range(2):
        order = bench.ordered(OVER, PAIR)
        (said,) = bench.hear(bench.proposal(PAIR, load=OVER))
        assert isinstance(said, ShiftDeclined)
        assert bench.hear(bench.proposal(PAIR, load=OVER)) == []
        bench.hear(ShiftRefused(deployment="chat", order_id=order.order_id, reason="no port"))
        bench.fleet_revision += 1  # which excuses it


# -- one order at a time -----------------------------------------------------------------------


def test_no_second_order_is_given_before_the_first_was_answered_or_given_up(bench: Bench) -> None:
    first = bench.ordered(OVER, PAIR)
    bench.now_s += ANSWER_LIMIT_S - 1
    said = bench.declined(OVER, LINE)
    assert said.guard == "free"
    assert first.order_id in said.reason
    bench.now_s += 1
    assert bench.ordered(OVER, LINE).order.target == LINE


def test_an_order_in_flight_is_waited_for_as_long_as_it_takes(bench: Bench) -> None:
    bench.accept(bench.ordered(OVER, PAIR))
    for _ in range(10):
        bench.now_s += ANSWER_LIMIT_S
        assert bench.declined(OVER, LINE).guard == "free"
    bench.route(ONE, TWO)
    bench.hear(completed(2, PAIR))
    bench.now_s += POLICY.cooldown_s
    assert bench.ordered(25.0, gear_of(ONE, TWO, WIDE)).order.target.plans != PAIR.plans


def test_an_order_whose_end_was_never_heard_of_does_not_block_for_ever(bench: Bench) -> None:
    bench.accept(bench.ordered(OVER, PAIR))
    bench.now_s += 100.0
    bench.route(ONE)
    assert bench.declined(OVER, LINE).guard == "free"
    bench.now_s += ANSWER_LIMIT_S
    assert bench.ordered(OVER, LINE)


def test_somebody_else_s_refusal_changes_nothing(bench: Bench) -> None:
    bench.ordered(OVER, PAIR)
    bench.hear(ShiftRefused(deployment="chat", order_id="by-hand", reason="pinned"))
    assert bench.declined(OVER, PAIR).guard == "free"


# -- what failed -------------------------------------------------------------------------------


def test_a_refused_gear_is_left_alone_twice_as_long_each_time(bench: Bench) -> None:
    waits = []
    for _ in range(4):
        order = bench.ordered(OVER, PAIR)
        refused = ShiftRefused(deployment="chat", order_id=order.order_id, reason="port taken")
        bench.hear(refused)
        waited = 0.0
        while isinstance(said := bench.look(OVER, PAIR), ShiftDeclined):
            assert said.guard == "untried"
            assert "port taken" in said.reason
            bench.now_s += POLICY.cycle_s
            waited += POLICY.cycle_s
        # That look was an order too: refuse it as well, which counts.
        bench.hear(refused.model_copy(update={"order_id": said.order_id}))
        waits.append(waited)
        bench.now_s += 3600.0
    first = HELD_FIRST_CYCLES * POLICY.cycle_s
    assert waits == [first, first * 4, first * 16, first * 32]


def test_a_change_of_the_fleet_excuses_a_failure_twice(bench: Bench) -> None:
    for _ in range(2):
        order = bench.ordered(OVER, PAIR)
        bench.hear(ShiftRefused(deployment="chat", order_id=order.order_id, reason="gone"))
        assert bench.declined(OVER, PAIR).guard == "untried"
        bench.fleet_revision += 1
    order = bench.ordered(OVER, PAIR)
    bench.hear(ShiftRefused(deployment="chat", order_id=order.order_id, reason="gone"))
    bench.fleet_revision += 1
    assert bench.declined(OVER, PAIR).guard == "untried"


def test_a_shift_that_was_rolled_back_starts_the_cooldown_and_holds_its_gear_back(
    bench: Bench,
) -> None:
    bench.accept(bench.ordered(OVER, PAIR))
    bench.route(ONE)
    bench.hear(rolled_back(2))
    said = bench.declined(A_LITTLE_OVER, LINE)
    assert said.guard == "cooled"
    assert said.reason.startswith("shift 2 ended 0.0 s ago; the cooldown is 90.0 s")
    bench.now_s += POLICY.cooldown_s - 1
    assert bench.declined(A_LITTLE_OVER, LINE).guard == "cooled"
    bench.now_s += 1
    assert bench.ordered(A_LITTLE_OVER, LINE)


def test_an_order_that_found_no_room_is_told_by_its_end_alone(bench: Bench) -> None:
    bench.ordered(OVER, PAIR)
    bench.hear(rolled_back(2, reason="reserved by other shift 1"))
    bench.now_s += 1.0
    said = bench.declined(OVER, PAIR)
    assert said.guard == "untried"
    assert "reserved by other" in said.reason


def test_a_gear_that_came_into_force_after_all_is_not_held_back(bench: Bench) -> None:
    order = bench.ordered(OVER, PAIR)
    bench.hear(ShiftRefused(deployment="chat", order_id=order.order_id, reason="port taken"))
    bench.hear(accepted(2, "by-hand", PAIR))
    bench.hear(completed(2, PAIR))
    bench.route(ONE)
    bench.now_s += POLICY.cooldown_s
    assert bench.ordered(OVER, PAIR)


# -- patience and need -------------------------------------------------------------------------


def test_the_cooldown_counts_from_the_commit_of_any_shift(bench: Bench) -> None:
    bench.hear(accepted(2, "by-hand", gear_of(ONE)))
    bench.hear(completed(2, gear_of(ONE)))
    bench.now_s += POLICY.cooldown_s - 1
    assert bench.declined(OVER, PAIR).guard == "cooled"
    bench.now_s += 1
    assert bench.ordered(OVER, PAIR)


def test_the_time_of_a_commit_is_that_of_the_bus_where_it_tells() -> None:
    bench = Bench()
    message = completed(2, gear_of(ONE))
    bench.take(
        Delivered(
            type="ShiftCompleted",
            message=message.canonical_json(),
            message_id="late",
            sent_at_s=bench.now_s - POLICY.cooldown_s,
        )
    )
    assert bench.ordered(OVER, PAIR)


def test_a_lost_plan_lifts_the_cooldown_but_not_the_price() -> None:
    bench = Bench(CHAT, ONE, TWO)
    bench.hear(completed(2, PAIR))
    bench.route(ONE)
    assert bench.declined(CARRIED, gear_of(ONE, THREE)).guard == "paying"
    order = bench.ordered(OVER, gear_of(ONE, THREE))
    assert f"1 plan(s) were lost: {TWO.id}" in order.order.trigger


def test_a_plan_that_is_dead_before_the_route_entry_says_so_counts_as_lost() -> None:
    bench = Bench(CHAT, ONE, TWO)
    bench.hear(completed(2, PAIR))
    assert bench.ordered(OVER, gear_of(ONE, THREE), dead=[TWO])


def test_a_plan_that_a_shift_gave_up_was_not_lost() -> None:
    bench = Bench(CHAT, ONE, TWO)
    bench.route(ONE, TWO, in_flight=2)
    bench.route(ONE, in_flight=2)
    bench.route(ONE, THREE)
    bench.hear(completed(2, gear_of(ONE, THREE)))
    assert bench.declined(25.0, gear_of(ONE, THREE, WIDE)).guard == "cooled"


def test_a_gear_that_is_about_to_go_lifts_the_cooldown(bench: Bench) -> None:
    bench.hear(completed(2, gear_of(ONE)))
    order = bench.ordered(CARRIED, gear_of(TWO), now_stays_s=60.0)
    assert "the gear in force goes in 60 s" in order.order.trigger


def test_an_slo_certain_to_be_missed_lifts_the_cooldown_after_a_whole_window(bench: Bench) -> None:
    bench.hear(completed(2, gear_of(ONE)))
    looks = 0
    while isinstance(answer := bench.look(OVER, PAIR), ShiftDeclined):
        assert answer.guard == "cooled"
        bench.now_s += POLICY.cycle_s
        looks += 1
    assert looks * POLICY.cycle_s == POLICY.load_window_s
    assert "14.00 requests/s come" in answer.order.trigger


def test_a_queue_that_grows_is_believed_where_the_long_window_does_not_show_it_yet(
    bench: Bench,
) -> None:
    def waiting(queued: int) -> ShiftDeclined | OrderShift:
        return bench.look(a_load(OVER, queued=queued), PAIR, long=CARRIED)

    for queued in (100, 200, 300, 400):
        assert isinstance(waiting(queued), ShiftDeclined)
        bench.now_s += POLICY.cycle_s
    assert isinstance(waiting(400), ShiftDeclined)  # it does not grow
    bench.now_s += POLICY.cycle_s
    assert isinstance(answer := waiting(500), OrderShift)
    assert "the queue grew from 400 to 500" in answer.order.trigger


def test_a_load_that_shows_in_one_window_alone_leads_to_nothing(bench: Bench) -> None:
    assert bench.declined(OVER, PAIR, long=CARRIED).guard == "paying"
    assert bench.declined(CARRIED, PAIR, long=OVER).guard == "paying"
    assert bench.ordered(OVER, PAIR, long=OVER)


def test_a_gain_within_what_predictions_err_by_is_none(bench: Bench) -> None:
    holds = bench.proposal(load=OVER).current.outlook.good_requests_per_s
    assert bench.declined(1.04 * holds, PAIR).guard == "noticeable"
    assert bench.ordered(1.06 * holds, PAIR)


# -- load --------------------------------------------------------------------------------------


def test_without_data_or_traffic_nothing_is_changed(bench: Bench) -> None:
    said = bench.declined(NO_DATA, PAIR)
    assert (said.guard, "60 s" in said.reason) == ("known", True)
    assert bench.declined(IDLE, PAIR).guard == "known"


def test_the_first_seconds_of_traffic_are_no_load_yet(bench: Bench) -> None:
    bench.declined(NO_DATA, PAIR)
    bench.now_s += 5.0
    assert bench.declined(OVER, PAIR).guard == "known"
    bench.now_s += POLICY.load_window_s
    assert bench.ordered(OVER, PAIR)


@pytest.mark.parametrize("load", [NO_DATA, IDLE, a_load(0.0)])
def test_what_serves_nobody_is_mended_without_any_load(load: object) -> None:
    bench = Bench()
    bench.route()
    answer = bench.look(load, gear_of(TWO))  # type: ignore[arg-type]
    assert isinstance(answer, OrderShift)
    assert "nothing serves chat" in answer.order.trigger


def test_what_serves_nobody_is_mended_where_no_load_was_ever_seen() -> None:
    machine = Estimator()
    bench = Bench(machine=machine)
    machine.restore(Estimator().snapshot())
    declared = Entry(bucket="deployments", key="chat", value=CHAT.canonical_json(), revision=1)
    bench.take(Started(entries=(declared,)))
    bench.route()
    assert bench.ordered(NO_DATA, gear_of(TWO))


def test_an_slo_that_no_gear_holds_leaves_no_deployment_without_one() -> None:
    strict = CHAT.model_copy(update={"slo": CHAT.slo.model_copy(update={"itl_ms": 0.5})})
    bench = Bench(strict)
    bench.route()
    assert bench.ordered(CARRIED, gear_of(TWO))


# -- what rests on what ------------------------------------------------------------------------


def test_a_proposal_waits_for_the_route_entry_that_it_rests_on(bench: Bench) -> None:
    ahead = bench.proposal(PAIR)
    seen = ahead.seen[0].model_copy(update={"revision": bench.route_revision + 1})
    assert bench.hear(ahead.model_copy(update={"seen": (seen,)})) == []
    bench.now_s += 1.0
    effects = bench.take(Watched(entry=bench._entry((ONE,))))
    assert [type(said) for said in effects] == [OrderShift]


def test_a_proposal_waits_for_what_it_rests_on_within_a_limit(bench: Bench) -> None:
    ahead = bench.proposal(PAIR)
    seen = ahead.seen[0].model_copy(update={"revision": bench.route_revision + 1})
    assert bench.hear(ahead.model_copy(update={"seen": (seen,)})) == []
    (answer,) = bench.pass_time(OVERTAKEN_LIMIT_S)
    assert isinstance(answer, OrderShift)


def test_of_two_proposals_the_newer_one_counts_whatever_the_order_of_arrival(bench: Bench) -> None:
    older = bench.proposal(PAIR)
    bench.now_s += 1.0
    newer = bench.proposal(LINE)
    seen = newer.seen[0].model_copy(update={"revision": bench.route_revision + 1})
    assert bench.hear(newer.model_copy(update={"seen": (seen,)})) == []
    (late,) = bench.hear(older)
    assert isinstance(late, ShiftDeclined)
    assert (late.proposal, late.guard) == (older.proposal, "fresh")
    (answer,) = bench.pass_time(OVERTAKEN_LIMIT_S)
    assert isinstance(answer, OrderShift)
    assert answer.order.target == LINE


def test_a_proposal_on_an_older_fleet_than_was_seen_is_declined(bench: Bench) -> None:
    bench.fleet_revision = 5
    bench.declined(CARRIED)
    said = bench.declined(OVER, PAIR, fleet_revision=4)
    assert said.guard == "fresh"
    assert "revision 4; 5 was seen" in said.reason


def test_a_proposal_that_waited_through_an_outage_is_declined(bench: Bench) -> None:
    said = bench.declined(OVER, PAIR, at_s=bench.now_s - 31.0)
    assert (said.guard, "31.0 s old" in said.reason) == ("fresh", True)


def test_a_proposal_about_a_gear_that_is_not_in_force_any_more_is_declined(bench: Bench) -> None:
    stale = bench.proposal(gear_of(ONE, WIDE))
    bench.route(ONE, TWO)
    (said,) = bench.hear(stale)
    assert isinstance(said, ShiftDeclined)
    assert (said.guard, TWO.id in said.reason) == ("fresh", True)


def test_a_candidate_that_keeps_a_plan_lost_since_is_declined() -> None:
    bench = Bench(CHAT, ONE, TWO)
    stale = bench.proposal(gear_of(ONE, TWO, WIDE), load=25.0)
    bench.route(ONE)
    (said,) = bench.hear(stale)
    assert isinstance(said, ShiftDeclined)
    assert (said.guard, TWO.id in said.reason) == ("fresh", True)


# -- what people decided -----------------------------------------------------------------------


def test_a_pinned_deployment_is_left_alone(bench: Bench) -> None:
    bench.route(ONE, pin=Pin(reason="incident 7", by="ann", at_s=1.0))
    said = bench.declined(OVER, PAIR)
    assert (said.guard, said.reason) == ("unpinned", "chat is pinned by ann: incident 7")
    bench.route(ONE)
    assert bench.ordered(OVER, PAIR)


def test_a_stopped_deployment_is_not_started_by_the_loop(bench: Bench) -> None:
    bench.route(stopped=True)
    assert bench.declined(OVER, PAIR).guard == "running"


def test_a_deployment_that_was_never_started_is_not_started_by_the_loop(bench: Bench) -> None:
    bench.take(Watched(entry=Entry(bucket="routes", key="chat", value=None, revision=50)))
    bench.serving = ()
    assert bench.declined(OVER, PAIR).guard == "running"


def test_the_loop_can_be_switched_off() -> None:
    bench = Bench(CHAT.model_copy(update={"policy": Policy(automatic=False)}))
    said = bench.declined(OVER, PAIR)
    assert (said.guard, said.reason) == ("automatic", "policy.automatic of chat is off")


def test_a_deployment_that_is_not_declared_is_declined_and_forgotten(bench: Bench) -> None:
    before = bench.machine.snapshot()
    said = bench.declined(OVER, PAIR, deployment="other", seen=())
    assert said.guard == "declared"
    assert bench.machine.snapshot() == before


def test_other_weights_are_no_other_gear(bench: Bench) -> None:
    bench.route(ONE, TWO)
    lopsided = Gear(
        shares=tuple(
            sorted(
                (PlanShare(plan=ONE, weight=3.0), PlanShare(plan=TWO, weight=1.0)),
                key=lambda share: share.plan.id,
            )
        )
    )
    assert bench.declined(OVER, lopsided).guard == "other"


# -- shrinking, staying ------------------------------------------------------------------------


def test_plans_are_given_up_only_where_the_survivors_carry_the_load() -> None:
    bench = Bench(CHAT, ONE, TWO)
    said = bench.declined(CARRIED, gear_of(ONE), long=OVER)
    assert said.guard == "carried"
    assert "at 2/1 of their load the survivors hold the SLO up to 9." in said.reason
    assert bench.declined(CARRIED, gear_of(ONE)).guard == "paying"  # carried, but to what end


def test_a_plan_whose_devices_go_is_given_up_to_whoever_stays() -> None:
    bench = Bench(CHAT, ONE, TWO)
    assert bench.ordered(OVER, gear_of(ONE), now_stays_s=60.0).order.target == gear_of(ONE)


def test_a_gear_whose_blocks_leave_soon_is_not_worth_its_start(bench: Bench) -> None:
    said = bench.declined(OVER, PAIR, stays_s=120.0)
    assert said.guard == "staying"
    assert said.reason.startswith("its blocks stay 120 s; start, switch and 90 s of use take 1")
    assert bench.ordered(OVER, PAIR, stays_s=300.0)


def test_a_short_stay_beats_none_where_nothing_serves(bench: Bench) -> None:
    bench.route()
    assert bench.ordered(OVER, gear_of(TWO), stays_s=120.0)


# -- looking back ------------------------------------------------------------------------------


def test_the_time_of_a_shift_is_held_against_what_was_predicted(bench: Bench) -> None:
    order = bench.ordered(OVER, PAIR)
    assert order.order.price is not None
    predicted_s = order.order.price.start_s + order.order.price.switch_s
    bench.accept(order)
    bench.hear(completed(2, PAIR, duration_s=2 * predicted_s))
    (reading,) = bench.measures("flexpipe_estimator_shift_time_ratio")
    assert reading.value == pytest.approx(2.0)
    assert reading.labels == {"deployment": "chat", "start_class": "cold"}


def test_the_itl_of_a_new_gear_is_held_against_what_was_predicted_a_window_later(
    bench: Bench,
) -> None:
    bench.commit(bench.ordered(OVER, PAIR))
    seen = a_load(OVER).model_copy(update={"itl_p50_ms": 30.0})
    bench.declined(seen)
    assert bench.measures("flexpipe_estimator_itl_ratio") == []
    bench.now_s += POLICY.load_window_s
    predicted_ms = bench.proposal(load=seen).current.outlook.itl_p50_ms
    bench.declined(seen)
    bench.declined(seen)
    (reading,) = bench.measures("flexpipe_estimator_itl_ratio")
    assert reading.value == pytest.approx(30.0 / predicted_ms)


def test_a_decline_shows_in_a_trace_where_an_event_asked_for_it(bench: Bench) -> None:
    bench.declined(CARRIED, PAIR)
    assert bench.spans() == []
    bench.declined(CARRIED, PAIR, urgent=True)
    (span,) = bench.spans()
    assert span.attributes["flexpipe.verdict"] == "declined by paying"


def test_a_restart_forgets_neither_the_cooldown_nor_what_is_held_back(bench: Bench) -> None:
    bench.accept(bench.ordered(OVER, PAIR))
    bench.route(ONE)
    bench.hear(rolled_back(2))
    again = Estimator()
    again.restore(bench.machine.snapshot())
    bench.machine = again
    declared = Entry(bucket="deployments", key="chat", value=CHAT.canonical_json(), revision=1)
    bench.take(Started(entries=(declared, bench._entry((ONE,)))))
    assert bench.declined(OVER, LINE).guard == "cooled"
    assert bench.declined(OVER, PAIR).guard == "untried"


def test_a_deployment_that_is_withdrawn_is_forgotten(bench: Bench) -> None:
    bench.hear(completed(2, gear_of(ONE)))
    bench.take(Watched(entry=Entry(bucket="deployments", key="chat", value=None, revision=9)))
    assert '"desks":[]' in bench.machine.snapshot()


def test_a_message_that_cannot_be_read_is_refused_by_its_field(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="deployment"):
        bench.take(Delivered(type="CandidatesProposed", message="{}", message_id="x"))
