"""How requests are shared out among plans."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flexpipe.model.route import PlanState
from flexpipe.routing.picking import Candidate, PickMemory, pick_moved, pick_new
from unit.routing_machine.driver import NEW, OLD, Driver, dispatches, plan, routed


def candidates(*shares: float, canary: float | None = None) -> tuple[Candidate, ...]:
    regular = tuple(
        Candidate(plan=f"p-{index}", share=share, running=0, canary=False)
        for index, share in enumerate(shares)
    )
    if canary is None:
        return regular
    return (*regular, Candidate(plan="p-canary", share=canary, running=0, canary=True))


def picks(count: int, chosen: tuple[Candidate, ...], memory: PickMemory) -> Counter[str | None]:
    return Counter(pick_new(chosen, 0, memory) for _ in range(count))


def test_requests_are_shared_in_proportion_to_what_plans_admit() -> None:
    assert picks(300, candidates(2, 1), PickMemory()) == {"p-0": 200, "p-1": 100}


@given(st.lists(st.floats(0.05, 10), min_size=1, max_size=5), st.integers(1, 200))
def test_after_any_number_of_picks_no_plan_is_more_than_one_off_its_share_a_plan(
    shares: list[float], count: int
) -> None:
    seen = picks(count, candidates(*shares), PickMemory())
    for index, share in enumerate(shares):
        exact = count * share / sum(shares)
        assert abs(seen[f"p-{index}"] - exact) <= len(shares)


def test_a_plan_that_is_slow_to_finish_gets_less_than_its_share() -> None:
    slow = Candidate(plan="p-slow", share=1, running=20, canary=False)
    fast = Candidate(plan="p-fast", share=1, running=1, canary=False)
    seen = Counter(pick_new((fast, slow), 0, memory := PickMemory()) for _ in range(10))
    assert seen == {"p-fast": 10}
    assert memory.credits["p-slow"] <= 1  # and no burst follows


def test_a_canary_takes_five_in_a_hundred() -> None:
    shared = candidates(0.95, canary=0.05)
    assert picks(100, shared, PickMemory())["p-canary"] == 5


def test_a_canary_takes_low_priority_first() -> None:
    shared = candidates(0.9, canary=0.1)
    memory = PickMemory()
    taken = []
    for index in range(200):
        priority = 0 if index % 4 == 0 else 5
        if pick_new(shared, priority, memory) == "p-canary":
            taken.append(priority)
    assert 18 <= len(taken) <= 22
    assert set(taken) == {0}


def test_a_canary_is_not_starved_where_all_requests_matter() -> None:
    shared = candidates(0.9, canary=0.1)
    memory = PickMemory()
    priorities = [0] + [5] * 199
    taken = [p for p in priorities if pick_new(shared, p, memory) == "p-canary"]
    assert len(taken) >= 17


def test_a_moving_sequence_never_lands_on_a_canary_beside_another_plan() -> None:
    shared = candidates(0.5, canary=0.5)
    assert {pick_moved(shared, PickMemory()) for _ in range(20)} == {"p-0"}


def test_the_machine_spreads_requests_over_the_plans_of_the_entry() -> None:
    driver = Driver()
    third = plan("cpu-2")
    driver.start(routed(OLD, admit=2), routed(NEW), routed(third))
    seen = Counter(dispatches(driver.arrive()[1])[0].plan for _ in range(40))
    assert seen == {OLD.id: 20, NEW.id: 10, third.id: 10}


def test_the_machine_gives_a_canary_its_share_and_reports_it() -> None:
    driver = Driver()
    driver.start(routed(OLD, admit=0.95), routed(NEW, PlanState.CANARY, admit=0.05), in_flight=1)
    seen = Counter(dispatches(driver.arrive()[1])[0].plan for _ in range(100))
    assert seen[NEW.id] == 5
