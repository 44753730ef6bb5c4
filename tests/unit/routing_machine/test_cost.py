"""What an input costs does not grow with what is in flight: counted in interpreter steps, the same everywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from flexpipe.model.deployment import Policy
from flexpipe.model.route import PlanState
from unit.routing_machine.driver import NEW, OLD, Driver, dispatches, routed

FEW, MANY = 40, 400
POLICY = Policy(park_slots=10_000, move_batch_tokens=10**9)


def steps_of(work: Callable[[], object]) -> int:
    """Byte codes that `work` runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def busy(count: int) -> Driver:
    driver = Driver()
    driver.start(routed(OLD), policy=POLICY)
    for _ in range(count):
        driver.streaming(tokens=5)
    return driver


def a_request(count: int) -> float:
    driver = busy(count)

    def work() -> None:
        key, _ = driver.arrive()
        driver.token(key, 1, 1)
        driver.end(key)

    return steps_of(work)


def a_moved_sequence(count: int) -> float:
    driver = busy(count)
    frozen = routed(OLD, PlanState.FROZEN, admit=0)
    driver.route(frozen, routed(NEW), shift=2, in_flight=2, policy=POLICY)
    keys = [f"s{number:03d}" for number in range(1, count + 1)]

    def work() -> None:
        driver.move()
        driver.count(dict.fromkeys(keys, 5))
        for key in keys:
            for order in dispatches(driver.cut(key, 1, 5)):
                driver.token(key, order.epoch, 6, 1.0)

    return steps_of(work) / count


@pytest.mark.parametrize("cost", [a_request, a_moved_sequence])
def test_an_input_costs_the_same_however_much_is_in_flight(cost: Callable[[int], float]) -> None:
    assert cost(MANY) < 1.25 * cost(FEW)
