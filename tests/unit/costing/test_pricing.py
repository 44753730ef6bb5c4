"""Gain and cost of a change, against figures worked out by hand."""

from __future__ import annotations

import pytest

from flexpipe.costing.pricing import LATE_WORTH, net_tokens, outlook_under, price
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import Candidate, GearOutlook, PlanOutlook, Price
from flexpipe.performance.outlook import gear_outlook
from flexpipe.performance.starting import start_s
from flexpipe.performance.steps import step_times
from simulation.looping import CHAT, LLAMA_2_7B, OUTPUT_TOKENS, PROMPT_TOKENS, a_load
from unit.costing.bench import ONE, TWO, WIDE, gear_of

LOAD = a_load(10.0)
PAIR = gear_of(ONE, TWO)


def delivering(
    gear: Gear, tokens_per_s: float, *, stays_s: float = 600.0, itl_ms: float = 20.0
) -> Candidate:
    """A gear that is said to deliver so much."""
    each = tokens_per_s / len(gear.plans)
    plans = tuple(
        PlanOutlook(
            plan=plan.id,
            ttft_p50_ms=50.0,
            itl_p50_ms=itl_ms,
            tokens_per_s=each,
            good_requests_per_s=each / OUTPUT_TOKENS,
            capacity_tokens=100_000,
            bound_by="weights",
        )
        for plan in gear.plans
    )
    outlook = GearOutlook(plans=plans, good_tokens_per_s=tokens_per_s)
    starts = tuple(plan.id for plan in gear.plans if plan != ONE)
    return Candidate(gear=gear, outlook=outlook, starts=starts, stays_s=stays_s)


NOTHING = Candidate(gear=Gear(), outlook=GearOutlook(), stays_s=600.0)
SINGLE = delivering(gear_of(ONE), 1000.0)
START_S = start_s(TWO, CHAT)


def rows(of: Price) -> dict[str, float]:
    return {what: value for what, value, _ in of.rows}


def test_the_gain_is_what_is_delivered_more_over_the_horizon_less_the_start() -> None:
    reckoned = price(CHAT, LOAD, SINGLE, delivering(PAIR, 1600.0))
    assert reckoned.start_s == START_S
    assert reckoned.gain_tokens == pytest.approx(600.0 * (600.0 - START_S))
    assert reckoned.horizon_s == 600.0


def test_the_horizon_ends_where_the_blocks_go() -> None:
    reckoned = price(CHAT, LOAD, SINGLE, delivering(PAIR, 1600.0, stays_s=200.0))
    assert reckoned.gain_tokens == pytest.approx(600.0 * (200.0 - START_S))


def test_a_start_that_outlasts_the_horizon_gains_nothing() -> None:
    reckoned = price(CHAT, LOAD, SINGLE, delivering(PAIR, 1600.0, stays_s=START_S / 2))
    assert reckoned.gain_tokens <= 0


def test_a_gear_that_goes_counts_until_then_only() -> None:
    going = SINGLE.model_copy(update={"stays_s": 100.0})
    reckoned = price(CHAT, LOAD, going, delivering(gear_of(TWO), 1000.0))
    left_s = 100.0 - START_S
    assert reckoned.gain_tokens == pytest.approx(1000.0 * (600.0 - START_S - left_s))


def test_a_gear_that_goes_before_the_start_is_over_counts_for_nothing() -> None:
    going = SINGLE.model_copy(update={"stays_s": 10.0})
    reckoned = price(CHAT, LOAD, going, delivering(gear_of(TWO), 1000.0))
    assert reckoned.gain_tokens == pytest.approx(1000.0 * (600.0 - START_S))


def test_an_addition_moves_nothing_and_costs_its_canary_alone() -> None:
    reckoned = price(CHAT, LOAD, SINGLE, delivering(PAIR, 1600.0))
    canary_s = CHAT.policy.canary_limit_s  # eight requests at half a request a second take longer
    assert (reckoned.replay_tokens, reckoned.switch_s) == (0.0, canary_s)
    lost = canary_s * CHAT.policy.canary_share * 1000.0
    late = canary_s * 600.0
    assert reckoned.cost_tokens == pytest.approx(lost + late)


def test_a_canary_is_over_sooner_where_much_comes() -> None:
    reckoned = price(CHAT, a_load(80.0), SINGLE, delivering(PAIR, 1600.0))
    assert reckoned.switch_s == pytest.approx(8 / (0.05 * 80.0))


def test_sequences_that_move_are_prefilled_again_at_the_new_gear_s_rate() -> None:
    reckoned = price(CHAT, LOAD, SINGLE, delivering(gear_of(WIDE), 1600.0))
    running = 1000.0 * 0.020
    context = PROMPT_TOKENS + OUTPUT_TOKENS / 2
    rate = step_times(WIDE, LLAMA_2_7B, "bfloat16", context_tokens=context).prefill_tokens_per_s
    assert reckoned.replay_tokens == pytest.approx(running * context)
    hand_over_s = reckoned.replay_tokens / rate
    assert rows(reckoned)["hand-over"] == pytest.approx(hand_over_s)
    assert rows(reckoned)["lost while prompts are replayed"] == pytest.approx(hand_over_s * 1600.0)
    assert rows(reckoned)["lost by sequences that wait"] == pytest.approx(hand_over_s / 2 * 1000.0)


def test_a_first_gear_costs_nothing_because_nothing_runs() -> None:
    reckoned = price(CHAT, LOAD, NOTHING, delivering(gear_of(TWO), 1000.0))
    assert reckoned.switch_s == 0.0
    assert reckoned.cost_tokens == 0.0
    assert reckoned.gain_tokens == pytest.approx(1000.0 * (600.0 - START_S))


def test_late_tokens_count_a_little_only_where_the_gear_in_force_goes() -> None:
    late = delivering(gear_of(TWO), 1000.0)
    late = late.model_copy(
        update={"outlook": late.outlook.model_copy(update={"good_tokens_per_s": 0.0})}
    )
    from_nothing = price(CHAT, LOAD, NOTHING, late)
    assert from_nothing.gain_tokens == pytest.approx(LATE_WORTH * 1000.0 * (600.0 - START_S))
    idle = SINGLE.model_copy(
        update={"outlook": SINGLE.outlook.model_copy(update={"good_tokens_per_s": 0.0})}
    )
    assert price(CHAT, LOAD, idle, late).gain_tokens == 0.0


def test_the_table_says_what_went_into_the_price_with_units() -> None:
    reckoned = price(CHAT, LOAD, SINGLE, delivering(gear_of(WIDE), 1600.0))
    table = rows(reckoned)
    assert len(table) == len(reckoned.rows)
    assert all(unit for _, _, unit in reckoned.rows)
    assert table["gain"] == reckoned.gain_tokens
    assert table["cost"] == reckoned.cost_tokens
    parts = ("lost while prompts are replayed", "lost by sequences that wait")
    parts += ("lost by the canary's clients", "gain that comes later")
    assert sum(table[part] for part in parts) == pytest.approx(reckoned.cost_tokens)
    assert net_tokens(reckoned, 1.4) == reckoned.gain_tokens - 1.4 * reckoned.cost_tokens


@pytest.mark.parametrize("scale", [4.0, 50.0])
def test_a_scaled_run_reckons_in_real_seconds_and_comes_to_the_same_tokens(scale: float) -> None:
    engine = CHAT.engine.model_copy(update={"time_scale": scale})
    paced = CHAT.model_copy(update={"engine": engine}).paced()
    stays_s, itl_ms = 600.0 / scale, 20.0 / scale
    plain = price(CHAT, LOAD, SINGLE, delivering(gear_of(WIDE), 1600.0))
    quick = price(
        paced,
        a_load(10.0 * scale),
        delivering(gear_of(ONE), 1000.0 * scale, stays_s=stays_s, itl_ms=itl_ms),
        delivering(gear_of(WIDE), 1600.0 * scale, stays_s=stays_s, itl_ms=itl_ms),
    )
    assert quick.gain_tokens == pytest.approx(plain.gain_tokens)
    assert quick.cost_tokens == pytest.approx(plain.cost_tokens)
    assert quick.replay_tokens == pytest.approx(plain.replay_tokens)
    assert quick.start_s * scale == pytest.approx(plain.start_s)
    assert quick.switch_s * scale == pytest.approx(plain.switch_s)
    assert quick.horizon_s * scale == pytest.approx(plain.horizon_s)


def test_an_outlook_under_another_load_counts_what_is_alive_alone() -> None:
    known = gear_outlook(gear_of(ONE), CHAT, LOAD)
    half_dead = Candidate(gear=PAIR, outlook=known, stays_s=600.0)
    under = outlook_under(half_dead, CHAT, a_load(14.0)).outlook
    assert [plan.plan for plan in under.plans] == [ONE.id]
    assert under == gear_outlook(gear_of(ONE), CHAT, a_load(14.0))
