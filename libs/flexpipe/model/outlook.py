"""What a gear is expected to deliver, what a change to it costs, and the load that both are reckoned for.

Predictions are made by `flexpipe.performance`; milliseconds and seconds are real ones of the service (an emulated
deployment's time scale is already taken into account).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.gear import Gear

NotNegative = Annotated[float, Field(ge=0)]


class Load(Frozen):
    """Demand for one deployment over a window, from what the routers said.

    `no-data`: no router was heard within the window. `idle`: routers were heard and no request came.
    """

    data: Literal["no-data", "idle", "busy"]
    window_s: NotNegative
    arrived_per_s: NotNegative = 0.0
    prompt_tokens: NotNegative = 0.0  # mean of a request
    output_tokens: NotNegative = 0.0  # mean of a request
    queued: int = 0  # waiting now, parked ones included
    ttft_p95_ms: float | None = None  # seen
    itl_p50_ms: float | None = None  # seen


class PlanOutlook(Frozen):
    """One plan under its share of the load."""

    plan: str
    ttft_p50_ms: NotNegative
    itl_p50_ms: NotNegative
    tokens_per_s: NotNegative  # output tokens that come under this load
    good_requests_per_s: NotNegative  # the most at which it holds the SLO
    capacity_tokens: Annotated[int, Field(ge=0)]  # KV
    bound_by: (
        str  # the term that dominates a decode step: weights, kv, compute, collectives, overhead
    )


class GearOutlook(Frozen):
    """A gear under a load. `good_tokens_per_s`: output tokens of requests that meet the SLO."""

    plans: tuple[PlanOutlook, ...] = ()
    good_requests_per_s: NotNegative = 0.0
    good_tokens_per_s: NotNegative = 0.0
    ttft_p50_ms: NotNegative = 0.0  # weighted over plans
    itl_p50_ms: NotNegative = 0.0


class Candidate(Frozen):
    """A gear that the fleet allows now. `starts`: ids of plans that would have to be started for it."""

    gear: Gear
    outlook: GearOutlook
    starts: tuple[str, ...] = ()
    stays_s: float  # how long its blocks are expected to stay


class Rejected(Frozen):
    """Something that was considered and why it is not a candidate, with its numbers."""

    what: str
    reason: str


class Price(Frozen):
    """What a change to a candidate brings and costs, in SLO-good output tokens over the horizon."""

    gain_tokens: float  # may be negative
    cost_tokens: NotNegative
    horizon_s: NotNegative
    start_s: NotNegative  # until the new plans are ready
    switch_s: NotNegative  # canary and hand-over
    replay_tokens: NotNegative  # prefilled again for sequences that move
    rows: tuple[tuple[str, float, str], ...] = ()  # the table: what, how much, its unit


class GuardVerdict(Frozen):
    """What one guard of the gate said of one candidate."""

    guard: str
    passed: bool
    says: str  # one sentence with its numbers
