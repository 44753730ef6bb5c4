"""The loop does not flap: a simulated hour of real planner, estimator and executor under loads made to tempt them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flexpipe.costing import Estimator
from flexpipe.model.deployment import Policy
from flexpipe.testing.world import Line
from simulation.looping import FLEET, Loop, Rate, a_plan_on, holds_up_to

TESTS = Path(__file__).parents[1]
HOUR_S = 3600.0
ONE = a_plan_on("b1/g0")
TWO = a_plan_on("b1/g1")


def sine(mean: float, swing: float, period_s: float) -> Rate:
    """A load that swings smoothly."""
    return lambda s: mean * (1 + swing * math.sin(2 * math.pi * s / period_s))


def square(mean: float, swing: float, period_s: float) -> Rate:
    """A load that jumps to and fro, low first."""
    return lambda s: mean * (1 + (swing if s % period_s >= period_s / 2 else -swing))


@pytest.mark.parametrize(
    ("shape", "swing", "period_s", "seconds"),
    [
        (sine, 0.3, 120.0, HOUR_S),  # quicker than the long window
        (sine, 0.3, 1200.0, HOUR_S),  # slower
        (square, 0.5, 40.0, HOUR_S / 4),  # quicker than the short one
    ],
)
def test_a_load_that_swings_around_what_the_gear_carries_leads_to_one_shift_at_most(
    shape: Callable[[float, float, float], Rate], swing: float, period_s: float, seconds: float
) -> None:
    loop = Loop([ONE])
    loop.traffic(shape(holds_up_to(loop.first), swing, period_s), seconds)
    assert len(loop.ordered()) <= 1
    assert loop.completed() == len(loop.ordered())


def test_a_load_that_swings_around_what_two_plans_carry_leads_to_one_shift_at_most() -> None:
    loop = Loop([ONE, TWO])
    loop.traffic(square(holds_up_to(loop.first), 0.2, 600.0), HOUR_S / 2)
    assert len(loop.ordered()) <= 1


def test_the_whole_fleet_tempts_to_no_more() -> None:
    loop = Loop([ONE], fleet=FLEET)
    loop.traffic(sine(holds_up_to(loop.first), 0.3, 120.0), HOUR_S / 6)
    assert len(loop.ordered()) <= 1


def test_a_steady_load_leads_to_no_shift() -> None:
    loop = Loop([ONE])
    loop.traffic(lambda _: 0.97 * holds_up_to(loop.first), HOUR_S)
    assert loop.ordered() == ()
    assert loop.completed() == 0


def test_no_traffic_leads_to_no_shift() -> None:
    loop = Loop([ONE, TWO])
    loop.traffic(lambda _: 0.0, HOUR_S / 6)
    assert loop.ordered() == ()


@pytest.mark.parametrize("factor", [1.3, 3.0])
def test_a_load_that_has_grown_for_good_leads_to_exactly_one_shift(factor: float) -> None:
    loop = Loop([ONE])
    holds = holds_up_to(loop.first)
    loop.traffic(lambda s: (0.5 if s < 600 else factor) * holds, HOUR_S / 2)
    assert len(loop.ordered()) == 1
    assert loop.completed() == 1
    assert holds_up_to(loop.in_force()) >= factor * holds


def test_a_plan_that_is_lost_within_the_cooldown_is_replaced_at_once() -> None:
    loop = Loop([ONE])
    holds = holds_up_to(loop.first)
    loop.traffic(lambda s: (0.5 if s < 300 else 1.6) * holds, 300)
    loop.traffic_until(lambda: loop.completed() == 1, lambda _: 1.6 * holds, limit_s=600)
    committed_s = loop.world.now_s
    for plan in loop.in_force().plans:
        if plan != ONE:
            loop.kill_rank(plan.nodes[0], plan.id)
    loop.traffic_until(lambda: len(loop.ordered()) == 2, lambda _: 1.6 * holds, limit_s=60)
    ordered_s = loop.ordered()[-1].order.ordered_at_s
    assert ordered_s - committed_s < 15
    assert ordered_s - committed_s < loop.deployment.policy.cooldown_s
    assert "lost" in loop.ordered()[-1].order.trigger


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_deployment_that_lost_everything_is_served_again_traffic_or_not(share: float) -> None:
    loop = Loop([ONE])
    rate = share * holds_up_to(loop.first)
    loop.traffic(lambda _: rate, 120)
    lost_s = loop.world.now_s
    loop.kill_rank("b1", ONE.id)
    loop.traffic_until(lambda: loop.completed() == 1, lambda _: rate, limit_s=120)
    assert loop.ordered()[0].order.ordered_at_s - lost_s < 5
    assert loop.in_force().plans
    assert len(loop.ordered()) == 1


def test_a_pinned_deployment_is_left_alone_whatever_comes() -> None:
    loop = Loop([ONE])
    loop.pin()
    loop.traffic(lambda _: 3 * holds_up_to(loop.first), HOUR_S / 6)
    assert loop.ordered() == ()
    assert "unpinned" in loop.guards()


def test_a_loop_that_is_switched_off_orders_nothing() -> None:
    loop = Loop([ONE], policy=Policy(automatic=False))
    loop.traffic(lambda _: 3 * holds_up_to(loop.first), HOUR_S / 12)
    assert loop.ordered() == ()
    assert "automatic" in loop.guards()


def lives(loop: Loop) -> list[list[Line]]:
    return [life for life in loop.estimator.lives if life]


def a_short_story() -> Loop:
    """Growth, a loss within the cooldown, and the shifts that follow."""
    loop = Loop([ONE])
    holds = holds_up_to(loop.first)
    loop.traffic(lambda s: (0.5 if s < 100 else 1.6) * holds, 400)
    loop.kill_rank("b1", ONE.id)
    loop.traffic(lambda _: 1.6 * holds, 200)
    return loop


def test_the_journal_of_the_estimator_gives_the_same_effects_again() -> None:
    for life in lives(a_short_story()):
        machine = Estimator()
        effects = [machine.handle(line.now_s, line.event).canonical_json() for line in life]
        assert effects == [line.effects for line in life]


def test_an_estimator_restored_from_a_snapshot_goes_on_as_the_one_that_gave_it() -> None:
    (life,) = lives(a_short_story())
    machine = Estimator()
    for place, line in enumerate(life):
        machine.handle(line.now_s, line.event)
        if place % 60:
            continue
        again = Estimator()
        again.restore(machine.snapshot())
        assert again.snapshot() == machine.snapshot()
        rest = [again.handle(each.now_s, each.event).canonical_json() for each in life[place + 1 :]]
        assert rest == [each.effects for each in life[place + 1 :]]


def test_the_hash_seed_of_the_process_changes_nothing() -> None:
    tell = (
        "from simulation.test_flapping import a_short_story, lives\n"
        "for life in lives(a_short_story()):\n"
        "    for line in life:\n"
        "        print(line.effects)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", tell],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(TESTS)},
            cwd=TESTS,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert "OrderShift" in printed.pop()
