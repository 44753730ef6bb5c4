"""What a router says of load and of canaries, with the figures that a planner and a judge of canaries reckon with."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pydantic import ValidationError

from flexpipe.events.route import CanaryObserved, LoadObserved
from flexpipe.kernel.machine import Effect, Entry, Started, Watched
from flexpipe.model.deployment import Policy
from flexpipe.model.route import PlanState
from flexpipe.routing.inputs import FailureKind, ReportsPaced, RequestArrived
from flexpipe.routing.machine import Routing
from flexpipe.routing.reports import CANARY_EVERY_S
from unit.routing_machine.driver import (
    DEPLOYMENT,
    NEW,
    OLD,
    ROUTER,
    Driver,
    counts,
    dispatches,
    entry,
    messages,
    routed,
)


def loads(do: Iterable[Effect]) -> list[LoadObserved]:
    return [each for each in messages(do, "LoadObserved") if isinstance(each, LoadObserved)]


def canaries(do: Iterable[Effect]) -> list[CanaryObserved]:
    return [each for each in messages(do, "CanaryObserved") if isinstance(each, CanaryObserved)]


def test_load_tells_the_prompt_tokens_of_what_arrived_whatever_became_of_it() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    driver.arrive(prompt=100)
    driver.arrive(prompt=23)
    relayed, _ = driver.arrive(prompt=7, resumable=False)
    driver.end(relayed, "refused", 0)
    (load,) = loads(driver.pass_time(5.1))
    assert (load.arrived, load.prompt_tokens) == (3, 130)
    (load,) = loads(driver.pass_time(5))
    assert (load.arrived, load.prompt_tokens) == (0, 0)


def test_load_tells_the_p95_of_all_plans_together_from_arrival_to_first_token() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    arrived = [driver.arrive() for _ in range(20)]
    assert len({dispatches(do)[0].plan for _, do in arrived}) == 2
    for key, _ in arrived:
        driver.now_s += 0.125
        driver.token(key, 1, 1)
    (load,) = loads(driver.pass_time(4.0))
    assert load.ttft_p95_ms == pytest.approx(19 * 125.0)  # the 19th of 20
    assert {each.ttft_p99_ms for each in load.plans} == {2375.0, 2500.0}
    assert loads(driver.pass_time(6.0))[0].ttft_p95_ms is None


def test_no_requests_are_zeros_in_every_window_for_every_deployment_with_a_route_entry() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    other = entry().model_copy(update={"deployment": "other"})
    shown = Entry(bucket="routes", key="other", value=other.canonical_json(), revision=9)
    driver.feed(Watched(entry=shown))
    told = loads(driver.pass_time(25.1))
    assert [each.deployment for each in told] == [DEPLOYMENT, "other"] * 5
    assert {(each.arrived, each.queued, each.parked, each.prompt_tokens) for each in told} == {
        (0, 0, 0, 0)
    }
    assert {each.window_s for each in told} == {5.0}


def test_the_window_of_load_follows_the_routers_setting_and_outlives_it() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    driver.feed(ReportsPaced(load_every_s=0.5))
    told = loads(driver.pass_time(5.1))
    assert [each.window_s for each in told] == [0.5] * 10
    later = Routing(ROUTER, "http://r")
    later.restore(driver.machine.snapshot())
    again = Driver(machine=later, now_s=driver.now_s)
    again.feed(Started(entries=()))
    again.route(routed(OLD))
    assert len(loads(again.pass_time(5.1))) == 10
    again.feed(ReportsPaced(load_every_s=60))
    assert len(loads(again.pass_time(121))) == 3  # the one under way, and two long ones


@pytest.mark.parametrize("load_every_s", [0.4, 61, float("nan")])
def test_a_window_outside_its_bounds_is_refused(load_every_s: float) -> None:
    with pytest.raises(ValidationError):
        ReportsPaced(load_every_s=load_every_s)


def test_a_canary_is_told_with_the_medians_of_its_requests_so_far() -> None:
    driver = Driver()
    driver.start(routed(NEW, PlanState.CANARY), in_flight=1)
    for wait_s in (0.25, 0.5, 1.0):
        key, _ = driver.arrive()
        driver.now_s += wait_s
        (told,) = canaries(driver.token(key, 1, 1))
    assert (told.requests, told.ttft_p50_ms, told.itl_p50_ms) == (3, 500.0, None)
    driver.now_s += 1.0
    (told,) = canaries(driver.end(key, "stop", 11))
    assert (told.requests, told.ttft_p50_ms, told.itl_p50_ms) == (3, 500.0, 100.0)


def test_a_flood_at_a_canary_is_a_few_reports_once_it_has_passed() -> None:
    driver = Driver()
    driver.start(routed(NEW, PlanState.CANARY), in_flight=1)
    passing = Policy().canary_requests
    told = []
    for _ in range(passing + 100):
        key, _ = driver.arrive()
        driver.now_s += 0.01
        told += canaries(driver.token(key, 1, 1))
    assert [each.requests for each in told[:passing]] == list(range(1, passing + 1))
    assert 1 <= len(told) - passing <= 100 * 0.01 / CANARY_EVERY_S + 1


def test_a_canarys_latency_is_told_again_when_its_running_requests_were_counted() -> None:
    driver = Driver()
    driver.start(routed(NEW, PlanState.CANARY), in_flight=1)
    key, _ = driver.arrive()
    driver.token(key, 1, 1)
    driver.pass_time(5.0)
    (told,) = canaries(driver.count({key: 51}))
    assert told.itl_p50_ms == 100.0
    driver.pass_time(5.0)
    assert canaries(driver.count({key: 51})) == []


def test_what_a_request_waited_for_before_its_dispatch_is_not_the_canarys() -> None:
    driver = Driver()
    driver.start()
    key, _ = driver.arrive()
    driver.now_s += 30.0
    assert dispatches(driver.route(routed(NEW, PlanState.CANARY), in_flight=1))
    driver.now_s += 0.25
    (told,) = canaries(driver.token(key, 1, 1))
    assert told.ttft_p50_ms == 250.0


def test_a_sequence_that_moves_to_a_canary_tells_nothing_of_its_ttft() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    driver.fail(key, 1, FailureKind.BROKE, tokens=5)
    driver.route(routed(NEW, PlanState.CANARY), in_flight=1)
    (told,) = canaries(driver.token(key, 2, 6))
    assert (told.requests, told.ttft_p50_ms) == (1, None)


def test_a_new_canary_begins_without_the_figures_of_the_one_before() -> None:
    driver = Driver()
    driver.start(routed(NEW, PlanState.CANARY), in_flight=1)
    key, _ = driver.arrive()
    driver.token(key, 1, 1)
    driver.route(routed(OLD))
    driver.route(routed(NEW, PlanState.CANARY), shift=2, in_flight=2)
    key, _ = driver.arrive()
    driver.now_s += 0.125
    (told,) = canaries(driver.token(key, 1, 1))
    assert (told.shift, told.requests, told.ttft_p50_ms) == (2, 1, 125.0)


def test_a_deployment_that_nobody_declared_has_no_load() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    asked = RequestArrived(
        sequence="x", deployment="nobodys", prompt_tokens=9, max_tokens=1, resumable=True
    )
    driver.feed(asked)
    (load,) = loads(driver.pass_time(5.1))
    assert (load.deployment, load.prompt_tokens) == (DEPLOYMENT, 0)
    assert counts(driver.said[-1].do) == []
