"""What plans and gears deliver under a load, and up to which rate they hold an SLO."""

from __future__ import annotations

import pytest

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import EngineSettings, ModelRef, Slo
from flexpipe.model.gear import EMPTY_GEAR
from flexpipe.model.outlook import Load
from flexpipe.performance.outlook import (
    DEFAULT_OUTPUT_TOKENS,
    DEFAULT_PROMPT_TOKENS,
    LONGEST_WAIT_MS,
    MAX_RUNNING,
    PATH_MS,
    PLAYED_STEP_MS,
    SteadyState,
    balanced_gear,
    gear_outlook,
    plan_outlook,
)
from flexpipe.performance.starting import cold_start_s, start_s
from flexpipe.performance.steps import step_times
from flexpipe.testing.builders import a_gear
from flexpipe.testing.llamas import (
    A100,
    H100,
    L40S,
    LLAMA_2_7B,
    LLAMA_2_70B,
    a_llama,
    a_load,
    a_plan_of,
)

FAST = a_plan_of(LLAMA_2_7B, H100)
SLOW = a_plan_of(LLAMA_2_7B, L40S)
DEPLOYMENT = a_llama()


def steady(prompt: float = 512.0, output: float = 256.0) -> SteadyState:
    times = step_times(FAST, LLAMA_2_7B, "bfloat16", context_tokens=prompt + output / 2)
    return SteadyState(times, prompt_tokens=prompt, output_tokens=output)


def test_the_batch_follows_little_s_law() -> None:
    point = steady().at_rate(5.0)
    assert point.batch == pytest.approx(5.0 * 256 * point.itl_ms / 1e3, rel=1e-3)
    assert point.requests_per_s == pytest.approx(5.0, rel=1e-3)


def test_reading_prompts_takes_its_time_from_decoding() -> None:
    short, long = steady(prompt=64.0).at_rate(8.0), steady(prompt=2048.0).at_rate(8.0)
    assert long.itl_ms > 1.2 * short.itl_ms


def test_a_request_that_does_not_fit_is_never_served() -> None:
    plan = type(FAST)(**{**dict(FAST), "kv_tokens": 100})
    seen = plan_outlook(plan, DEPLOYMENT, a_load(1.0))
    assert seen.good_requests_per_s == 0
    assert seen.tokens_per_s == 0
    assert seen.ttft_p50_ms >= LONGEST_WAIT_MS


def test_an_overloaded_plan_gives_what_it_can_and_its_queue_has_no_end() -> None:
    at_most = plan_outlook(FAST, DEPLOYMENT, a_load(1e6))
    more = plan_outlook(FAST, DEPLOYMENT, a_load(1e7))
    assert at_most.tokens_per_s == more.tokens_per_s < 1e6
    assert at_most.ttft_p50_ms >= LONGEST_WAIT_MS
    assert steady().at_rate(1e6).batch == min(MAX_RUNNING, (FAST.kv_tokens or 0) / (512 + 256))


def test_the_good_rate_is_where_the_slo_is_met_and_a_little_more_breaks_it() -> None:
    slo = Slo(ttft_ms=300, itl_ms=12)
    deployment = a_llama(slo=slo)
    good = plan_outlook(FAST, deployment, a_load(1.0)).good_requests_per_s
    below = plan_outlook(FAST, deployment, a_load(0.99 * good))
    above = plan_outlook(FAST, deployment, a_load(1.01 * good))
    assert below.itl_p50_ms <= slo.itl_ms < above.itl_p50_ms
    assert below.ttft_p50_ms <= slo.ttft_ms


def test_an_slo_that_not_even_one_request_meets_gives_no_good_rate() -> None:
    outlook = plan_outlook(FAST, a_llama(slo=Slo(ttft_ms=2000, itl_ms=3)), a_load(1.0))
    assert outlook.good_requests_per_s == 0
    assert outlook.itl_p50_ms > 3


@pytest.mark.parametrize("data", ["idle", "no-data"])
def test_without_traffic_a_plan_is_judged_by_the_default_request_at_rest(data: str) -> None:
    load = Load.model_validate({"data": data, "window_s": 60.0, "arrived_per_s": 9.0})
    quiet = plan_outlook(FAST, DEPLOYMENT, load)
    assert quiet.tokens_per_s == 0
    assert 0 < quiet.itl_p50_ms < 10
    assert quiet.capacity_tokens == FAST.kv_tokens
    usual = a_load(1e-6, DEFAULT_PROMPT_TOKENS, DEFAULT_OUTPUT_TOKENS)
    busy = plan_outlook(FAST, DEPLOYMENT, usual)
    assert quiet.good_requests_per_s == busy.good_requests_per_s
    assert quiet.ttft_p50_ms == pytest.approx(busy.ttft_p50_ms, rel=1e-3)


def test_an_emulated_deployment_is_predicted_in_the_real_seconds_of_its_scale() -> None:
    """Everything but what the machine adds is `time_scale` times as fast, and rates as high."""
    scaled = a_llama(time_scale=10.0, slo=Slo(ttft_ms=1e5, itl_ms=1e4))
    plain = a_llama(slo=Slo(ttft_ms=1e5, itl_ms=1e4))
    one, ten = (plan_outlook(FAST, plain, a_load(2.0)), plan_outlook(FAST, scaled, a_load(20.0)))
    path, step = PATH_MS["emulated"], PLAYED_STEP_MS["emulated"]
    assert ten.itl_p50_ms - step == pytest.approx((one.itl_p50_ms - step) / 10)
    assert ten.ttft_p50_ms - path == pytest.approx((one.ttft_p50_ms - path) / 10)
    assert ten.tokens_per_s == pytest.approx(10 * one.tokens_per_s)
    assert ten.capacity_tokens == one.capacity_tokens


def test_an_slo_of_a_stored_deployment_is_one_of_real_seconds() -> None:
    declared = a_llama(time_scale=10.0, slo=Slo(ttft_ms=4000, itl_ms=150))
    good = plan_outlook(FAST, declared.paced(), a_load(1.0)).good_requests_per_s
    step = PLAYED_STEP_MS["emulated"]
    at_good = plan_outlook(FAST, declared, a_load(good)).itl_p50_ms
    assert at_good <= 15.0
    assert at_good - step > 0


def test_a_gear_divides_its_load_by_weight() -> None:
    gear = a_gear(FAST, SLOW, weights=(3.0, 1.0))
    outlook = gear_outlook(gear, DEPLOYMENT, a_load(4.0))
    parts = {plan.plan: plan for plan in outlook.plans}
    assert [plan.plan for plan in outlook.plans] == sorted(parts)
    assert parts[FAST.id] == plan_outlook(FAST, DEPLOYMENT, a_load(3.0))
    assert parts[SLOW.id] == plan_outlook(SLOW, DEPLOYMENT, a_load(1.0))
    assert outlook.good_requests_per_s == pytest.approx(
        min(parts[FAST.id].good_requests_per_s / 0.75, parts[SLOW.id].good_requests_per_s / 0.25)
    )
    assert outlook.good_tokens_per_s == pytest.approx(4.0 * 256)
    assert outlook.itl_p50_ms == pytest.approx(
        0.75 * parts[FAST.id].itl_p50_ms + 0.25 * parts[SLOW.id].itl_p50_ms
    )


def test_good_tokens_stop_growing_where_the_slo_breaks() -> None:
    gear = a_gear(SLOW)
    good = gear_outlook(gear, DEPLOYMENT, a_load(1.0)).good_requests_per_s
    for rate in (2 * good, 20 * good):
        assert gear_outlook(gear, DEPLOYMENT, a_load(rate)).good_tokens_per_s == pytest.approx(
            good * 256
        )


def test_the_empty_gear_delivers_nothing() -> None:
    assert gear_outlook(EMPTY_GEAR, DEPLOYMENT, a_load(1.0)).good_tokens_per_s == 0


def test_a_balanced_gear_gives_each_plan_what_it_can_bear() -> None:
    load = a_load(10.0)
    gear = balanced_gear([SLOW, FAST], DEPLOYMENT, load)
    assert gear == balanced_gear([FAST, SLOW], DEPLOYMENT, load)
    rates = {
        plan.id: plan_outlook(plan, DEPLOYMENT, load).good_requests_per_s for plan in (FAST, SLOW)
    }
    assert gear.weight(SLOW.id) == 1.0
    assert gear.weight(FAST.id) == pytest.approx(rates[FAST.id] / rates[SLOW.id], rel=0.06)
    equal = gear_outlook(a_gear(FAST, SLOW), DEPLOYMENT, load)
    assert gear_outlook(gear, DEPLOYMENT, load).good_requests_per_s > equal.good_requests_per_s


def test_plans_that_never_hold_the_slo_share_alike() -> None:
    gear = balanced_gear([FAST, SLOW], a_llama(slo=Slo(ttft_ms=1, itl_ms=1)), a_load(1.0))
    assert {share.weight for share in gear.shares} == {1.0}


def test_a_deployment_whose_model_was_never_read_is_refused() -> None:
    bare = DEPLOYMENT.model_copy(update={"model": ModelRef(name="m", path="/m")})
    for ask in (
        lambda: plan_outlook(FAST, bare, a_load(1.0)),
        lambda: start_s(FAST, bare),
    ):
        with pytest.raises(InvalidInput, match="apply the deployment again"):
            ask()


# -- cold starts ----------------------------------------------------------------------------------


def test_a_cold_start_is_the_engine_s_own_and_the_weights_of_the_fullest_node() -> None:
    """Llama-2-7B on an A100, weights at 1.78 GB/s: 45.0 s were measured."""
    plan = a_plan_of(LLAMA_2_7B, A100)
    engine = EngineSettings(kind="sglang", form="cuda", load_gb_s=1.78)
    assert cold_start_s(plan, LLAMA_2_7B, engine) == pytest.approx(45.0, rel=0.05)


def test_two_nodes_read_their_halves_side_by_side() -> None:
    engine = EngineSettings(kind="sglang", form="cuda")
    one = cold_start_s(a_plan_of(LLAMA_2_70B, A100, tp=4), LLAMA_2_70B, engine)
    two = cold_start_s(a_plan_of(LLAMA_2_70B, A100, tp=4, pp=2), LLAMA_2_70B, engine)
    assert one - two == pytest.approx(137.95 / 2, abs=0.1)


def test_a_declared_start_is_taken_as_it_is_and_emulated_time_is_scaled() -> None:
    deployment = a_llama(time_scale=6.0)
    engine = deployment.engine.model_copy(update={"start_s": 30.0})
    declared = deployment.model_copy(update={"engine": engine})
    assert start_s(FAST, declared) == 5.0
    assert start_s(FAST, deployment) == pytest.approx((37.0 + 13.48) / 6.0, abs=0.01)
