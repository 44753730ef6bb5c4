"""Demand for a deployment, summed over routers and windows of what they said. Called by the planner's machine.

Silence is never taken for idleness: routers report zeros, so a window in which none was heard is `no-data`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from typing import Final

from flexpipe.events.route import LoadObserved
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.deployment import Policy
from flexpipe.model.outlook import Load

SAMPLES_LIMIT: Final = 2048
"""Reports kept a deployment: ten minutes of seventeen routers that report every five seconds. With more routers the
long window is shorter, and nothing else changes."""

SILENT_AFTER: Final = 2.5
"""Report periods without a report until a router counts as silent: one may be lost, two are not by chance."""


class Sample(Frozen):
    """One report of one router, reduced to what the planner asks for."""

    at_s: float
    router: str
    window_s: float
    arrived: int
    waiting: int
    prompt_tokens: int
    finished: int
    output_tokens: int
    ttft_p95_ms: float | None
    itl_p50_ms: float | None  # mean over plans, weighted by tokens

    @property
    def order(self) -> tuple[float, str]:
        """Samples are kept by time, so that the order in which independent routers are heard leaves no trace."""
        return self.at_s, self.router

    @property
    def fresh_s(self) -> float:
        """How long its router counts as heard after it."""
        return SILENT_AFTER * self.window_s


def sample_of(message: LoadObserved, at_s: float) -> Sample:
    """A report as a sample."""
    rated = [
        (plan.itl_p50_ms, float(plan.output_tokens))
        for plan in message.plans
        if plan.itl_p50_ms is not None
    ]
    return Sample(
        at_s=at_s,
        router=message.router,
        window_s=message.window_s,
        arrived=message.arrived,
        waiting=message.queued + message.parked,
        prompt_tokens=message.prompt_tokens,
        finished=sum(plan.finished for plan in message.plans),
        output_tokens=sum(plan.output_tokens for plan in message.plans),
        ttft_p95_ms=message.ttft_p95_ms,
        itl_p50_ms=_mean(rated),
    )


class Demand:
    """The reports of one deployment."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._samples = sorted(samples, key=lambda sample: sample.order)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What is kept, oldest first."""
        return tuple(self._samples)

    def hear(self, sample: Sample, keep_s: float) -> None:
        """Take one report; what is older than `keep_s` before the newest, or too much, is dropped."""
        bisect.insort(self._samples, sample, key=lambda each: each.order)
        oldest_s = self._samples[-1].at_s - keep_s
        stale = bisect.bisect_left(self._samples, oldest_s, key=lambda each: each.at_s)
        del self._samples[: max(stale, len(self._samples) - SAMPLES_LIMIT)]

    def loads(self, now_s: float, policy: Policy) -> tuple[Load, Load]:
        """(over the short window, over the long one). Means that the short window cannot know are the long one's."""
        long = self._over(now_s, policy.long_load_window_s)
        short = self._over(now_s, policy.load_window_s)
        changes = {
            "prompt_tokens": short.prompt_tokens or long.prompt_tokens,
            "output_tokens": short.output_tokens or long.output_tokens,
        }
        return short.model_copy(update=changes), long

    def _over(self, now_s: float, window_s: float) -> Load:
        latest = {sample.router: sample for sample in self._samples}
        heard = {
            router
            for router, last in latest.items()
            if last.at_s > now_s - max(window_s, last.fresh_s)
        }
        if not heard:
            return Load(data="no-data", window_s=window_s)
        # A router that fell silent while others speak is gone: its clients come through the others now.
        live = {router for router in heard if latest[router].at_s > now_s - latest[router].fresh_s}
        counted = live or heard
        mine = [
            sample
            for sample in self._samples
            if sample.router in counted
            and (sample.at_s > now_s - window_s or sample is latest[sample.router])
        ]
        return _load(mine, sorted(counted), latest, window_s)


def _load(
    samples: list[Sample], routers: list[str], latest: dict[str, Sample], window_s: float
) -> Load:
    by_router = {router: [s for s in samples if s.router == router] for router in routers}
    arrived = sum(sample.arrived for sample in samples)
    finished = sum(sample.finished for sample in samples)
    prompt_tokens = sum(sample.prompt_tokens for sample in samples)
    output_tokens = sum(sample.output_tokens for sample in samples)
    waiting = sum(latest[router].waiting for router in routers)
    ttfts = [
        _seen(each, lambda s: s.ttft_p95_ms, lambda s: s.arrived) for each in by_router.values()
    ]
    is_busy = arrived > 0 or waiting > 0 or output_tokens > 0
    return Load(
        data="busy" if is_busy else "idle",
        window_s=window_s,
        arrived_per_s=round(sum(_rate(each) for each in by_router.values()), 6),
        prompt_tokens=round(prompt_tokens / arrived, 3) if arrived else 0.0,
        output_tokens=round(output_tokens / finished, 3) if finished else 0.0,
        queued=waiting,
        ttft_p95_ms=max((each for each in ttfts if each is not None), default=None),
        itl_p50_ms=_seen(samples, lambda s: s.itl_p50_ms, lambda s: s.output_tokens),
    )


def _rate(samples: list[Sample]) -> float:
    """Arrivals a second at one router, over the time that its reports cover."""
    covered_s = sum(sample.window_s for sample in samples)
    return sum(sample.arrived for sample in samples) / covered_s if covered_s > 0 else 0.0


def _seen(
    samples: list[Sample],
    value: Callable[[Sample], float | None],
    weight: Callable[[Sample], int],
) -> float | None:
    return _mean([(v, float(weight(s))) for s in samples if (v := value(s)) is not None])


def _mean(rated: list[tuple[float, float]]) -> float | None:
    """Weighted mean of (value, weight); a plain one where no weight is known, None of nothing."""
    if not rated:
        return None
    total = sum(weight for _, weight in rated)
    if total <= 0:
        return round(sum(value for value, _ in rated) / len(rated), 3)
    return round(sum(value * weight for value, weight in rated) / total, 3)
