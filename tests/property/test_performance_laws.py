"""Laws that every prediction keeps, whatever plan, model and load."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flexpipe.model.deployment import Slo
from flexpipe.model.plan import Plan
from flexpipe.performance.devices import DEVICES
from flexpipe.performance.outlook import SteadyState, plan_outlook
from flexpipe.performance.steps import StepTimes, step_times
from flexpipe.testing.llamas import LLAMA_2_7B, LLAMA_2_70B, a_llama, a_load, a_plan_of

plans = st.builds(
    a_plan_of,
    st.sampled_from([LLAMA_2_7B, LLAMA_2_70B]),
    st.sampled_from(sorted(DEVICES)),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    path=st.sampled_from(["nvswitch", "nvlink", "pcie", "network"]),
)
rates = st.floats(0.01, 500.0)
prompts = st.floats(1.0, 8000.0)
outputs = st.floats(1.0, 2000.0)


def facts_of(plan: Plan) -> object:
    return LLAMA_2_7B if plan.stages[-1].layers.end == 32 else LLAMA_2_70B


def times_of(plan: Plan, context: float = 1000.0) -> StepTimes:
    return step_times(plan, facts_of(plan), "bfloat16", context_tokens=context)  # type: ignore[arg-type]


@given(plan=plans, batch=st.floats(0.0, 300.0), more=st.floats(0.0, 50.0), context=prompts)
def test_a_larger_batch_takes_longer_a_step_and_less_a_token(
    plan: Plan, batch: float, more: float, context: float
) -> None:
    times = times_of(plan, context)
    small, large = times.decode_ms(batch), times.decode_ms(batch + more)
    assert small <= large * (1 + 1e-12)
    assert small / max(batch, 1e-6) >= large / max(batch + more, 1e-6) * (1 - 1e-9)


@given(plan=plans, prompt=prompts, output=outputs, one=rates, other=rates)
def test_more_load_is_never_served_faster(
    plan: Plan, prompt: float, output: float, one: float, other: float
) -> None:
    state = SteadyState(times_of(plan), prompt_tokens=prompt, output_tokens=output)
    light, heavy = (state.at_rate(rate) for rate in sorted((one, other)))
    assert light.ttft_ms <= heavy.ttft_ms * (1 + 1e-6)
    assert light.itl_ms <= heavy.itl_ms * (1 + 1e-6)
    assert light.batch <= heavy.batch * (1 + 1e-6)


@given(
    plan=plans,
    prompt=prompts,
    output=outputs,
    ttft=st.floats(1.0, 60_000.0),
    itl=st.floats(0.5, 1000.0),
    slack=st.floats(1.0, 3.0),
)
def test_the_good_rate_grows_with_the_slo_and_holds_it(
    plan: Plan, prompt: float, output: float, ttft: float, itl: float, slack: float
) -> None:
    state = SteadyState(times_of(plan), prompt_tokens=prompt, output_tokens=output)
    good = state.good_rate(ttft_ms=ttft, itl_ms=itl)
    assert good <= state.good_rate(ttft_ms=ttft * slack, itl_ms=itl * slack) * (1 + 1e-9)
    if good > 0:
        at_good = state.at_rate(good * (1 - 1e-3))
        assert at_good.ttft_ms <= ttft * (1 + 1e-3)
        assert at_good.itl_ms <= itl * (1 + 1e-3)


@given(plan=plans, rate=rates, prompt=prompts, output=outputs)
def test_an_outlook_is_finite_and_the_same_each_time(
    plan: Plan, rate: float, prompt: float, output: float
) -> None:
    deployment = a_llama(facts_of(plan), slo=Slo(ttft_ms=1000, itl_ms=50))  # type: ignore[arg-type]
    load = a_load(rate, prompt, output)
    outlook = plan_outlook(plan, deployment, load)
    assert outlook == plan_outlook(plan, deployment, load)  # NaN and infinities cannot be built
    assert outlook.tokens_per_s <= rate * output * (1 + 1e-9)
