"""What a plan or a gear delivers under a load, and the rate up to which it holds the SLO.

Everything follows from the batch b, the sequences that decode at once. Prompts of p tokens take their time from
decoding, so at arrival rate λ a token comes every itl = step(b) / (1 − λ·busy(p)); by Little's law b = λ · output
tokens · itl. Solved for λ this is λ(b) = b / (b·busy + output·step(b)), which grows with b, as itl and TTFT do: the
rate at which an SLO holds is one bisection over b. b is bounded by the KV capacity and by what an engine runs at
once.

TTFT p50 = reading the prompt + half a step (the one in progress) + waiting, for the prefill before it (M/D/1) and
for a slot in the batch (M/M/c, Sakasegawa's approximation); waits are taken at the median of an exponential tail.

Real seconds come in and go out; within, everything runs in the hardware's own time (`engine.time_scale`). What the
way to the engine and back takes is added in real time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Final

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.gear import Gear, PlanShare
from flexpipe.model.outlook import GearOutlook, Load, PlanOutlook
from flexpipe.model.plan import Plan
from flexpipe.performance.steps import StepTimes, step_times

DEFAULT_PROMPT_TOKENS: Final = 512.0
DEFAULT_OUTPUT_TOKENS: Final = 256.0
"""The request that a plan is judged by where the load shows none: a chat turn of middling length."""
MAX_RUNNING: Final = 256
"""Sequences an engine decodes at once: the batch up to which graphs are captured by default."""
BISECTIONS: Final = 18
"""Halvings of a range of at most MAX_RUNNING: finer than a thousandth of a sequence."""
PATH_MS: Final = {"cuda": 10.0, "cpu": 80.0, "emulated": 80.0}
"""Real milliseconds of TTFT outside the engine, by `engine.form`: parsing, tokenizing, two HTTP hops. 60–110 were seen
where engines, clients and every service of an instance share two cores; a server with cores to spare takes a few."""
PLAYED_STEP_MS: Final = {"cuda": 0.0, "cpu": 0.0, "emulated": 1.0}
"""Real milliseconds that a step of an emulated engine takes besides the time it plays: timers round up, cores are
shared. Neither is divided by the time scale: nothing makes this machine faster."""
LONGEST_WAIT_MS: Final = 3_600_000.0
"""What an endless queue is written as: an hour."""
WEIGHT_DIGITS: Final = 2
"""Weights are rounded, so that a load that hardly changes does not make another gear."""


@dataclass(frozen=True, slots=True)
class Point:
    """A steady state: the batch, the rate that keeps it up, and what a client sees. Hardware time."""

    batch: float
    requests_per_s: float
    ttft_ms: float
    itl_ms: float


class SteadyState:
    """One plan under requests of one shape: points on its curve. Hardware time throughout."""

    def __init__(self, times: StepTimes, *, prompt_tokens: float, output_tokens: float) -> None:
        self._times = times
        self._context = prompt_tokens + output_tokens / 2
        self._output = max(output_tokens, 1.0)
        self._busy_s = times.prefill_busy_ms(prompt_tokens) / 1e3
        self._read_ms = times.prefill_latency_ms(prompt_tokens)
        fits = times.capacity_tokens / (prompt_tokens + self._output)
        self.most = min(float(MAX_RUNNING), fits)
        """The largest batch; below 1 not even one request fits."""

    def at_batch(self, batch: float) -> Point:
        """The steady state that keeps `batch` sequences decoding."""
        step_ms = self._times.decode_ms(batch, self._context)
        rate = self._rate(batch, step_ms)
        reading = rate * self._busy_s
        itl_ms = step_ms / (1 - reading)
        wait_ms = self._busy_s * 1e3 * reading / (2 * (1 - reading)) + self._slot_wait_ms(
            batch, itl_ms
        )
        ttft_ms = self._read_ms + step_ms / 2 + log(2) * wait_ms
        return Point(batch, rate, min(ttft_ms, LONGEST_WAIT_MS), itl_ms)

    def at_rate(self, requests_per_s: float) -> Point:
        """The steady state under that rate; an overloaded one runs its largest batch and its queue has no end."""
        if self.most < 1:
            return Point(0.0, 0.0, LONGEST_WAIT_MS, self._times.decode_ms(1.0, self._context))
        full = self.at_batch(self.most)
        if requests_per_s >= full.requests_per_s:
            return Point(full.batch, full.requests_per_s, LONGEST_WAIT_MS, full.itl_ms)
        # Little's law with the shortest and the longest step there is: the batch lies between.
        flow = requests_per_s * self._output / (1 - requests_per_s * self._busy_s) / 1e3
        low = flow * self._times.decode_ms(0.0, self._context)
        high = min(self.most, flow * self._times.decode_ms(self.most, self._context))
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            reached = self._rate(middle, self._times.decode_ms(middle, self._context))
            low, high = (middle, high) if reached < requests_per_s else (low, middle)
        return self.at_batch(low)

    def good_rate(self, *, ttft_ms: float, itl_ms: float) -> float:
        """The highest rate at which TTFT and ITL hold these limits; 0 where they never do."""
        if self.most < 1:
            return 0.0
        low, high = 0.0, self.most
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            point = self.at_batch(middle)
            good = point.ttft_ms <= ttft_ms and point.itl_ms <= itl_ms
            low, high = (middle, high) if good else (low, middle)
        return self.at_batch(low).requests_per_s if low > 0 else 0.0

    def _rate(self, batch: float, step_ms: float) -> float:
        return batch / (batch * self._busy_s + self._output * step_ms / 1e3)

    def _slot_wait_ms(self, batch: float, itl_ms: float) -> float:
        """Mean wait for a place in the batch. The slots are servers, each busy `output × itl` a request."""
        slots, used = self.most, min(batch / self.most, 1.0)
        if used >= 1.0:
            return LONGEST_WAIT_MS
        service_ms = self._output * itl_ms
        # Float powers overflow to 0 quietly for light loads, which is what is meant.
        return float(service_ms * used ** (sqrt(2 * (slots + 1)) - 1) / (slots * (1 - used)))


def request_shape(load: Load) -> tuple[float, float]:
    """(prompt, output) tokens of a request of this load, or of the default one where it shows none."""
    if load.data == "busy" and load.prompt_tokens > 0 and load.output_tokens > 0:
        return load.prompt_tokens, load.output_tokens
    return DEFAULT_PROMPT_TOKENS, DEFAULT_OUTPUT_TOKENS


def plan_outlook(plan: Plan, deployment: Deployment, load: Load) -> PlanOutlook:
    """One plan that takes all of this load. Raises InvalidInput where the model's facts were never read."""
    facts, engine = deployment.model.facts, deployment.engine
    if facts is None:
        raise InvalidInput(
            "model.facts", None, "apply the deployment again, so that its config.json is read"
        )
    prompt, output = request_shape(load)
    times = step_times(
        plan,
        facts,
        engine.dtype,
        context_tokens=prompt + output / 2,
        capacity_tokens=engine.max_total_tokens,
    )
    scale, slo = engine.time_scale, deployment.slo
    state = SteadyState(times, prompt_tokens=prompt, output_tokens=output)
    arrived = load.arrived_per_s if load.data == "busy" else 0.0
    now = state.at_rate(arrived / scale)
    path_ms, played_ms = PATH_MS[engine.form], PLAYED_STEP_MS[engine.form]
    good = state.good_rate(
        ttft_ms=(slo.ttft_ms - path_ms) * scale, itl_ms=(slo.itl_ms - played_ms) * scale
    )
    return PlanOutlook(
        plan=plan.id,
        ttft_p50_ms=now.ttft_ms / scale + path_ms,
        itl_p50_ms=now.itl_ms / scale + played_ms,
        tokens_per_s=min(arrived, now.requests_per_s * scale) * output,
        good_requests_per_s=good * scale,
        capacity_tokens=times.capacity_tokens,
        bound_by=times.bound_by(max(now.batch, 1.0)),
    )


def gear_outlook(gear: Gear, deployment: Deployment, load: Load) -> GearOutlook:
    """A gear under a load that its weights divide among its plans."""
    shares = sorted(gear.shares, key=lambda share: share.plan.id)
    total = sum(share.weight for share in shares)
    if not shares:
        return GearOutlook()
    _, output = request_shape(load)
    parts = [share.weight / total for share in shares]
    plans = tuple(
        plan_outlook(share.plan, deployment, part_of(load, part))
        for share, part in zip(shares, parts, strict=True)
    )
    arrived = load.arrived_per_s if load.data == "busy" else 0.0
    both = list(zip(plans, parts, strict=True))
    return GearOutlook(
        plans=plans,
        good_requests_per_s=min(plan.good_requests_per_s / part for plan, part in both),
        good_tokens_per_s=sum(
            min(arrived * part, plan.good_requests_per_s) * output for plan, part in both
        ),
        ttft_p50_ms=sum(plan.ttft_p50_ms * part for plan, part in both),
        itl_p50_ms=sum(plan.itl_p50_ms * part for plan, part in both),
    )


def part_of(load: Load, part: float) -> Load:
    """The share of a load that one plan takes."""
    return load.model_copy(update={"arrived_per_s": load.arrived_per_s * part})


def balanced_gear(plans: Sequence[Plan], deployment: Deployment, load: Load) -> Gear:
    """These plans with weights in proportion to the rate at which each holds the SLO (equal where none does)."""
    ordered = sorted(plans, key=lambda plan: plan.id)
    good = [plan_outlook(plan, deployment, load).good_requests_per_s for plan in ordered]
    least = min((rate for rate in good if rate > 0), default=1.0)
    weights = [_weight(rate / least) if rate > 0 else 1.0 for rate in good]
    shares = (PlanShare(plan=plan, weight=w) for plan, w in zip(ordered, weights, strict=True))
    return Gear(shares=tuple(shares))


def _weight(ratio: float) -> float:
    return float(f"{min(ratio, 1000.0):.{WEIGHT_DIGITS}g}")
