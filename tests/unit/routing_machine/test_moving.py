"""The hand-over: verdicts in force, batches, reports, fences, undo, lost plans, time limits."""

from flexpipe.events.plan import CommandSuperseded
from flexpipe.kernel.ids import traceparent
from flexpipe.kernel.machine import Effect, Span
from flexpipe.model.deployment import Policy
from flexpipe.model.route import PlanState, RoutedPlan
from flexpipe.model.sequence import Verdict
from flexpipe.routing.effects import EndWithError
from flexpipe.routing.inputs import ClientGone, FailureKind
from flexpipe.routing.ledger import MoveCause
from flexpipe.routing.machine import Routing
from unit.routing_machine.driver import (
    NEW,
    OLD,
    Driver,
    counts,
    cuts,
    dispatches,
    handed,
    messages,
    routed,
)

FROZEN: tuple[RoutedPlan, ...] = (routed(OLD, PlanState.FROZEN, admit=0), routed(NEW))
UNDONE: tuple[RoutedPlan, ...] = (routed(OLD), routed(NEW, PlanState.RETIRING, admit=0))
COMMITTED: tuple[RoutedPlan, ...] = (routed(OLD, PlanState.RETIRING, admit=0), routed(NEW))


def freeze(driver: Driver, **fields: object) -> None:
    driver.route(*FROZEN, shift=2, in_flight=2, **fields)


def told(do: tuple[Effect, ...]) -> dict[str, Verdict]:
    return {moved.sequence: moved.verdict for report in handed(do) for moved in report.moved}


def test_a_stream_is_cut_replayed_and_reported_with_its_pause() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming(tokens=5)
    freeze(driver)
    (question,) = counts(driver.move())
    assert question.sequences == (key,)
    (cut,) = cuts(driver.count({key: 20}))
    assert (cut.sequence, cut.plan, cut.epoch) == (key, OLD.id, 1)
    (order,) = dispatches(driver.cut(key, 1, 22))
    assert (order.plan, order.epoch, order.cause) == (NEW.id, 2, MoveCause.CHOSEN)
    (report,) = handed(driver.token(key, 2, 23, pause_ms=41.5))
    assert (report.remaining, report.staying) == (0, 0)
    (moved,) = report.moved
    assert moved.verdict is Verdict.REPLAY
    assert (moved.from_plan, moved.to_plan) == (OLD.id, NEW.id)
    assert (moved.tokens, moved.epoch, moved.pause_ms) == (22, 2, 41.5)


def test_with_nothing_to_move_the_answer_comes_at_once() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    freeze(driver)
    (report,) = handed(driver.move())
    assert (report.moved, report.remaining, report.staying) == ((), 0, 0)


def test_the_command_waits_for_the_route_that_it_names() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    driver.streaming()
    assert driver.move(revision=2) == ()
    do = driver.route(*FROZEN, shift=2, in_flight=2)
    assert counts(do)


def test_each_sequence_gets_its_verdict_and_the_answer_names_all() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    streaming = driver.streaming(tokens=5)
    waiting, _ = driver.arrive()
    short = driver.streaming(tokens=95)
    relayed = driver.streaming(tokens=0, resumable=False)
    freeze(driver)
    driver.move()
    do = driver.count({streaming: 5, short: 95})
    assert {cut.sequence for cut in cuts(do)} == {streaming, waiting}
    do = driver.cut(streaming, 1, 5) + driver.cut(waiting, 1, 0)
    assert {order.sequence for order in dispatches(do)} == {streaming, waiting}
    do += driver.token(streaming, 2, 6, 10.0)
    do += driver.token(waiting, 2, 1)
    assert told(do) == {
        streaming: Verdict.REPLAY,
        waiting: Verdict.REQUEUE,
        short: Verdict.FINISH,
        relayed: Verdict.FINISH,
    }
    last = handed(do)[-1]
    assert (last.remaining, last.staying) == (0, 2)


def test_sequences_move_by_priority_then_by_length_in_batches_of_bounded_tokens() -> None:
    driver = Driver()
    policy = Policy(move_batch_tokens=100)
    driver.start(routed(OLD), policy=policy)
    for name, priority, prompt in (("a", 0, 60), ("b", 0, 70), ("c", 1, 40), ("d", 1, 50)):
        driver.streaming(name, priority=priority, prompt=prompt, tokens=1)
    freeze(driver, policy=policy)
    driver.move()
    first = cuts(driver.count(dict.fromkeys("abcd", 1)))
    assert [cut.sequence for cut in first] == ["d", "c"]
    driver.cut("d", 1, 1)
    assert cuts(driver.cut("c", 1, 1)) == []
    driver.token("d", 2, 2, 1.0)
    second = cuts(driver.token("c", 2, 2, 1.0))
    assert [cut.sequence for cut in second] == ["b"]
    driver.cut("b", 1, 1)
    assert [cut.sequence for cut in cuts(driver.token("b", 2, 2, 1.0))] == ["a"]


def test_a_sequence_that_was_moved_to_its_limit_finishes_where_it_is_unless_forced() -> None:
    policy = Policy(moves_limit=1)
    driver = Driver()
    driver.start(routed(OLD), policy=policy)
    key = driver.streaming()
    freeze(driver, policy=policy)
    driver.move()
    driver.count({key: 5})
    driver.cut(key, 1, 5)
    driver.token(key, 2, 6, 1.0)
    driver.route(
        routed(NEW, PlanState.FROZEN, admit=0), routed(OLD), shift=3, in_flight=3, policy=policy
    )
    driver.move(11, old=(NEW,), new=(OLD,))
    do = driver.count({key: 6})
    assert told(do) == {key: Verdict.FINISH}
    driver.move(12, old=(NEW,), new=(OLD,), forced=True)
    assert cuts(driver.count({key: 7}))
    (order,) = dispatches(driver.cut(key, 2, 7))
    assert order.cause is MoveCause.DEADLINE


def test_a_stop_leaves_everything_where_it_is() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    driver.route(routed(OLD, PlanState.FROZEN, admit=0), shift=2, in_flight=2)
    driver.move(new=(), finish_all=True)
    (report,) = handed(driver.count({key: 9}))
    assert (report.remaining, report.staying) == (0, 1)
    assert report.moved[0].verdict is Verdict.FINISH


def test_a_lost_plan_is_left_without_a_cut() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    keys = [driver.streaming() for _ in range(4)]
    driver.route(routed(NEW), shift=2)
    driver.move(old=(), lost=(OLD,))
    do = driver.count(dict.fromkeys(keys, 5))
    assert cuts(do) == []
    orders = dispatches(do)
    assert len(orders) == 2
    assert {(order.plan, order.cause, order.epoch) for order in orders} == {
        (NEW.id, MoveCause.LOST_PLAN, 2)
    }
    # Word from the lost plan's connection, still open somewhere, concerns nobody.
    assert driver.fail(orders[0].sequence, 1, FailureKind.BROKE, tokens=5) == ()


def test_a_lost_plan_without_a_successor_leaves_sequences_waiting_which_counts_as_handed_over() -> (
    None
):
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    driver.route(shift=2)
    driver.move(old=(), lost=(OLD,))
    (report,) = handed(driver.count({key: 5}))
    assert report.remaining == 0
    assert (report.moved[0].to_plan, report.moved[0].pause_ms) == (None, None)
    (order,) = dispatches(driver.route(routed(NEW), shift=3))
    assert order.plan == NEW.id
    driver.token(key, 2, 6, pause_ms=900.0)
    (late,) = handed(driver.pass_time(0.3))
    assert (late.moved[0].to_plan, late.moved[0].pause_ms) == (NEW.id, 900.0)


def test_what_cannot_be_resumed_ends_with_one_error_when_its_plan_is_lost() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    keys = [driver.streaming(resumable=False, tokens=0) for _ in range(4)]
    driver.route(routed(NEW), shift=2)
    do = driver.move(old=(), lost=(OLD,))
    ended = [each.sequence for each in do if isinstance(each, EndWithError)]
    assert len(ended) == 2
    assert set(ended) < set(keys)
    assert handed(do)[-1].remaining == 0


def test_the_undo_moves_sequences_back_the_same_way_and_does_not_count() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    freeze(driver)
    driver.move()
    driver.count({key: 5})
    driver.cut(key, 1, 5)
    driver.token(key, 2, 6, 1.0)
    driver.route(*UNDONE, shift=2)
    driver.move(11, old=(NEW,), new=(OLD,))
    assert cuts(driver.count({key: 8}))
    (order,) = dispatches(driver.cut(key, 2, 8))
    assert (order.plan, order.epoch, order.cause) == (OLD.id, 3, MoveCause.UNDO)
    (report,) = handed(driver.token(key, 3, 9, 2.0))
    assert report.remaining == 0


def test_an_undo_that_meets_a_half_done_hand_over_brings_everything_home() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    cutting, waiting = driver.streaming("cutting"), driver.streaming("waiting")
    freeze(driver)
    driver.move()
    driver.count({cutting: 5, waiting: 5})
    driver.cut(waiting, 1, 5)  # dispatched to the new plan, no token yet
    driver.route(*UNDONE, shift=2)
    do = driver.move(11, old=(NEW,), new=(OLD,))
    do += driver.count({cutting: 5, waiting: 5})
    assert [cut.sequence for cut in cuts(do)] == [waiting]
    do = driver.cut(cutting, 1, 6) + driver.cut(waiting, 2, 5)
    assert {(order.sequence, order.plan) for order in dispatches(do)} == {
        (cutting, OLD.id),
        (waiting, OLD.id),
    }
    do = driver.token(waiting, 3, 6, 3.0) + driver.token(cutting, 2, 7, 3.0)
    assert handed(do)[-1].remaining == 0


def test_an_engine_that_does_not_let_go_is_left_behind() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    freeze(driver)
    driver.move()
    driver.count({key: 5})
    assert dispatches(driver.pass_time(2.9)) == []
    (order,) = dispatches(driver.pass_time(0.2))
    assert (order.plan, order.epoch) == (NEW.id, 2)
    # Its late answer is of an epoch gone by.
    assert driver.cut(key, 1, 9) == ()


def test_counts_that_never_come_do_not_hold_up_the_hand_over() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    freeze(driver)
    driver.move()
    assert [cut.sequence for cut in cuts(driver.pass_time(1.1))] == [key]


def test_a_sequence_that_ends_before_its_cut_is_reported_as_ended() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    freeze(driver)
    driver.move()
    driver.count({key: 5})
    (report,) = handed(driver.end(key, "length", 100))
    assert report.remaining == 0
    assert "ended" in report.moved[0].reason


def test_a_client_that_leaves_in_mid_move_is_not_waited_for() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    freeze(driver)
    driver.move()
    driver.count({key: 5})
    driver.cut(key, 1, 5)
    (report,) = handed(driver.feed(ClientGone(sequence=key, tokens=5)))
    assert report.remaining == 0


def test_an_engine_that_dies_while_its_sequences_wait_to_be_cut_counts_as_a_cut() -> None:
    driver = Driver()
    policy = Policy(move_batch_tokens=1)
    driver.start(routed(OLD), policy=policy)
    one, two = driver.streaming("one"), driver.streaming("two")
    freeze(driver, policy=policy)
    driver.move()
    (cut,) = cuts(driver.count({one: 5, two: 5}))
    assert cut.sequence == one
    (order,) = dispatches(driver.fail(two, 1, FailureKind.BROKE, tokens=6))
    assert (order.sequence, order.plan) == (two, NEW.id)
    driver.token(two, 2, 7, 5.0)
    driver.cut(one, 1, 5)
    (report,) = handed(driver.token(one, 2, 6, 5.0))
    assert {moved.sequence for moved in report.moved} == {one, two}
    assert report.remaining == 0


def test_nothing_is_cut_while_no_plan_would_take_it() -> None:
    driver = Driver()
    driver.start(routed(OLD), routed(NEW))
    keys = [driver.streaming() for _ in range(2)]
    probe, do = driver.arrive()
    (order,) = dispatches(do)
    driver.fail(probe, order.epoch, FailureKind.UNREACHABLE)
    driver.feed(ClientGone(sequence=probe, tokens=0))
    # Whatever is dead of the two: freeze the one that lives.
    dead = OLD if order.plan == OLD.id else NEW
    alive = NEW if dead is OLD else OLD
    driver.route(routed(alive, PlanState.FROZEN, admit=0), routed(dead), shift=2, in_flight=2)
    other, do = driver.arrive()
    (order,) = dispatches(do)  # a newer entry: it is tried again
    driver.fail(other, order.epoch, FailureKind.UNREACHABLE)
    do = driver.move(old=(alive,), new=(dead,))
    do += driver.count(dict.fromkeys(keys, 5))
    assert cuts(do) == []
    driver.route(routed(alive, PlanState.FROZEN, admit=0), routed(dead), shift=2, in_flight=2)
    assert len(cuts(driver.said[-1].do)) == 1


def test_a_lower_fence_is_superseded_and_an_equal_one_is_answered_again() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    freeze(driver)
    (first,) = handed(driver.move(10))
    (again,) = handed(driver.move(10, message_id="other"))
    assert again == first
    (old,) = messages(driver.move(9))
    assert isinstance(old, CommandSuperseded)
    assert (old.fence.step, old.highest.step) == (9, 10)
    ids = [
        effect.message_id
        for said in driver.said
        for effect in said.do
        if hasattr(effect, "message_id")
    ]
    assert len(ids) == len(set(ids))


def test_a_repeat_while_the_hand_over_runs_is_answered_by_its_end() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    freeze(driver)
    driver.move(10)
    driver.count({key: 5})
    assert driver.move(10, message_id="again") == ()
    driver.cut(key, 1, 5)
    assert handed(driver.token(key, 2, 6, 1.0))


def test_a_retry_under_a_new_step_tells_what_moved_before() -> None:
    driver = Driver()
    policy = Policy(move_batch_tokens=1)
    driver.start(routed(OLD), policy=policy)
    one, two = driver.streaming("one"), driver.streaming("two")
    freeze(driver, policy=policy)
    driver.move(10)
    driver.count({one: 5, two: 5})
    driver.cut(one, 1, 5)
    driver.token(one, 2, 6, 7.0)
    do = driver.move(11) + driver.count({two: 5})
    do += driver.cut(two, 1, 5) + driver.token(two, 2, 6, 8.0)
    moved = {each.sequence: each.pause_ms for report in handed(do) for each in report.moved}
    assert moved == {one: 7.0, two: 8.0}
    assert {report.fence.step for report in handed(do)} == {11}


def test_a_retiring_plans_deadline_moves_what_it_can() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    short, relayed = driver.streaming(tokens=95), driver.streaming(tokens=0, resumable=False)
    driver.route(*COMMITTED, shift=2)
    do = driver.move(forced=True) + driver.count({short: 95})
    assert [cut.sequence for cut in cuts(do)] == [short]
    assert [each.sequence for each in do if isinstance(each, EndWithError)] == [relayed]


def test_a_moved_sequence_is_a_span_under_the_commands_trace() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    key = driver.streaming()
    freeze(driver)
    driver.move(traceparent=traceparent("a" * 32, "b" * 16))
    driver.count({key: 5})
    driver.now_s += 0.1
    driver.cut(key, 1, 5)
    driver.now_s += 0.2
    (span,) = [each for each in driver.token(key, 2, 6, 55.0) if isinstance(each, Span)]
    assert (span.trace_id, span.parent_span_id) == ("a" * 32, "b" * 16)
    assert round(span.end_s - span.start_s, 6) == 0.3
    assert span.attributes["pause_ms"] == 55.0


def test_moved_sequences_go_before_those_that_are_new() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    moved = driver.streaming()
    driver.route(shift=2)
    fresh, _ = driver.arrive(priority=9)
    driver.move(old=(), lost=(OLD,))
    driver.count({moved: 5})
    do = driver.route(routed(NEW), shift=3)
    assert [order.sequence for order in dispatches(do)] == [moved, fresh]


def test_a_new_life_forgets_sequences_and_keeps_the_fence() -> None:
    driver = Driver()
    driver.start(routed(OLD))
    driver.streaming()
    freeze(driver)
    driver.move(10)
    later = Driver(machine=Routing("router-1", "http://r"))
    later.machine.restore(driver.machine.snapshot())
    later.start(*FROZEN, shift=2, in_flight=2)
    assert isinstance(messages(later.move(9))[0], CommandSuperseded)
    (report,) = handed(later.move(11))
    assert report.remaining == 0


def test_replayed_inputs_give_the_same_effects_also_from_a_snapshot_in_the_middle() -> None:
    driver = Driver()
    driver.start(routed(OLD), policy=Policy(move_batch_tokens=40))
    keys = [driver.streaming(f"s{index}", priority=index % 3, tokens=3) for index in range(9)]
    driver.arrive()
    freeze(driver, policy=Policy(move_batch_tokens=40))
    driver.move()
    do = driver.count(dict.fromkeys(keys, 7))
    for _ in range(12):
        for cut in cuts(do):
            driver.cut(cut.sequence, cut.epoch, 8)
        driver.pass_time(0.1)
        do = ()
        for effects in driver.said[-20:]:
            for order in dispatches(effects.do):
                do += driver.token(order.sequence, order.epoch, 9, 12.0)
    driver.fail(keys[0], 2, FailureKind.BROKE, tokens=11)
    driver.pass_time(12)
    said = [effects.canonical_json() for effects in driver.said]
    for start in range(0, len(driver.fed), 7):
        fresh = Routing("router-1", "http://r")
        replayed = []
        for index, (now_s, event) in enumerate(driver.fed):
            if index == start:
                text = fresh.snapshot()
                fresh = Routing("router-1", "http://r")
                fresh.restore(text)
                assert fresh.snapshot() == text
            replayed.append(fresh.handle(now_s, event).canonical_json())
        assert replayed == said
