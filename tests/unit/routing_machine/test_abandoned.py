"""A plan is lost and no other serves: who waits, for how long, who goes on when a plan comes, who is told what."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from flexpipe.kernel.machine import Effect
from flexpipe.model.deployment import Policy
from flexpipe.model.route import PlanState
from flexpipe.routing.attempts import GONE_GRACE_S
from flexpipe.routing.effects import EndWithError, Refuse
from flexpipe.routing.inputs import FailureKind
from flexpipe.routing.ledger import MoveCause
from flexpipe.routing.machine import Routing
from unit.routing_machine.driver import NEW, OLD, ROUTER, Driver, cuts, dispatches, handed, routed

GRACE_S = GONE_GRACE_S + 0.01


def refusals(do: Iterable[Effect]) -> list[Refuse]:
    return [each for each in do if isinstance(each, Refuse)]


def errors(do: Iterable[Effect]) -> list[EndWithError]:
    return [each for each in do if isinstance(each, EndWithError)]


def abandoned(**policy: float) -> tuple[Driver, str, str]:
    """A gear that is gone without a word of its engine: one stream, one request without a token yet."""
    driver = Driver()
    driver.start(routed(OLD), policy=Policy(**policy))  # type: ignore[arg-type]
    stream = driver.streaming()
    waiting, _ = driver.arrive()
    driver.route(shift=2, policy=Policy(**policy))
    driver.pass_time(GRACE_S)
    return driver, stream, waiting


def test_sequences_of_a_plan_that_is_gone_from_the_route_wait_and_are_replayed_by_the_next() -> (
    None
):
    driver, stream, waiting = abandoned()
    new, do = driver.arrive()
    assert do == ()
    driver.pass_time(20)
    orders = dispatches(driver.route(routed(NEW), shift=3))
    assert {(each.sequence, each.plan, each.epoch) for each in orders} == {
        (stream, NEW.id, 2),
        (waiting, NEW.id, 2),
        (new, NEW.id, 1),
    }
    assert {each.cause for each in orders if each.epoch == 2} == {MoveCause.LOST_PLAN}


def test_a_plan_that_comes_as_a_canary_takes_all_that_wait() -> None:
    driver, *_ = abandoned()
    canary = routed(NEW, PlanState.CANARY, admit=0.05)
    assert len(dispatches(driver.route(canary, shift=3, in_flight=3))) == 2


def test_what_the_lost_engine_still_says_changes_nothing() -> None:
    driver, stream, waiting = abandoned()
    assert driver.token(waiting, 1, 1) == ()
    assert driver.fail(stream, 1, FailureKind.BROKE, tokens=5) == ()
    (first, second) = dispatches(driver.route(routed(NEW), shift=3))
    assert {first.sequence, second.sequence} == {stream, waiting}


def test_where_another_plan_serves_they_go_there_at_once() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    keys = [driver.streaming() for _ in range(4)]
    driver.route(routed(NEW), shift=2)
    orders = dispatches(driver.pass_time(GRACE_S))
    assert len(orders) == 2
    assert {each.plan for each in orders} == {NEW.id}
    assert {each.sequence for each in orders} < set(keys)


def test_a_hand_over_ordered_behind_the_entry_takes_them_with_its_verdicts() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    driver.route(shift=2)
    driver.now_s += 0.1
    driver.move(old=(), lost=(OLD,))
    do = driver.pass_time(GRACE_S)
    assert cuts(do) == []
    (report,) = handed(do + driver.count({key: 5}) + driver.pass_time(1.0))
    assert [each.sequence for each in report.moved] == [key]


def test_past_the_park_limit_there_is_a_status_before_the_first_token_and_one_error_after_it() -> (
    None
):
    driver, stream, waiting = abandoned(park_limit_s=10)
    new, _ = driver.arrive()
    do = driver.pass_time(10.1)
    assert {(each.sequence, each.status, each.retry_after_s) for each in refusals(do)} == {
        (waiting, 503, 5),
        (new, 503, 5),
    }
    assert [each.sequence for each in errors(do)] == [stream]
    assert "no plan of chat took this request within 10 s" in errors(do)[0].message
    for key in (stream, waiting, new):
        driver.end(key, "error", 0)
    assert dispatches(driver.route(routed(NEW), shift=3)) == []


def test_slots_bound_new_requests_and_what_ran_keeps_its_place() -> None:
    driver, stream, waiting = abandoned(park_slots=2)
    fitting = [driver.arrive()[0] for _ in range(2)]
    refused, do = driver.arrive()
    assert [(each.sequence, each.status) for each in refusals(do)] == [(refused, 503)]
    assert refusals(do)[0].retry_after_s == 5
    driver.end(refused, "refused", 0)
    orders = dispatches(driver.route(routed(NEW), shift=3))
    assert {each.sequence for each in orders} == {stream, waiting, *fitting}


def test_no_slots_at_all_refuse_new_requests_at_once() -> None:
    driver, *_ = abandoned(park_slots=0)
    assert refusals(driver.arrive()[1])[0].status == 503


@pytest.mark.parametrize("begun", [True, False])
def test_a_request_that_cannot_be_resumed_ends_with_one_error_only_where_it_had_begun(
    begun: bool,
) -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key, _ = driver.arrive(resumable=False)
    if begun:
        driver.token(key, 1, 0)
    driver.route(shift=2)
    do = driver.pass_time(GRACE_S)
    assert len(errors(do)) == begun
    again = dispatches(driver.route(routed(NEW), shift=3))
    assert [each.sequence for each in again] == ([] if begun else [key])


def test_a_sequence_being_cut_when_its_plan_goes_is_not_waited_for() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    driver.route(routed(OLD, PlanState.FROZEN, admit=0), routed(NEW), shift=2, in_flight=2)
    driver.move()
    assert [each.sequence for each in cuts(driver.count({key: 9}))] == [key]
    (order,) = dispatches((*driver.route(routed(NEW), shift=2), *driver.pass_time(3.1)))
    assert (order.sequence, order.plan) == (key, NEW.id)


def test_a_plan_that_is_back_within_the_grace_keeps_its_sequences() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    driver.streaming()
    driver.route(shift=2)
    driver.route(routed(OLD), shift=3)
    assert dispatches(driver.pass_time(GRACE_S)) == []


def test_a_router_restored_at_any_point_of_it_does_the_same() -> None:
    driver, stream, _ = abandoned(park_limit_s=10, park_slots=1)
    driver.arrive()
    driver.arrive()
    driver.route(routed(NEW, PlanState.CANARY, admit=0.05), shift=3, in_flight=3)
    driver.now_s += 0.5
    driver.token(stream, 2, 9, pause_ms=700.0)
    driver.pass_time(12)
    machine = Routing(ROUTER, "http://r")
    for (now_s, event), said in zip(driver.fed, driver.said, strict=True):
        fresh = Routing(ROUTER, "http://r")
        fresh.restore(machine.snapshot())
        assert fresh.handle(now_s, event) == said
        machine = fresh
