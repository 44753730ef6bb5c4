"""What the machine hears too late, and what comes again after it has forgotten."""

from __future__ import annotations

from collections import Counter

from flexpipe.model.deployment import Policy
from flexpipe.model.route import PlanState
from flexpipe.routing.effects import EndWithError, Refuse
from flexpipe.routing.inputs import FailureKind
from unit.routing_machine.driver import (
    NEW,
    OLD,
    Driver,
    cuts,
    dispatches,
    handed,
    plan,
    routed,
)

KEPT = plan("cpu-2")


def errors(do: object) -> list[EndWithError]:
    assert isinstance(do, tuple)
    return [each for each in do if isinstance(each, EndWithError)]


def test_content_that_came_from_a_plan_just_lost_ends_what_cannot_be_resumed_at_once() -> None:
    """Its first byte was on the way when the plan was lost: the status is open no more, and nobody can go on."""
    driver = Driver()
    driver.start(routed(OLD))
    key, _ = driver.arrive(resumable=False)
    driver.route(shift=2)
    driver.move(old=(), new=(), lost=(OLD,))
    (end,) = errors(driver.token(key, 1, 0))
    assert end.sequence == key
    assert "cannot be resumed (tools)" in end.message


def test_content_that_came_from_a_plan_just_lost_is_known_when_patience_ends() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key, _ = driver.arrive()
    driver.route(shift=2)
    driver.move(old=(), new=(), lost=(OLD,))
    assert not errors(driver.token(key, 1, 1))
    do = driver.pass_time(Policy().park_limit_s + 1)
    assert [each.sequence for each in errors(do)] == [key]
    assert not [each for each in do if isinstance(each, Refuse)]


def test_first_tokens_of_epochs_gone_by_change_nothing_else() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    key, do = driver.arrive()
    first = dispatches(do)[0]
    driver.route(routed(NEW if first.plan == OLD.id else OLD), shift=2)
    lost = OLD if first.plan == OLD.id else NEW
    (again,) = dispatches(driver.move(old=(), new=(), lost=(lost,)))
    assert driver.token(key, 1, 1) == ()
    assert (again.epoch, again.plan != first.plan) == (2, True)


def test_moved_sequences_go_to_new_and_kept_plans_by_their_weights() -> None:
    """From the freeze on a new plan is no canary any more, though only the commit makes it active."""
    driver = Driver()
    driver.start(routed(OLD))
    keys = [driver.streaming(tokens=5) for _ in range(12)]
    kept = routed(KEPT, admit=1.0)
    new = routed(NEW, PlanState.CANARY, admit=2.0)
    driver.route(routed(OLD, PlanState.FROZEN, admit=0), kept, new, shift=2, in_flight=2)
    driver.move()
    driver.count(dict.fromkeys(keys, 5))
    went: Counter[str] = Counter()
    for key in keys:
        for order in dispatches(driver.cut(key, 1, 5)):
            went[order.plan] += 1
    assert went == {NEW.id: 8, KEPT.id: 4}


def test_a_hand_over_that_an_earlier_life_left_undone_is_answered_at_once() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming(tokens=5)
    driver.route(routed(OLD, PlanState.FROZEN, admit=0), routed(NEW), shift=2, in_flight=2)
    driver.move(step=10, message_id="m10")
    assert cuts(driver.count({key: 5}))
    driver.start(
        routed(OLD, PlanState.FROZEN, admit=0), routed(NEW), shift=2, in_flight=2
    )  # a new process, before the bus has heard an answer or an ack
    (report,) = handed(driver.move(step=10, message_id="m10"))
    assert (report.remaining, report.moved) == (0, ())


def test_a_request_that_was_refused_while_it_waited_to_be_cut_is_let_alone() -> None:
    """Its engine called it a mistake; the service is closing it when its turn comes."""
    driver = Driver()
    policy = Policy(move_batch_tokens=1)
    driver.start(routed(OLD), policy=policy)
    driver.streaming("one")
    driver.arrive("two")
    driver.route(routed(OLD, PlanState.FROZEN, admit=0), routed(NEW), shift=2, policy=policy)
    driver.move()
    (cut,) = cuts(driver.count({"one": 5}))
    assert cut.sequence == "one"
    (refused,) = driver.fail("two", 1, FailureKind.CLIENT)
    assert isinstance(refused, Refuse)
    driver.cut("one", 1, 5)
    do = driver.token("one", 2, 6, 5.0)
    assert cuts(do) == []
    assert handed(do)[-1].remaining == 0
    assert cuts(driver.end("two", "refused", 0)) == []
