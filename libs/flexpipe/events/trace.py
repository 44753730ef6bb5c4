"""Finished pieces of traces, kept so that a trace can be read where there is no tracing backend."""

from __future__ import annotations

from flexpipe.events.message import Event
from flexpipe.kernel.machine import Span
from flexpipe.model.names import Name


class SpanEnded(Event):
    """A span of a shift's trace came to its end at this service."""

    service: Name
    span: Span

    def bus_key(self) -> str:
        return self.span.trace_id
