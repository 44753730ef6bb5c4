"""Values that views of the loop are tried on: a gear in force on the fleet of the story, a proposal, a refusal."""

from __future__ import annotations

from flexpipe.events.planning import Baseline, CandidatesProposed, Declined, ShiftDeclined
from flexpipe.kernel.ids import trace_id
from flexpipe.model.fence import Fence
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import (
    Candidate,
    GearOutlook,
    GuardVerdict,
    Load,
    PlanOutlook,
    Price,
    Rejected,
)
from flexpipe.model.plan import Plan
from flexpipe.model.route import Pin, PlanState, RoutedPlan, RouteEntry
from flexpipe.model.shift import Phase, PhaseTiming, ShiftRecord
from flexpipe.testing.builders import a_deployment, a_gear, a_plan, an_order_to

DEPLOYMENT = a_deployment("chat")
WIDE = a_plan("a1/g0", "a1/g1", "a1/g2", "a1/g3", tp=4)  # the block a.4-0
DEEP = a_plan("c1/g0", "c1/g1", "c2/g0", "c2/g1", tp=2)  # the blocks c1 and c2
LOOSE = a_plan("b1/g0", "b2/g1", tp=2)  # no block: they only share a network with others
NOW_S = 1000.0


def outlook(*plans: Plan, ttft_ms: float = 210.0) -> GearOutlook:
    return GearOutlook(
        plans=tuple(
            PlanOutlook(
                plan=plan.id,
                ttft_p50_ms=ttft_ms,
                itl_p50_ms=18.5,
                tokens_per_s=900.0,
                good_requests_per_s=3.25,
                capacity_tokens=41_408,
                bound_by="kv",
            )
            for plan in plans
        ),
        good_requests_per_s=6.5,
        good_tokens_per_s=1234.0,
        ttft_p50_ms=ttft_ms,
        itl_p50_ms=18.5,
    )


def entry(
    *plans: Plan,
    state: PlanState = PlanState.ACTIVE,
    pin: Pin | None = None,
    in_flight: int | None = None,
    stopped: bool = False,
    name: str = "chat",
) -> RouteEntry:
    fence = Fence(deployment=name, term=1, shift=1, step=1)
    return RouteEntry(
        deployment=name,
        model=DEPLOYMENT.model,
        policy=DEPLOYMENT.policy,
        term=1,
        shift=2,
        plans=tuple(
            RoutedPlan(
                plan=plan,
                front=f"http://10.0.0.{index}:31000",
                admit=float(index),
                state=state,
                fence=fence,
            )
            for index, plan in enumerate(plans, start=1)
        ),
        in_flight=in_flight,
        pin=pin,
        stopped=stopped,
    )


def baseline(gear: Gear | None, revision: int = 1, reason: str | None = None) -> Baseline:
    return Baseline(
        deployment="chat", notation="tp4", gear=gear, reason=reason, fleet_revision=revision
    )


def record(target: Gear, number: int = 2, phase: Phase = Phase.CANARY) -> ShiftRecord:
    order = an_order_to(target, "o", deployment="chat", at_s=NOW_S - 9).order
    return ShiftRecord(
        deployment="chat",
        shift=number,
        term=1,
        step=3,
        phase=phase,
        order=order,
        source=a_gear(WIDE),
        timings=(
            PhaseTiming(phase=Phase.PREPARING, start_s=NOW_S - 8, end_s=NOW_S - 2.5),
            PhaseTiming(phase=phase, start_s=NOW_S - 2.5),
        ),
        accepted_at_s=NOW_S - 9,
    )


BUSY = Load(
    data="busy",
    window_s=60.0,
    arrived_per_s=5.5,
    prompt_tokens=512.0,
    output_tokens=128.0,
    queued=3,
    ttft_p95_ms=412.0,
    itl_p50_ms=19.0,
)


def proposal(name: str = "chat") -> CandidatesProposed:
    now = Candidate(gear=a_gear(WIDE), outlook=outlook(WIDE), stays_s=90_000.0)
    better = Candidate(
        gear=a_gear(WIDE, DEEP),
        outlook=outlook(WIDE, DEEP, ttft_ms=180.0),
        starts=(DEEP.id,),
        stays_s=600.0,
    )
    rejected = Rejected(what="tp8 on c", reason="pcie carries tensor-parallel groups of 2, not 8")
    return CandidatesProposed(
        deployment=name,
        proposal="prop-1",
        fleet_revision=7,
        trigger="block c1 came back",
        urgent=True,
        load=BUSY,
        long_load=Load(data="no-data", window_s=600.0),
        current=now,
        candidates=(better,),
        rejected=(rejected,),
        at_s=3600.5,
        trace_id=trace_id("x"),
    )


def declined(name: str = "chat", at_s: float = 3601.0) -> ShiftDeclined:
    price = Price(
        gain_tokens=12_500.0,
        cost_tokens=10_000.0,
        horizon_s=600.0,
        start_s=41.5,
        switch_s=2.0,
        replay_tokens=900.0,
    )
    verdicts = (
        GuardVerdict(guard="cooldown", passed=True, says="over since 20 s"),
        GuardVerdict(
            guard="hysteresis", passed=False, says="12500 is not more than 10000 × 1.4 = 14000"
        ),
    )
    return ShiftDeclined(
        deployment=name,
        proposal="prop-1",
        guard="hysteresis",
        reason="gain 12500 is not more than 14000 tokens",
        declined=(Declined(gear=a_gear(WIDE, DEEP), price=price, verdicts=verdicts),),
        at_s=at_s,
    )
