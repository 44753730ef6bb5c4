"""Every metric on one page: name, kind, what it says, its labels. Units are in the names; labels are bounded.

Services build their meters from it (`flexpipe.telemetry.meters`); machines name them in `Measure` effects.
"""

from __future__ import annotations

from typing import Literal

from flexpipe.kernel.frozen import Frozen

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets of anything a client waits for, from a decode step on a GPU to a long prompt on a CPU."""

PHASES_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Buckets of a shift's phases, from a compare-and-set to the start of a large engine."""

RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
"""Buckets of what was seen over what was predicted."""


class Metric(Frozen):
    """One metric. Labels with a plan's id carry plans of route entries only and go when the plan goes."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    says: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = LATENCY_S


METRICS: tuple[Metric, ...] = (
    Metric(
        name="flexpipe_router_requests_total",
        kind="counter",
        says="Requests that came to an end, by how.",
        labels=("deployment", "finish"),
    ),
    Metric(
        name="flexpipe_router_ttft_seconds",
        kind="histogram",
        says="Time from a request's arrival to its first token.",
        labels=("deployment",),
    ),
    Metric(
        name="flexpipe_router_itl_seconds",
        kind="histogram",
        says="Time between tokens of a stream, pauses of hand-overs included.",
        labels=("deployment",),
    ),
    Metric(
        name="flexpipe_router_output_tokens_total",
        kind="counter",
        says="Tokens accepted from engines.",
        labels=("deployment",),
    ),
    Metric(
        name="flexpipe_router_prompt_tokens_total",
        kind="counter",
        says="Prompt tokens of resumable requests, as clients sent them.",
        labels=("deployment",),
    ),
    Metric(
        name="flexpipe_router_late_tokens_total",
        kind="counter",
        says="Tokens dropped by the ledger because they came under an old epoch, or twice.",
        labels=("deployment", "reason"),
    ),
    Metric(
        name="flexpipe_router_in_flight",
        kind="gauge",
        says="Sequences at an engine.",
        labels=("deployment", "plan"),
    ),
    Metric(
        name="flexpipe_router_parked",
        kind="gauge",
        says="Sequences that wait in the router for a plan.",
        labels=("deployment",),
    ),
    Metric(
        name="flexpipe_router_hand_over_pause_seconds",
        kind="histogram",
        says="Last token under the old epoch to first under the new, by verdict.",
        labels=("deployment", "verdict"),
    ),
    Metric(
        name="flexpipe_router_ledger_violations_total",
        kind="counter",
        says="Sequences whose ledger broke its law. Anything but zero is a fault of ours.",
        labels=("deployment",),
    ),
    Metric(
        name="flexpipe_router_unreadable_entries_total",
        kind="counter",
        says="Bucket entries that could not be read; the last good one stayed in force.",
        labels=("source",),
    ),
    Metric(
        name="flexpipe_executor_shifts_total",
        kind="counter",
        says="Shifts whose record closed, by outcome and by what they found prepared.",
        labels=("deployment", "outcome", "start_class"),
    ),
    Metric(
        name="flexpipe_executor_urgent_total",
        kind="counter",
        says="Answers to urgent commands, by what became of them.",
        labels=("deployment", "outcome"),
    ),
    Metric(
        name="flexpipe_executor_phase_seconds",
        kind="histogram",
        says="How long each phase of a closed shift lasted.",
        labels=("deployment", "phase", "start_class"),
        buckets=PHASES_S,
    ),
    Metric(
        name="flexpipe_planner_proposals_total",
        kind="counter",
        says="Proposals, by what asked for the look: the cycle, the fleet, a shift, a lost plan, room.",
        labels=("deployment", "reason"),
    ),
    Metric(
        name="flexpipe_planner_candidates_total",
        kind="counter",
        says="Candidates in proposals: gears that are better than the one in force.",
        labels=("deployment",),
    ),
    Metric(
        name="flexpipe_estimator_orders_total",
        kind="counter",
        says="Shifts that the estimator ordered.",
        labels=("deployment",),
    ),
    Metric(
        name="flexpipe_estimator_declines_total",
        kind="counter",
        says="Proposals that led to no order, by the guard that refused the best candidate.",
        labels=("deployment", "guard"),
    ),
    Metric(
        name="flexpipe_estimator_shift_time_ratio",
        kind="histogram",
        says="Time from order to commit over the time that was predicted.",
        labels=("deployment", "start_class"),
        buckets=RATIOS,
    ),
    Metric(
        name="flexpipe_estimator_itl_ratio",
        kind="histogram",
        says="ITL as clients see it over what was predicted of the gear, one window after a shift.",
        labels=("deployment",),
        buckets=RATIOS,
    ),
    Metric(
        name="flexpipe_monitor_nodes",
        kind="gauge",
        says="Nodes of the fleet, by state.",
        labels=("state",),
    ),
    Metric(
        name="flexpipe_monitor_placeable_devices",
        kind="gauge",
        says="Devices on which something new may be placed.",
    ),
    Metric(
        name="flexpipe_monitor_fleet_revision",
        kind="gauge",
        says="Revision of the fleet that is in the bucket.",
    ),
    Metric(
        name="flexpipe_monitor_revisions_total",
        kind="counter",
        says="Revisions of the fleet that were written.",
    ),
    Metric(
        name="flexpipe_monitor_detection_seconds",
        kind="histogram",
        says="Last sign of what was to the revision in which a device is gone.",
    ),
)
