"""Finished `Span` effects become OpenTelemetry spans and leave by OTLP, where the standard variables name a receiver.

Machines give spans as data with derived ids, so a span that was already sent before a crash is the same span after it.
The SDK (`otlp`) is loaded only where spans have somewhere to go: it is a tenth of a service's start.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from flexpipe.kernel.machine import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from flexpipe.telemetry.otlp import Otlp


class SpanSink(Protocol):
    """Where finished spans go."""

    def __call__(self, span: Span) -> None:
        """Take one span; never blocks, never raises."""
        ...


class OtlpSpans:
    """Sends spans by OTLP/HTTP when `OTEL_EXPORTER_OTLP_ENDPOINT` (or the traces one) is set; else does nothing."""

    def __init__(self, service: str, exporter: SpanExporter | None = None) -> None:
        self._otlp: Otlp | None = None
        if exporter is not None or _receiver_is_named():
            from flexpipe.telemetry.otlp import Otlp  # noqa: PLC0415 - see the module

            self._otlp = Otlp(service, exporter)

    def __call__(self, span: Span) -> None:
        """Queue one span for sending."""
        if self._otlp is not None:
            self._otlp.take(span)

    def close(self) -> None:
        """Send what waits, within a limit."""
        if self._otlp is not None:
            self._otlp.close()


def _receiver_is_named() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return bool(
        os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )
