"""The words of the planner: a look as a proposal, with its trace and its readings. Used by the planner's machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flexpipe.events.outgoing import publish
from flexpipe.events.planning import CandidatesProposed
from flexpipe.events.shift import Seen
from flexpipe.kernel.ids import derived_id, span_id, trace_id, traceparent
from flexpipe.kernel.machine import Effect, Measure, Span
from flexpipe.model.outlook import Load
from flexpipe.planning.proposal import Look, View
from flexpipe.planning.wishes import Blow, Wish

SEEN_LIMIT: Final = 256
"""What an order may rest on at most: the bound of `OrderShift.seen`, which these keys go into."""

CYCLE: Final = "cycle"
"""The reason in metrics of a look that nothing but the cycle asked for."""

Revision = Callable[[str, str], int]


def proposal_of(
    view: View,
    found: Look,
    wish: Wish | None,
    revision: Revision,
    *,
    cycle: int,
    blow: Blow | None,
) -> tuple[Effect, ...]:
    """The proposal of one look, its span and its readings. `revision` of (bucket, key) as they were read.

    Its trace is that of the fleet change that asked for it, else that of the `blow` it still mends, else its own.
    """
    name, now_s = view.deployment.name, view.now_s
    fleet_revision = view.fleet.revision
    proposal = derived_id("proposal", name, fleet_revision, cycle, now_s)
    trace, parent = trace_id("proposal", proposal), None
    if wish is not None and wish.trace_id is not None:
        trace, parent = wish.trace_id, wish.parent_span_id
    elif blow is not None:
        trace, parent = blow.trace_id, blow.span_id
    span = span_id("propose", proposal)
    message = CandidatesProposed(
        deployment=name,
        proposal=proposal,
        fleet_revision=fleet_revision,
        trigger=_trigger(view, found, wish),
        urgent=wish is not None,
        load=view.short,
        long_load=view.long,
        current=found.current,
        candidates=found.candidates,
        rejected=found.rejected,
        seen=_seen(view, found, revision),
        at_s=now_s,
        trace_id=trace,
        parent_span_id=span,
    )
    spoken = Span(
        trace_id=trace,
        span_id=span,
        parent_span_id=parent,
        name="propose",
        start_s=wish.heard_at_s if wish is not None else now_s,
        end_s=now_s,
        attributes={
            "flexpipe.deployment": name,
            "flexpipe.proposal": proposal,
            "flexpipe.fleet_revision": fleet_revision,
            "flexpipe.trigger": message.trigger,
            "flexpipe.candidates": len(found.candidates),
            "flexpipe.best": found.candidates[0].gear.label if found.candidates else "none",
        },
    )
    labels = {"deployment": name, "reason": CYCLE if wish is None else wish.cause}
    return (
        publish(message, traceparent=traceparent(trace, span)),
        spoken,
        Measure(name="flexpipe_planner_proposals_total", value=1.0, labels=labels),
        Measure(
            name="flexpipe_planner_candidates_total",
            value=float(len(found.candidates)),
            labels={"deployment": name},
        ),
    )


def _trigger(view: View, found: Look, wish: Wish | None) -> str:
    said = f"cycle: {_demand(view.short)}" if wish is None else wish.sentence
    return said if found.nowhere is None else f"{said}; fits nowhere: {found.nowhere}"


def _demand(load: Load) -> str:
    match load.data:
        case "no-data":
            return f"no router was heard for {load.window_s:g} s"
        case "idle":
            return f"no requests for {load.window_s:g} s"
        case "busy":
            waiting = f", {load.queued} waiting" if load.queued else ""
            return f"{load.arrived_per_s:.3g} requests/s over {load.window_s:g} s{waiting}"


def _seen(view: View, found: Look, revision: Revision) -> tuple[Seen, ...]:
    """What the candidates rest on: nodes of the best ones first, where not all can be named."""
    name = view.deployment.name
    gears = [candidate.gear for candidate in found.candidates] + [found.current.gear]
    nodes = dict.fromkeys(node for gear in gears for plan in gear.plans for node in plan.nodes)
    keys = [("deployments", name), ("routes", name), *(("fleet", node) for node in nodes)]
    return tuple(
        Seen.model_validate({"bucket": bucket, "key": key, "revision": revision(bucket, key)})
        for bucket, key in keys[:SEEN_LIMIT]
    )
