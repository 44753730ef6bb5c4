"""Ids are derived from causes, so that a replay mints the same ones."""

from __future__ import annotations

from flexpipe.kernel.frozen import digest


def derived_id(cause: str, *parts: object) -> str:
    """The id of what `cause` led to: 32 hex digits, a function of its arguments alone."""
    return digest("\x1f".join([cause, *map(str, parts)]), 32)


def trace_id(*parts: object) -> str:
    """A W3C trace id (32 hex digits) derived from what the trace is about."""
    return derived_id("trace", *parts)


def span_id(*parts: object) -> str:
    """A W3C span id (16 hex digits) derived from what the span is about."""
    return derived_id("span", *parts)[:16]


def traceparent(trace: str, span: str) -> str:
    """The W3C `traceparent` header of a sampled span."""
    return f"00-{trace}-{span}-01"


def parse_traceparent(header: str | None) -> tuple[str, str] | None:
    """(trace id, span id) of a header, or None where it is missing or malformed."""
    if header is None:
        return None
    fields = header.strip().split("-")
    if len(fields) < 4 or len(fields[1]) != 32 or len(fields[2]) != 16:
        return None
    return fields[1], fields[2]
