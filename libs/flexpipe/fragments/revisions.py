"""What is said of a revision of the fleet: the event, its span, the readings. Called by the monitor's machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexpipe.events.fleet import FleetChanged
from flexpipe.events.outgoing import publish
from flexpipe.fragments.changes import changes_between, is_urgent, sentence_of
from flexpipe.kernel.ids import span_id, trace_id, traceparent
from flexpipe.kernel.machine import Effect, Measure, Publish, Span
from flexpipe.model.fleet import Fleet, Node

SPAN: Final = "fleet changed"


def revision_of(before: Fleet, nodes: Sequence[Node], at_s: float, seen_s: float) -> FleetChanged:
    """The event of a revision in which these nodes take the place of what was there."""
    after = before
    for node in nodes:
        after = after.with_node(node)
    changes = changes_between(before, after)
    trace = trace_id("fleet", after.revision, at_s)
    return FleetChanged(
        revision=after.revision,
        changes=changes,
        sentence=sentence_of(changes, after),
        urgent=is_urgent(changes, before, after),
        at_s=at_s,
        seen_s=min(seen_s, at_s),
        trace_id=trace,
        span_id=span_id(trace, SPAN),
    )


def told(said: FleetChanged, now_s: float) -> list[Effect]:
    """Once the revision is stored: the event, and the span that every trace it leads to begins with."""
    span = Span(
        trace_id=said.trace_id,
        span_id=said.span_id,
        name=SPAN,
        start_s=said.seen_s,
        end_s=now_s,
        attributes={
            "fleet.revision": said.revision,
            "fleet.changes": len(said.changes),
            "fleet.urgent": said.urgent,
            "sentence": said.sentence,
        },
    )
    effects: list[Effect] = [
        publish(said, said.revision, traceparent=traceparent(said.trace_id, said.span_id)),
        span,
        Measure(name="flexpipe_monitor_revisions_total", value=1),
    ]
    if any(change.what == "left" for change in said.changes):
        took_s = said.at_s - said.seen_s
        effects.append(Measure(name="flexpipe_monitor_detection_seconds", value=took_s))
    return effects


def greeting(now_s: float, fleet: Fleet) -> Publish:
    """A monitor that was started anew says which revision stands: the one before may have died with the news."""
    trace = trace_id("fleet again", fleet.revision, now_s)
    said = FleetChanged(
        revision=fleet.revision,
        changes=(),
        sentence=f"The monitor was started anew; revision {fleet.revision} stands.",
        urgent=True,
        at_s=now_s,
        seen_s=now_s,
        trace_id=trace,
        span_id=span_id(trace, SPAN),
    )
    return publish(said, now_s)


def readings(fleet: Fleet) -> list[Effect]:
    """How many nodes are in which state, and how many devices take something new."""
    states = [node.state for node in fleet.nodes]
    effects: list[Effect] = [
        Measure(
            name="flexpipe_monitor_nodes",
            value=states.count(state),
            labels={"state": state},
        )
        for state in ("observed", "unobserved", "lost")
    ]
    placeable = sum(fleet.closed(ref) is None for ref in fleet.refs())
    effects.append(Measure(name="flexpipe_monitor_placeable_devices", value=placeable))
    effects.append(Measure(name="flexpipe_monitor_fleet_revision", value=fleet.revision))
    return effects
