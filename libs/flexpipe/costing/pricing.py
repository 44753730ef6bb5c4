"""What a change to a candidate brings and costs, in SLO-good output tokens over the horizon.

Called by the estimator, once a candidate and window of load; it compares, it never decides. All seconds are real ones
of the service. With n and c the SLO-good tokens a second of the new gear and of the one in force:

    H      = min(time the candidate's blocks stay, policy.horizon_s)
    gain   = n × (H − start) − c × (what is left of H after the start, as far as the gear in force stays)
    cost   = tokens not said while prompts are replayed, + of the sequences that wait for it,
             + of clients of the canary, + of the gain that comes later by canary and hand-over

Where the gear in force stays for H, the gain is (n − c) × (H − start): the start costs nothing by itself, because the
old gear serves during it, but what it shortens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import Candidate, GearOutlook, Load, PlanOutlook, Price
from flexpipe.model.plan import Plan
from flexpipe.performance.outlook import gear_outlook, request_shape
from flexpipe.performance.starting import start_s
from flexpipe.performance.steps import step_times

LATE_WORTH: Final = 0.1
"""What a token that misses the SLO is worth where the gear in force serves nobody or is about to go: late beats never,
and an SLO that no gear holds must not leave a deployment without one."""


@dataclass(frozen=True)
class Moving:
    """The sequences that would change their plan: those on plans of the present gear that the new one lacks."""

    sequences: float
    context_tokens: float  # of one, prompt and what it has said so far
    tokens_per_s: float  # what they emit together
    prefill_tokens_per_s: float  # of the new gear, which replays them

    @property
    def replay_tokens(self) -> float:
        """Prefilled again, in all."""
        return self.sequences * self.context_tokens

    @property
    def replay_s(self) -> float:
        """How long the new gear prefills."""
        return 0.0 if self.replay_tokens == 0 else self.replay_tokens / self.prefill_tokens_per_s


def outlook_under(candidate: Candidate, deployment: Deployment, load: Load) -> Candidate:
    """The candidate with what its gear would deliver under another load than it was proposed for.

    A plan of the gear in force that its outlook leaves out is dead, and delivers nothing under any load.
    """
    alive = {plan.plan for plan in candidate.outlook.plans}
    living = Gear(shares=tuple(s for s in candidate.gear.shares if s.plan.id in alive))
    return candidate.model_copy(update={"outlook": gear_outlook(living, deployment, load)})


def price(deployment: Deployment, load: Load, current: Candidate, candidate: Candidate) -> Price:
    """Gain and cost of going from `current` to `candidate`, whose outlooks are those under `load`."""
    policy = deployment.policy
    horizon_s = max(min(candidate.stays_s, policy.horizon_s), 0.0)
    ready_s = _start_s(candidate, deployment)
    goes = not current.outlook.plans or current.stays_s < horizon_s
    now, then = _counted(current.outlook, goes=goes), _counted(candidate.outlook, goes=goes)
    stays_s = max(min(current.stays_s, horizon_s), 0.0)
    served_s = max(horizon_s - ready_s, 0.0)
    instead_s = max(stays_s - ready_s, 0.0)
    gain = then * served_s - now * instead_s

    moving = _moving(deployment, load, current, candidate)
    canary_s = _canary_s(deployment, load, current, candidate)
    lost_prefilling = moving.replay_s * then
    # They wait in line for their prefill: half of it on average.
    lost_waiting = moving.replay_s / 2 * moving.tokens_per_s
    # As if every canary failed its clients: an upper bound, and a small one.
    lost_canary = canary_s * policy.canary_share * now
    lost_late = (canary_s + moving.replay_s) * max(then - now, 0.0)
    cost = lost_prefilling + lost_waiting + lost_canary + lost_late
    rows = (
        ("requests that the price is for", load.arrived_per_s, "requests/s"),
        ("output that counts now", now, "tokens/s"),
        ("output that counts then", then, "tokens/s"),
        ("horizon", horizon_s, "s"),
        ("start of the new plans", ready_s, "s"),
        ("new gear counted for", served_s, "s"),
        ("present gear counted for", instead_s, "s"),
        ("gain", gain, "tokens"),
        ("sequences that move", moving.sequences, "sequences"),
        ("their context, each", moving.context_tokens, "tokens"),
        ("prefill rate of the new gear", moving.prefill_tokens_per_s, "tokens/s"),
        ("canary", canary_s, "s"),
        ("hand-over", moving.replay_s, "s"),
        ("lost while prompts are replayed", lost_prefilling, "tokens"),
        ("lost by sequences that wait", lost_waiting, "tokens"),
        ("lost by the canary's clients", lost_canary, "tokens"),
        ("gain that comes later", lost_late, "tokens"),
        ("cost", cost, "tokens"),
    )
    return Price(
        gain_tokens=gain,
        cost_tokens=cost,
        horizon_s=horizon_s,
        start_s=ready_s,
        switch_s=canary_s + moving.replay_s,
        replay_tokens=moving.replay_tokens,
        rows=rows,
    )


def net_tokens(price: Price, hysteresis: float) -> float:
    """What is left of the gain when the cost is taken `hysteresis` times: above 0 a change pays."""
    return price.gain_tokens - hysteresis * price.cost_tokens


def _counted(outlook: GearOutlook, *, goes: bool) -> float:
    """SLO-good tokens a second; late ones count a little where the gear in force goes."""
    late = max(sum(plan.tokens_per_s for plan in outlook.plans) - outlook.good_tokens_per_s, 0.0)
    return outlook.good_tokens_per_s + (LATE_WORTH * late if goes else 0.0)


def _start_s(candidate: Candidate, deployment: Deployment) -> float:
    """Until the slowest of the plans to be started is ready: they start side by side."""
    starts = [plan for plan in candidate.gear.plans if plan.id in candidate.starts]
    return max((start_s(plan, deployment) for plan in starts), default=0.0)


def _canary_s(
    deployment: Deployment, load: Load, current: Candidate, candidate: Candidate
) -> float:
    """Until enough requests came to the canary. There is none where nothing starts, or nothing serves."""
    if not candidate.starts or not current.outlook.plans:
        return 0.0
    policy = deployment.policy
    coming_per_s = policy.canary_share * load.arrived_per_s
    enough_s = policy.canary_requests / coming_per_s if coming_per_s else policy.canary_limit_s
    return min(enough_s, policy.canary_limit_s)


def _moving(deployment: Deployment, load: Load, current: Candidate, candidate: Candidate) -> Moving:
    leaving = [plan for plan in current.outlook.plans if candidate.gear.weight(plan.plan) == 0]
    prompt_tokens, output_tokens = request_shape(load)
    context_tokens = prompt_tokens + output_tokens / 2  # in the middle of its answer, on average
    rates = (
        _prefill_tokens_per_s(plan, deployment, context_tokens) for plan in candidate.gear.plans
    )
    return Moving(
        sequences=sum(_running(plan) for plan in leaving),
        context_tokens=context_tokens,
        tokens_per_s=sum(plan.tokens_per_s for plan in leaving),
        prefill_tokens_per_s=sum(rates),
    )


def _running(plan: PlanOutlook) -> float:
    """Sequences at a plan: each says one token in every inter-token time (Little's law)."""
    return plan.tokens_per_s * plan.itl_p50_ms / 1000


def _prefill_tokens_per_s(plan: Plan, deployment: Deployment, context_tokens: float) -> float:
    facts, engine = deployment.model.facts, deployment.engine
    if facts is None:
        raise InvalidInput(
            "model.facts", None, "apply the deployment again, so that its config.json is read"
        )
    times = step_times(
        plan,
        facts,
        engine.dtype,
        context_tokens=context_tokens,
        capacity_tokens=engine.max_total_tokens,
    )
    return times.prefill_tokens_per_s * engine.time_scale
