"""Values from buckets, the event log and the span log, as tables and trees for people. Pure: reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flexpipe.cli import fleetview
from flexpipe.cli.fleetview import holders, standing
from flexpipe.kernel.machine import Span
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.sequence import MovedSequence, Verdict
from flexpipe.model.shift import DeviceReservations, Outcome, Phase, PhaseTiming, ShiftRecord

NOTHING = fleetview.NOTHING

_STATE_STYLE = {
    PlanState.ACTIVE: "green",
    PlanState.CANARY: "cyan",
    PlanState.FROZEN: "yellow",
    PlanState.RETIRING: "dim",
}
_OUTCOME_STYLE = {
    Outcome.COMPLETED: "green",
    Outcome.ROLLED_BACK: "yellow",
    Outcome.ABANDONED: "red",
}


def status_view(
    entries: Sequence[RouteEntry],
    fleet: Fleet,
    held: Sequence[DeviceReservations],
    now_s: float,
) -> RenderableType:
    """What serves now, how each device stands and what it holds."""
    return Group(_routes_table(entries), _devices_table(fleet, held, now_s))


def _routes_table(entries: Sequence[RouteEntry]) -> RenderableType:
    if not entries:
        return Text("nothing serves: `flexpipe apply -f FILE`")
    table = Table(title="deployments", title_justify="left", expand=False)
    for column in ("deployment", "plan", "shape", "state", "admits"):
        table.add_column(column, no_wrap=True)
    table.add_column("where", overflow="fold")
    for entry in entries:
        for routed in entry.plans:
            where = f"{', '.join(map(str, routed.plan.devices))} ({routed.front.removeprefix('http://')})"
            table.add_row(
                entry.deployment,
                routed.plan.id,
                routed.plan.shape,
                plan_state_text(routed.state),
                f"{routed.admit:g}",
                where,
            )
        for note in _notes(entry):
            table.add_row(entry.deployment, Text(note, style="yellow"))
    return table


def _notes(entry: RouteEntry) -> list[str]:
    notes = []
    if not entry.plans:
        notes.append("stopped by hand" if entry.stopped else "nothing serves")
    if entry.in_flight is not None:
        notes.append(f"shift {entry.in_flight} in flight")
    if entry.pin is not None:
        notes.append(f"pinned by {entry.pin.by}: {entry.pin.reason}")
    return notes


def _devices_table(fleet: Fleet, held: Sequence[DeviceReservations], now_s: float) -> Table:
    table = Table(title=f"devices (fleet revision {fleet.revision})", title_justify="left")
    for column in ("device", "model"):
        table.add_column(column, no_wrap=True)
    for column in ("GB", "held GB"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("state", "for"):
        table.add_column(column, overflow="fold")
    by_device = holders(held)
    for node in fleet.nodes:
        for device in node.devices:
            ref = DeviceRef(node=node.node, device=device.device)
            reserved, stands = by_device.get(ref), standing(node, device, now_s)
            holds = () if reserved is None else reserved.held
            table.add_row(
                str(ref),
                device.model,
                f"{device.memory_bytes / 1e9:.2f}",
                f"{sum(one.bytes for one in holds) / 1e9:.2f}",
                Text(stands.sentence, style=stands.style),
                ", ".join(f"{one.deployment} {one.plan}" for one in holds),
            )
    return table


def shifts_view(records: Sequence[ShiftRecord]) -> RenderableType:
    """All shifts, oldest first; reasons below, where there is room for sentences."""
    if not records:
        return Text("no shift was ordered yet")
    table = Table(title="shifts", title_justify="left")
    for column in ("deployment", "shift"):
        table.add_column(column, no_wrap=True)
    table.add_column("gears", overflow="fold")
    for column in ("outcome", "class"):
        table.add_column(column, no_wrap=True)
    for column in ("moved", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for record in records:
        outcome = outcome_text(record.outcome)
        if record.phase is not Phase.CLOSED:
            outcome.append(f" ({record.phase})", style="cyan")
        table.add_row(
            record.deployment,
            str(record.shift),
            f"{record.source.label} → {record.order.target.label}",
            outcome,
            record.start_class,
            str(len(moved_only(record.moved))),
            seconds_of(record),
        )
    reasons = [
        Text(f"{each.deployment} {each.shift}: {each.reason}", style="yellow")
        for each in records
        if each.reason
    ]
    return Group(table, *reasons)


def shift_view(record: ShiftRecord) -> RenderableType:
    """One shift: order, phases with durations, sequences, reason."""
    head = Table.grid(padding=(0, 2))
    head.add_row("shift", f"{record.deployment} {record.shift} (term {record.term})")
    head.add_row("order", Text(f"{record.order.trigger} (by {record.order.by})"))
    head.add_row("gears", f"{record.source.label} → {record.order.target.label}")
    head.add_row("outcome", outcome_text(record.outcome))
    if record.reason:
        head.add_row("reason", Text(record.reason))
    for note in record.notes:
        head.add_row("note", Text(note))
    parts: list[RenderableType] = [
        head,
        phases_table(record.timings, record.start_class),
        moved_table(record.moved),
    ]
    if record.log_tail:
        parts.append(
            Panel(
                Text(record.log_tail.strip()), title="the engine's last words", title_align="left"
            )
        )
    return Group(*parts)


def phases_table(timings: Sequence[PhaseTiming], start_class: str) -> Table:
    """Phases with their durations."""
    table = Table(title=f"phases ({start_class})", title_justify="left")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    for timing in timings:
        if timing.phase is Phase.CLOSED:
            continue  # an end, not a stretch of time
        lasted = NOTHING if timing.end_s is None else f"{timing.end_s - timing.start_s:.3f}"
        table.add_row(timing.phase, lasted)
    return table


def moved_table(moved: Sequence[MovedSequence]) -> RenderableType:
    """How each sequence came through the hand-over."""
    if not moved:
        return Text("no sequence was in flight", style="dim")
    table = Table(title="sequences", title_justify="left")
    for column in ("sequence", "verdict", "tokens before", "pause ms", "reason"):
        table.add_column(
            column, justify="right" if column in ("tokens before", "pause ms") else "left"
        )
    for each in moved:
        pause = NOTHING if each.pause_ms is None else f"{each.pause_ms:.0f}"
        table.add_row(
            Text(each.sequence[:16]), each.verdict, str(each.tokens), pause, Text(each.reason)
        )
    return table


def trace_view(spans: Sequence[Span]) -> RenderableType:
    """One trace as a tree, with durations and a bar of when each span lay within the whole."""
    if not spans:
        return Text("no spans are kept for this shift", style="yellow")
    start_s = min(span.start_s for span in spans)
    end_s = max(span.end_s for span in spans)
    children: dict[str | None, list[Span]] = {}
    known = {span.span_id for span in spans}
    for span in sorted(spans, key=lambda each: (each.start_s, each.end_s, each.span_id)):
        parent = span.parent_span_id if span.parent_span_id in known else None
        children.setdefault(parent, []).append(span)
    tree = Tree(Text(f"trace {spans[0].trace_id}  {end_s - start_s:.3f} s", style="bold"))
    _grow(tree, None, children, (start_s, end_s))
    return tree


BAR_COLUMNS = 24


def _grow(
    tree: Tree,
    parent: str | None,
    children: dict[str | None, list[Span]],
    whole: tuple[float, float],
) -> None:
    for span in children.get(parent, ()):
        lasted_ms = (span.end_s - span.start_s) * 1000
        label = Text(f"{span.name} ", style="red" if span.error else "")
        label.append(f"{lasted_ms:,.0f} ms ", style="cyan")
        label.append(_bar(span, whole), style="blue")
        if span.error:
            label.append(f" {span.error}", style="red")
        _grow(tree.add(label), span.span_id, children, whole)


def _bar(span: Span, whole: tuple[float, float]) -> str:
    start_s, end_s = whole
    scale = BAR_COLUMNS / max(end_s - start_s, 1e-9)
    first = min(int((span.start_s - start_s) * scale), BAR_COLUMNS - 1)
    last = max(first + 1, round((span.end_s - start_s) * scale))
    return " " * first + "━" * (last - first) + " " * (BAR_COLUMNS - last)


def plan_state_text(state: PlanState) -> Text:
    """The state of a plan in a route entry, coloured."""
    return Text(state, style=_STATE_STYLE[state])


def outcome_text(outcome: Outcome | None) -> Text:
    """The outcome, coloured; `in flight` where there is none yet."""
    return (
        Text("in flight", style="cyan")
        if outcome is None
        else Text(outcome.replace("_", " "), style=_OUTCOME_STYLE[outcome])
    )


def moved_only(moved: Iterable[MovedSequence]) -> list[MovedSequence]:
    """Those that went to another plan."""
    return [
        each for each in moved if each.verdict in (Verdict.REPLAY, Verdict.MIGRATE, Verdict.REQUEUE)
    ]


def seconds_of(record: ShiftRecord) -> str:
    """From order to commit (or to the end where there was no commit)."""
    end_s = record.committed_at_s or record.closed_at_s
    return NOTHING if end_s is None else f"{end_s - record.order.ordered_at_s:.1f}"


def clock_text(at_s: float) -> str:
    """A wall-clock time of day, UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S.%f")[:-3]
