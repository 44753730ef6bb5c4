"""The trace of a shift leaves by OTLP, whole, from all services that had a part in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from e2e.stage import EXAMPLE, QUICK, Stage, staged, until
from flexpipe.cli import looking
from flexpipe.cli.layouts import Layout, NodeLayout
from flexpipe.cli.models import ensure_model
from flexpipe.cli.ports import instance_ports
from flexpipe.cli.traffic import Question
from flexpipe.events.shift import ShiftCompleted
from flexpipe.telemetry.health import serving

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


class Receiver:
    """An OTLP/HTTP receiver: what it got, as (service, trace id, span id, name)."""

    def __init__(self) -> None:
        self.spans: set[tuple[str, str, str, str]] = set()

    async def take(self, request: Request) -> Response:
        batch = ExportTraceServiceRequest.FromString(await request.body())
        for resource in batch.resource_spans:
            service = next(
                a.value.string_value
                for a in resource.resource.attributes
                if a.key == "service.name"
            )
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.add((service, span.trace_id.hex(), span.span_id.hex(), span.name))
        return Response(status_code=200)


@pytest.fixture
async def traced(tmp_path: Path) -> AsyncIterator[tuple[Stage, Receiver]]:
    """An instance whose services send to a receiver of our own."""
    await ensure_model("emulated")
    receiver = Receiver()
    app = Starlette(routes=[Route("/v1/traces", receiver.take, methods=["POST"])])
    with instance_ports(1) as ports:
        port = ports.service()
        layout = Layout(
            folder=tmp_path / "instance",
            nodes=(NodeLayout("node-a"),),
            device_kind="emulated",
            env={
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
                "OTEL_BSP_SCHEDULE_DELAY": "200",
            },
        )
        async with serving(app, "127.0.0.1", port), staged(layout) as stage:
            await stage.apply(EXAMPLE, **QUICK)
            yield stage, receiver


async def test_the_receiver_gets_the_spans_that_the_bus_keeps(
    traced: tuple[Stage, Receiver],
) -> None:
    stage, receiver = traced
    traffic = stage.traffic([Question("Say something long.", 600)], 1)
    await traffic.start()

    async def is_flowing() -> bool:
        return traffic.flowing == 1

    await until(is_flowing, "the stream brings tokens")
    outcome = await stage.shift("pp2")
    assert isinstance(outcome, ShiftCompleted)
    assert len(outcome.moved) == 1
    await traffic.abort()
    record = await stage.closed(outcome.shift)
    trace = record.order.trace_id

    async def is_whole() -> bool:
        kept = {span.span_id for span in await looking.read_spans(stage.bus, trace)}
        got = {span for _, its_trace, span, _ in receiver.spans if its_trace == trace}
        return bool(kept) and kept == got

    await until(is_whole, "the receiver has every span of the trace", 30.0)
    services = {service for service, its_trace, _, _ in receiver.spans if its_trace == trace}
    assert services == {"flexpipe-executor", "flexpipe-worker", "flexpipe-router"}
