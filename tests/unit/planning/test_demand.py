"""Load over windows and routers: sums, means, and the difference between silence and idleness."""

from __future__ import annotations

import pytest

from flexpipe.events.route import PlanLoad
from flexpipe.model.deployment import Policy
from flexpipe.planning.demand import SAMPLES_LIMIT, Demand, sample_of
from flexpipe.planning.wanted import HEADROOM, wanted
from unit.planning.bench import IDLE, LLAMA_7B, SILENT, busy, load_of

POLICY = Policy(load_window_s=60.0, long_load_window_s=600.0)
NOW_S = 1_700_000_000.0


def heard(*reports: tuple[float, str, int]) -> Demand:
    """Reports of (seconds ago, router, arrived)."""
    demand = Demand()
    for ago_s, router, arrived in reports:
        message = load_of(LLAMA_7B, arrived, router=router)
        demand.hear(sample_of(message, NOW_S - ago_s), POLICY.long_load_window_s)
    return demand


def test_no_report_within_the_window_is_no_data() -> None:
    short, long = heard((61.0, "r1", 5)).loads(NOW_S, POLICY)
    assert short.data == "no-data"
    assert (long.data, long.arrived_per_s) == ("busy", 1.0)
    assert Demand().loads(NOW_S, POLICY)[1].data == "no-data"


def test_reports_of_nothing_are_idle() -> None:
    short, _ = heard((5.0, "r1", 0), (1.0, "r1", 0)).loads(NOW_S, POLICY)
    assert (short.data, short.arrived_per_s) == ("idle", 0.0)


def test_arrivals_add_up_over_routers_and_average_over_time() -> None:
    demand = heard((6.0, "r1", 10), (1.0, "r1", 20), (3.0, "r2", 5))
    short, _ = demand.loads(NOW_S, POLICY)
    assert short.arrived_per_s == pytest.approx(30 / 10 + 5 / 5)
    assert (short.prompt_tokens, short.output_tokens) == (500, 200)


def test_an_idle_router_beside_a_busy_one_changes_nothing() -> None:
    short, _ = heard((1.0, "r1", 0), (1.0, "r2", 10)).loads(NOW_S, POLICY)
    assert (short.data, short.arrived_per_s) == ("busy", 2.0)


def test_a_router_that_fell_silent_beside_others_is_not_counted_on() -> None:
    short, _ = heard((30.0, "gone", 100), (1.0, "r1", 10)).loads(NOW_S, POLICY)
    assert short.arrived_per_s == 2.0


def test_a_window_shorter_than_the_reports_still_sees_the_last_one() -> None:
    quick = POLICY.paced(30)
    short, _ = heard((4.0, "r1", 10), (9.0, "r1", 50)).loads(NOW_S, quick)
    assert quick.load_window_s < 4
    assert (short.data, short.arrived_per_s) == ("busy", 2.0)


def test_latencies_are_the_worst_router_s_and_the_mean_over_tokens() -> None:
    demand = Demand()
    for router, ttft, itl, tokens in (("r1", 100.0, 10.0, 900), ("r2", 400.0, 20.0, 100)):
        plan = PlanLoad(
            plan="p-one",
            running=1,
            finished=1,
            failed=0,
            output_tokens=tokens,
            itl_p50_ms=itl,
        )
        message = load_of(LLAMA_7B, 1, router=router, plans=[plan], ttft_p95_ms=ttft)
        demand.hear(sample_of(message, NOW_S - 1), 600.0)
    short, _ = demand.loads(NOW_S, POLICY)
    assert (short.ttft_p95_ms, short.itl_p50_ms) == (400.0, 11.0)


def test_what_waits_is_counted_now_and_not_over_the_window() -> None:
    demand = Demand()
    for ago_s, waiting in ((10.0, 50), (1.0, 3)):
        message = load_of(LLAMA_7B, 1, queued=waiting)
        demand.hear(sample_of(message, NOW_S - ago_s), 600.0)
    assert demand.loads(NOW_S, POLICY)[0].queued == 3


def test_lengths_that_a_quiet_minute_cannot_know_are_those_of_the_long_window() -> None:
    short, _ = heard((300.0, "r1", 10), (1.0, "r1", 0)).loads(NOW_S, POLICY)
    assert (short.data, short.prompt_tokens, short.output_tokens) == ("idle", 500, 200)


def test_what_is_kept_is_bounded_by_age_and_number() -> None:
    demand = Demand()
    for second in range(SAMPLES_LIMIT + 100):
        message = load_of(LLAMA_7B, 1)
        demand.hear(sample_of(message, NOW_S + second / 100), 600.0)
    assert len(demand.samples) == SAMPLES_LIMIT
    demand.hear(sample_of(load_of(LLAMA_7B, 1), NOW_S + 10_000), 600.0)
    assert len(demand.samples) == 1


def test_the_order_in_which_routers_are_heard_leaves_no_trace() -> None:
    reports = [(float(ago), f"r{ago % 3}", ago) for ago in range(1, 40)]
    one, other = heard(*reports), heard(*reversed(reports))
    assert one.loads(NOW_S, POLICY) == other.loads(NOW_S, POLICY)
    assert one.samples == other.samples


def test_demand_has_headroom_and_works_off_what_waits() -> None:
    asked = wanted(busy(10, queued=60), busy(10), present_rate=50.0)
    assert asked.basis.arrived_per_s == 10
    assert asked.requests_per_s == pytest.approx(HEADROOM * 10 + 1)


def test_without_data_the_demand_is_what_the_present_gear_carries() -> None:
    asked = wanted(SILENT, SILENT, present_rate=12.0)
    assert asked.requests_per_s == pytest.approx(12.0)
    assert not asked.may_shrink


def test_without_data_what_the_long_window_saw_is_asked_for_at_least() -> None:
    assert wanted(SILENT, busy(30), present_rate=12.0).basis.arrived_per_s == 30


def test_idleness_asks_for_nothing_and_is_sure_of_it() -> None:
    asked = wanted(IDLE, busy(30), present_rate=12.0)
    assert (asked.requests_per_s, asked.may_shrink) == (0.0, True)
    assert asked.basis.prompt_tokens == 500
