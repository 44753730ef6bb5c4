"""Who gets in, who waits, who is sent away, and what becomes of failed attempts."""

import pytest

from flexpipe.events.route import CanaryObserved, RouteApplied, SequenceClosed
from flexpipe.kernel.machine import Entry, Put, Stored, Watched
from flexpipe.model.deployment import Deployment, EngineSettings, Policy
from flexpipe.model.route import PlanState
from flexpipe.routing.effects import EndWithError, Probe, Refuse, RereadRoutes, ServeModels
from flexpipe.routing.inputs import (
    ClientGone,
    FailureKind,
    ProbeAnswered,
    RequestArrived,
    RouteLearned,
    RouterStopping,
)
from flexpipe.routing.ledger import MoveCause
from unit.routing_machine.driver import (
    DEPLOYMENT,
    MODEL,
    NEW,
    OLD,
    ROUTER,
    Driver,
    dispatches,
    entry,
    messages,
    routed,
)


def refusals(do: object) -> list[Refuse]:
    return [each for each in do if isinstance(each, Refuse)]  # type: ignore[attr-defined]


def errors(do: object) -> list[EndWithError]:
    return [each for each in do if isinstance(each, EndWithError)]  # type: ignore[attr-defined]


def test_a_request_goes_to_a_plan_under_its_first_epoch_and_the_entrys_fence() -> None:
    driver = Driver()
    driver.start(routed(OLD), term=3, shift=7)
    _, do = driver.arrive()
    (order,) = dispatches(do)
    assert (order.plan, order.epoch, order.fence) == (OLD.id, 1, "3.7.0")


def test_an_applied_entry_is_said_after_it_is_in_force() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    do = driver.route(routed(OLD, PlanState.FROZEN, admit=0), routed(NEW), shift=2, in_flight=2)
    (applied,) = messages(do, "RouteApplied")
    assert isinstance(applied, RouteApplied)
    assert (applied.revision, applied.shift) == (2, 2)


def test_after_a_freeze_nothing_is_dispatched_to_the_frozen_plan() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    driver.route(routed(OLD, PlanState.FROZEN, admit=0), routed(NEW), shift=2, in_flight=2)
    orders = [order for _ in range(20) for order in dispatches(driver.arrive()[1])]
    assert {order.plan for order in orders} == {NEW.id}


def test_without_a_plan_requests_wait_in_bounded_slots_and_the_next_is_refused() -> None:
    driver = Driver()
    driver.start(policy=Policy(park_slots=2))
    for _ in range(2):
        assert driver.arrive()[1] == ()
    (refusal,) = refusals(driver.arrive()[1])
    assert (refusal.status, refusal.code) == (503, "overloaded")
    assert refusal.retry_after_s is not None


def test_a_parked_request_goes_on_when_a_plan_admits() -> None:
    driver = Driver()
    driver.start()
    low, _ = driver.arrive(priority=0)
    high, _ = driver.arrive(priority=1)
    do = driver.route(routed(OLD))
    assert [order.sequence for order in dispatches(do)] == [high, low]


def test_a_parked_request_is_refused_at_the_park_limit() -> None:
    driver = Driver()
    driver.start(policy=Policy(park_limit_s=7))
    key, _ = driver.arrive()
    assert refusals(driver.pass_time(6.9)) == []
    (refusal,) = refusals(driver.pass_time(0.2))
    assert (refusal.sequence, refusal.status) == (key, 503)


def test_an_unknown_deployment_is_404_and_leaves_nothing_behind() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    before = driver.machine.snapshot()
    asked = RequestArrived(
        sequence="x", deployment="other", prompt_tokens=1, max_tokens=1, resumable=True
    )
    (refusal,) = refusals(driver.feed(asked))
    assert refusal.status == 404
    assert driver.machine.snapshot() == before


def test_a_stopped_deployment_is_503_and_parked_requests_are_told() -> None:
    driver = Driver()
    driver.start()
    key, _ = driver.arrive()
    do = driver.route(stopped=True, shift=2)
    assert [refusal.sequence for refusal in refusals(do)] == [key]
    (refusal,) = refusals(driver.arrive()[1])
    assert (refusal.status, refusal.code) == (503, "deployment_stopped")


def test_a_router_that_stops_takes_nothing_new_and_leaves_its_seat_alone() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    driver.feed(RouterStopping())
    assert refusals(driver.arrive()[1])[0].code == "shutting_down"
    gone = Entry(bucket="roster", key=ROUTER, value=None, revision=9)
    assert driver.feed(Watched(entry=gone)) == ()


def test_a_router_whose_seat_is_gone_writes_it_again_and_reads_the_routes_anew() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    gone = Entry(bucket="roster", key=ROUTER, value=None, revision=9)
    (put,) = driver.feed(Watched(entry=gone))
    assert isinstance(put, Put)
    assert (put.bucket, put.key, put.expected) == ("roster", ROUTER, 9)
    stored = Stored(write_id=put.write_id, outcome="written", entries=(gone,))
    assert driver.feed(stored) == (RereadRoutes(),)


def test_models_are_told_with_the_shortest_context_and_whether_they_serve() -> None:
    driver = Driver()
    declared = Deployment(
        name=DEPLOYMENT, model=MODEL, engine=EngineSettings(kind="emulated", max_total_tokens=4096)
    )
    driver.feed(
        Watched(
            entry=Entry(
                bucket="deployments", key=DEPLOYMENT, value=declared.canonical_json(), revision=1
            )
        )
    )
    do = driver.route(routed(OLD))
    (told,) = [each for each in do if isinstance(each, ServeModels)]
    assert [(m.deployment, m.serves, m.context_tokens) for m in told.models] == [
        (DEPLOYMENT, True, 4096)
    ]
    again = driver.route(routed(OLD))
    assert not [each for each in again if isinstance(each, ServeModels)]


@pytest.mark.parametrize("count", [20])
def test_client_mistakes_never_count_against_a_plan(count: int) -> None:
    driver = Driver()
    driver.start(routed(OLD))
    for _ in range(count):
        key, do = driver.arrive()
        (order,) = dispatches(do)
        do = driver.fail(key, order.epoch, FailureKind.CLIENT, status=400)
        assert refusals(do)[0].status == 400
        driver.end(key, "refused", 0)
    assert dispatches(driver.arrive()[1])[0].plan == OLD.id


def test_a_full_engine_is_tried_elsewhere_at_once_and_again_after_a_while() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    key, do = driver.arrive()
    first = dispatches(do)[0]
    second = dispatches(driver.fail(key, first.epoch, FailureKind.BUSY))[0]
    assert {first.plan, second.plan} == {OLD.id, NEW.id}
    assert dispatches(driver.fail(key, second.epoch, FailureKind.BUSY)) == []
    (third,) = dispatches(driver.pass_time(0.6))
    assert third.epoch == 3


def test_twenty_busy_answers_do_not_make_a_plan_dead() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key, do = driver.arrive()
    for _ in range(20):
        (order,) = dispatches(do)
        driver.fail(key, order.epoch, FailureKind.BUSY)
        do = driver.pass_time(0.6)
    assert dispatches(driver.arrive()[1])


def test_an_engine_that_cannot_be_reached_gets_nothing_until_it_is_seen_alive() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    key, do = driver.arrive()
    first = dispatches(do)[0]
    (second,) = dispatches(driver.fail(key, first.epoch, FailureKind.UNREACHABLE))
    assert second.plan != first.plan
    assert {dispatches(driver.arrive()[1])[0].plan for _ in range(10)} == {second.plan}
    (probe,) = [each for each in driver.pass_time(0.6) if isinstance(each, Probe)]
    assert probe.plan == first.plan
    driver.feed(ProbeAnswered(plan=first.plan, alive=False))
    assert [each for each in driver.pass_time(0.6) if isinstance(each, Probe)]
    driver.feed(ProbeAnswered(plan=first.plan, alive=True))
    assert first.plan in {dispatches(driver.arrive()[1])[0].plan for _ in range(12)}


def test_an_engine_that_dies_mid_stream_is_replayed_elsewhere_without_counting_as_a_move() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    key, do = driver.arrive()
    first = dispatches(do)[0]
    driver.token(key, 1, 4)
    (again,) = dispatches(driver.fail(key, 1, FailureKind.BROKE, tokens=9))
    assert (again.epoch, again.cause) == (2, MoveCause.LOST_PLAN)
    assert again.plan != first.plan
    driver.token(key, 2, 10)
    (closed,) = messages(driver.end(key, "stop", 12), "SequenceClosed")
    assert isinstance(closed, SequenceClosed)
    assert closed.moves == 0


def test_without_another_plan_a_broken_stream_waits_for_the_entry_to_change() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    assert dispatches(driver.fail(key, 1, FailureKind.BROKE, tokens=9)) == []
    (order,) = dispatches(driver.route(routed(NEW), shift=2))
    assert (order.sequence, order.plan, order.epoch) == (key, NEW.id, 2)


def test_a_broken_stream_that_finds_no_plan_ends_with_one_error_at_the_park_limit() -> None:
    driver = Driver()
    driver.start(routed(OLD), policy=Policy(park_limit_s=10))
    key = driver.streaming()
    driver.fail(key, 1, FailureKind.BROKE, tokens=9)
    assert [each.sequence for each in errors(driver.pass_time(11))] == [key]


def test_a_stream_that_cannot_be_resumed_ends_with_one_clear_error() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    key = driver.streaming(resumable=False)
    do = driver.fail(key, 1, FailureKind.BROKE)
    (error,) = errors(do)
    assert "tools" in error.message
    assert dispatches(do) == []


def test_a_request_that_breaks_engine_after_engine_ends() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key, do = driver.arrive()
    for epoch in range(1, 4):
        assert [order.epoch for order in dispatches(do)] == [epoch]
        driver.fail(key, epoch, FailureKind.BROKE)
        do = driver.route(routed(OLD))
    (refusal,) = refusals(driver.fail(key, 4, FailureKind.BROKE))
    assert refusal.status == 502


def test_three_server_errors_in_a_row_make_a_plan_dead_and_a_token_between_them_does_not() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    for _ in range(2):
        key, _ = driver.arrive()
        driver.fail(key, 1, FailureKind.SERVER)
        driver.feed(ClientGone(sequence=key, tokens=0))
    driver.streaming()
    for _ in range(2):
        key, do = driver.arrive()
        assert dispatches(do)
        driver.fail(key, 1, FailureKind.SERVER)
        driver.feed(ClientGone(sequence=key, tokens=0))
    key, do = driver.arrive()
    assert dispatches(do)
    driver.fail(key, 1, FailureKind.SERVER)
    assert dispatches(driver.arrive()[1]) == []


def test_a_gates_refusal_with_a_newer_entry_is_applied_at_once() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key, _ = driver.arrive()
    frozen = entry(routed(OLD, PlanState.FROZEN, admit=0), routed(NEW), shift=2, in_flight=2)
    driver.feed(RouteLearned(entry=frozen.canonical_json()))
    (order,) = dispatches(driver.fail(key, 1, FailureKind.GATE))
    assert (order.plan, order.fence) == (NEW.id, "1.2.0")
    # What the watch shows later, but was written earlier, does not turn it back.
    canary = (routed(OLD, admit=0.95), routed(NEW, PlanState.CANARY, admit=0.05))
    driver.route(*canary, shift=2, in_flight=2)
    assert {dispatches(driver.arrive()[1])[0].plan for _ in range(8)} == {NEW.id}
    # The undo, which is later in the shift, does.
    driver.route(routed(OLD), routed(NEW, PlanState.RETIRING, admit=0), shift=2)
    assert {dispatches(driver.arrive()[1])[0].plan for _ in range(8)} == {OLD.id}


def test_a_gates_refusal_with_an_older_entry_changes_nothing() -> None:
    driver = Driver()
    driver.start(routed(NEW), shift=5)
    driver.feed(RouteLearned(entry=entry(routed(OLD), shift=4).canonical_json()))
    driver.feed(RouteLearned(entry="not json"))
    assert dispatches(driver.arrive()[1])[0].plan == NEW.id


def test_an_old_picture_of_a_route_does_not_turn_back_time() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    driver.route(routed(NEW), shift=2)
    stale = entry(routed(OLD), shift=1)
    shown = Entry(bucket="routes", key=DEPLOYMENT, value=stale.canonical_json(), revision=1)
    assert messages(driver.feed(Watched(entry=shown)), "RouteApplied") == []
    assert dispatches(driver.arrive()[1])[0].plan == NEW.id


def test_an_unreadable_entry_leaves_the_last_one_in_force() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    broken = Entry(bucket="routes", key=DEPLOYMENT, value="{]", revision=8)
    driver.feed(Watched(entry=broken))
    assert dispatches(driver.arrive()[1])[0].plan == OLD.id


def test_canaries_are_counted_at_first_tokens_and_at_faults_of_their_own() -> None:
    driver = Driver()
    driver.start(routed(NEW, PlanState.CANARY), in_flight=1)
    key, _ = driver.arrive()
    (observed,) = messages(driver.token(key, 1, 1), "CanaryObserved")
    assert isinstance(observed, CanaryObserved)
    assert (observed.requests, observed.errors) == (1, 0)
    other, _ = driver.arrive()
    assert messages(driver.fail(other, 1, FailureKind.BUSY), "CanaryObserved") == []
    third, _ = driver.arrive()
    (observed,) = messages(driver.fail(third, 1, FailureKind.BROKE), "CanaryObserved")
    assert isinstance(observed, CanaryObserved)
    assert (observed.requests, observed.errors) == (1, 1)


def test_load_is_told_every_five_seconds_also_when_there_is_none() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    loads = messages(driver.pass_time(15.1), "LoadObserved")
    assert [load.arrived for load in loads] == [0, 0, 0]  # type: ignore[attr-defined]
    key, _ = driver.arrive()
    driver.now_s += 0.5
    driver.token(key, 1, 1)
    do = driver.pass_time(5)
    do += driver.count({key: 21})
    (load,) = messages(do, "LoadObserved")
    (of_plan,) = load.plans  # type: ignore[attr-defined]
    assert (of_plan.running, of_plan.output_tokens, of_plan.ttft_p50_ms) == (1, 21, 500.0)


def test_closed_sequences_are_reported_at_a_bounded_rate_and_violations_always() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    reported = 0
    for _ in range(400):
        key, _ = driver.arrive()
        reported += len(messages(driver.end(key), "SequenceClosed"))
    assert reported <= 250
    key, _ = driver.arrive()
    assert messages(driver.end(key, "ledger-violation"), "SequenceClosed")
