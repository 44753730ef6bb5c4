"""Spans as the OpenTelemetry SDK has them, and the way out by OTLP/HTTP. Loaded by `tracing` where a receiver is named.

The SDK's own tracer mints random ids; therefore spans are built here as the SDK's read-only ones and handed straight to
its batch processor.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from flexpipe.kernel.ids import parse_traceparent
from flexpipe.kernel.machine import Span

FLUSH_LIMIT_MS = 3_000
"""A service that stops waits this long for its last spans to leave."""


class Otlp:
    """Queues spans for an exporter (by default OTLP/HTTP, set by its standard variables)."""

    def __init__(self, service: str, exporter: SpanExporter | None = None) -> None:
        self._service = service
        self._resource = Resource.create({"service.name": f"flexpipe-{service}"})
        self._processor = BatchSpanProcessor(exporter or OTLPSpanExporter())

    def take(self, span: Span) -> None:
        """Queue one span (the SDK's queue is bounded and drops when full)."""
        self._processor.on_end(readable(span, self._service, self._resource))

    def close(self) -> None:
        """Send what waits, within a limit."""
        self._processor.force_flush(FLUSH_LIMIT_MS)
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def readable(span: Span, service: str, resource: Resource) -> ReadableSpan:
    """The SDK's form of one span. The service's name is also an attribute: some receivers show only those."""
    status = Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK)
    links = [Link(_context(*ids)) for ids in map(parse_traceparent, span.links) if ids is not None]
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=None
        if span.parent_span_id is None
        else _context(span.trace_id, span.parent_span_id),
        resource=resource,
        attributes={"flexpipe.service": service, **span.attributes},
        links=links,
        kind=SpanKind.INTERNAL,
        status=status,
        start_time=int(span.start_s * 1e9),
        end_time=int(span.end_s * 1e9),
    )


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(
        trace_id=int(trace, 16),
        span_id=int(span, 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
