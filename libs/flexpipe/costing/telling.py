"""What the estimator says: orders, declines, spans, readings. Ids derive from the proposal: a replay says the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexpipe.costing.desk import Ordered
from flexpipe.costing.pressing import Pressing
from flexpipe.costing.weighing import Weighed
from flexpipe.events.outgoing import publish
from flexpipe.events.planning import CandidatesProposed, Declined, ShiftDeclined
from flexpipe.events.shift import OrderShift, ShiftCompleted
from flexpipe.kernel.ids import derived_id, span_id, traceparent
from flexpipe.kernel.machine import Effect, Measure, Span
from flexpipe.model.shift import ShiftOrder

BY: Final = "estimator"
REASON_CHARS: Final = 500
"""Of a sentence in a span: it is read in a table of spans."""


def order(
    proposal: CandidatesProposed, best: Weighed, need: Pressing | None, now_s: float
) -> OrderShift:
    """The order for one candidate, with what is predicted of it and what it was reckoned to cost."""
    gear = best.candidate.gear
    why = [proposal.trigger] if need is None else [proposal.trigger, need.says]
    why.append(
        f"gains {best.price.gain_tokens:.0f} SLO-good tokens over {best.price.horizon_s:.0f} s"
        f" for {best.price.cost_tokens:.0f}"
    )
    return OrderShift(
        order_id=derived_id("order", proposal.deployment, proposal.proposal, gear.id),
        order=ShiftOrder(
            deployment=proposal.deployment,
            target=gear,
            trigger="; ".join(why),
            by=BY,
            ordered_at_s=now_s,
            trace_id=proposal.trace_id,
            parent_span_id=_span_id(proposal),
            outlook=best.expected,
            price=best.price,
        ),
        seen=proposal.seen,
    )


def ordered(proposal: CandidatesProposed, said: OrderShift, now_s: float) -> list[Effect]:
    """The order goes out."""
    price = said.order.price
    span = _span(
        proposal,
        now_s,
        {
            "flexpipe.verdict": "ordered",
            "flexpipe.target": said.order.target.label,
            "flexpipe.gain_tokens": 0.0 if price is None else price.gain_tokens,
            "flexpipe.cost_tokens": 0.0 if price is None else price.cost_tokens,
        },
    )
    return [
        publish(said, traceparent=_traceparent(proposal)),
        span,
        Measure(
            name="flexpipe_estimator_orders_total",
            value=1.0,
            labels={"deployment": proposal.deployment},
        ),
    ]


def declined(
    proposal: CandidatesProposed,
    guard: str,
    reason: str,
    every: tuple[Declined, ...],
    now_s: float,
) -> list[Effect]:
    """The proposal leads to no order. In a trace only where an event asked for it: each cycle is noise."""
    said = ShiftDeclined(
        deployment=proposal.deployment,
        proposal=proposal.proposal,
        guard=guard,
        reason=reason,
        declined=every,
        at_s=now_s,
    )
    effects: list[Effect] = [publish(said, traceparent=_traceparent(proposal))]
    if proposal.urgent:
        attributes = {
            "flexpipe.verdict": f"declined by {guard}",
            "flexpipe.reason": reason[:REASON_CHARS],
        }
        effects.append(_span(proposal, now_s, attributes))
    return [*effects, declined_again(proposal, guard)]


def declined_again(proposal: CandidatesProposed, guard: str) -> Measure:
    """The same for the same reason as a moment ago: counted, and not said."""
    labels = {"deployment": proposal.deployment, "guard": guard}
    return Measure(name="flexpipe_estimator_declines_total", value=1.0, labels=labels)


def time_measured(promised: Ordered, ended: ShiftCompleted) -> list[Effect]:
    """How long a shift took over how long it was predicted to take."""
    predicted_s = promised.price.start_s + promised.price.switch_s
    if predicted_s <= 0:
        return []
    labels = {"deployment": ended.deployment, "start_class": str(ended.start_class)}
    ratio = ended.duration_s / predicted_s
    return [Measure(name="flexpipe_estimator_shift_time_ratio", value=ratio, labels=labels)]


def itl_measured(proposal: CandidatesProposed) -> list[Effect]:
    """ITL as clients see it over what is predicted of the gear in force under that load."""
    seen_ms = proposal.load.itl_p50_ms
    predicted_ms = proposal.current.outlook.itl_p50_ms
    if seen_ms is None or predicted_ms <= 0:
        return []
    labels = {"deployment": proposal.deployment}
    name = "flexpipe_estimator_itl_ratio"
    return [Measure(name=name, value=seen_ms / predicted_ms, labels=labels)]


def _span(
    proposal: CandidatesProposed, now_s: float, attributes: Mapping[str, str | float]
) -> Span:
    return Span(
        trace_id=proposal.trace_id,
        span_id=_span_id(proposal),
        parent_span_id=proposal.parent_span_id,
        name="price",
        start_s=min(proposal.at_s, now_s),
        end_s=now_s,
        attributes={
            "flexpipe.deployment": proposal.deployment,
            "flexpipe.proposal": proposal.proposal,
            "flexpipe.candidates": len(proposal.candidates),
            **attributes,
        },
    )


def _span_id(proposal: CandidatesProposed) -> str:
    return span_id("price", proposal.deployment, proposal.proposal)


def _traceparent(proposal: CandidatesProposed) -> str:
    return traceparent(proposal.trace_id, _span_id(proposal))
