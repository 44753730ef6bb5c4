"""Spans as data reach an exporter as the SDK's own."""

from __future__ import annotations

import json
import logging

import httpx
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flexpipe.kernel.ids import parse_traceparent, span_id, trace_id, traceparent
from flexpipe.kernel.machine import Span
from flexpipe.telemetry.health import serving_health
from flexpipe.telemetry.logs import JsonFormatter
from flexpipe.telemetry.tracing import OtlpSpans


def test_a_finished_span_leaves_with_the_ids_times_and_parent_it_was_given() -> None:
    exporter = InMemorySpanExporter()
    sink = OtlpSpans("executor", exporter)
    trace = trace_id("smol", 3)
    root = span_id("shift", "smol", 3)
    sink(
        Span(
            trace_id=trace,
            span_id=span_id("phase", "smol", 3, "canary"),
            parent_span_id=root,
            name="canary",
            start_s=10.0,
            end_s=12.5,
            attributes={"shift": 3},
            error="engine error",
            links=(traceparent(trace, root),),
        )
    )
    sink.close()
    (span,) = exporter.get_finished_spans()
    assert format(span.context.trace_id, "032x") == trace
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == root
    assert (span.end_time - span.start_time) == 2_500_000_000
    assert span.status.description == "engine error"
    assert span.attributes is not None
    assert span.attributes["flexpipe.service"] == "executor"
    assert len(span.links) == 1


def test_a_malformed_traceparent_is_no_parent_and_no_crash() -> None:
    for header in (None, "", "00-abc-def-01", "garbage", "00-" + "a" * 32):
        assert parse_traceparent(header) is None


def test_a_log_line_is_one_json_object_and_hides_credentials() -> None:
    record = logging.makeLogRecord(
        {"msg": "joined %s", "args": ("bus",), "password": "hunter2", "node": "a"}
    )
    line = JsonFormatter("worker").format(record)
    parsed = json.loads(line)
    assert parsed["message"] == "joined bus"
    assert parsed["node"] == "a"
    assert "hunter2" not in line


async def test_readiness_is_what_the_check_says_and_names_the_reason(unused_tcp_port: int) -> None:
    fault: list[str] = ["the bus did not answer"]

    async def check() -> None:
        if fault:
            raise RuntimeError(fault[0])

    async with (
        serving_health("127.0.0.1", unused_tcp_port, check),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as client,
    ):
        assert (await client.get("/health")).status_code == 200
        refused = await client.get("/ready")
        assert refused.status_code == 503
        assert refused.json()["reason"] == "the bus did not answer"
        fault.clear()
        assert (await client.get("/ready")).status_code == 200
        assert "python_info" in (await client.get("/metrics")).text
