"""Prometheus meters made from the catalogue. One object a service, with a registry of its own."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from flexpipe.kernel.machine import Measure
from flexpipe.telemetry.catalogue import METRICS, Metric

_LOG = logging.getLogger(__name__)

Meter = Counter | Gauge | Histogram


class Meters:
    """Takes readings by name. `prefix` says which part of the catalogue this service shows."""

    def __init__(self, prefix: str) -> None:
        self.registry = CollectorRegistry()
        chosen = (metric for metric in METRICS if metric.name.startswith(prefix))
        self._meters = {metric.name: _meter(metric, self.registry) for metric in chosen}

    def __call__(self, measure: Measure) -> None:
        """A machine's reading."""
        self.take(measure.name, measure.value, **measure.labels)

    def take(self, name: str, value: float, **labels: str) -> None:
        """Add to a counter, set a gauge, observe in a histogram.

        A name, label or value that the catalogue does not allow is logged: metrics never stop work.
        """
        meter = self._meters.get(name)
        if meter is None:
            _LOG.error("metric %s is not in the catalogue of this service", name)
            return
        try:
            _take(meter.labels(**labels) if labels else meter, value)
        except ValueError as error:
            _LOG.error("metric %s was not taken: %s", name, error)

    def forget(self, name: str) -> None:
        """Drop every series of one metric; a gauge of the living is filled anew at each scrape."""
        meter = self._meters.get(name)
        if meter is not None:
            meter.clear()

    def page(self) -> bytes:
        """What `/metrics` answers."""
        return generate_latest(self.registry)


def _take(meter: Meter, value: float) -> None:
    match meter:
        case Counter():
            meter.inc(value)
        case Gauge():
            meter.set(value)
        case Histogram():
            meter.observe(value)


def _meter(metric: Metric, registry: CollectorRegistry) -> Meter:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.says, metric.labels, registry=registry)
        case "gauge":
            return Gauge(metric.name, metric.says, metric.labels, registry=registry)
        case "histogram":
            return Histogram(
                metric.name, metric.says, metric.labels, registry=registry, buckets=metric.buckets
            )
