"""What the loop sees and decides, for people: gears in force, candidates, refusals. Pure: values in, renderables out.

Called by the commands `gears`, `candidates`, `declined` and `watch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flexpipe.cli.fleetview import NOTHING
from flexpipe.cli.saying import load_text, sentence_of
from flexpipe.cli.views import clock_text, plan_state_text
from flexpipe.events.planning import (
    Baseline,
    BaselineResolved,
    CandidatesProposed,
    ShiftDeclined,
)
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import Candidate, GearOutlook, GuardVerdict, Load, PlanOutlook
from flexpipe.model.plan import Plan
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import ShiftRecord

FOREVER_S = 86_400.0
"""Blocks expected to stay for longer than a day are shown as staying."""


class GearPicture(Frozen):
    """One deployment as the loop has it now."""

    deployment: str
    entry: RouteEntry | None  # None: it never served
    places: dict[str, str]  # plan → the blocks or devices it lies on
    outlook: GearOutlook | None  # predicted of the gear in force, by the newest proposal
    running: ShiftRecord | None  # the shift that holds its slot
    baseline: Baseline | None
    baseline_place: str | None  # where the hatch would put it
    fleet_revision: int
    time_scale: float | None  # of emulated engines, whose figures say nothing about real ones


def gear_pictures(
    deployments: Sequence[Deployment],
    entries: Sequence[RouteEntry],
    *,
    records: Sequence[ShiftRecord],
    proposals: Sequence[CandidatesProposed],
    baselines: Sequence[Baseline],
    fleet: Fleet,
) -> tuple[GearPicture, ...]:
    """One picture a deployment that is declared or routed, sorted."""
    routed = {entry.deployment: entry for entry in entries}
    newest = {proposal.deployment: proposal for proposal in proposals}
    resolved = {baseline.deployment: baseline for baseline in baselines}
    scales = time_scales(deployments)
    open_shifts = {(record.deployment, record.shift): record for record in records}
    pictures = []
    for name in sorted({each.name for each in deployments} | set(routed)):
        entry = routed.get(name)
        plans = () if entry is None else tuple(each.plan for each in entry.plans)
        in_flight = None if entry is None else entry.in_flight
        picture = GearPicture(
            deployment=name,
            entry=entry,
            places={plan.id: place_text(plan, fleet) for plan in plans},
            outlook=_outlook_of(plans, newest.get(name)),
            running=None if in_flight is None else open_shifts.get((name, in_flight)),
            baseline=resolved.get(name),
            baseline_place=_baseline_place(resolved.get(name), fleet),
            fleet_revision=fleet.revision,
            time_scale=scales.get(name),
        )
        pictures.append(picture)
    return tuple(pictures)


def time_scales(deployments: Sequence[Deployment]) -> dict[str, float]:
    """Time scale of each deployment whose engines are emulated."""
    emulated = (each for each in deployments if each.engine.form == "emulated")
    return {each.name: each.engine.time_scale for each in emulated}


def emulated_text(time_scale: float | None) -> str:
    """What has to be said beside figures of emulated engines; nothing beside those of real ones."""
    return "" if time_scale is None else f" (emulated, time scale {time_scale:g})"


def _baseline_place(baseline: Baseline | None, fleet: Fleet) -> str | None:
    if baseline is None or baseline.gear is None:
        return None
    return ", ".join(f"{p.shape} on {place_text(p, fleet)}" for p in baseline.gear.plans)


def _outlook_of(plans: Sequence[Plan], proposal: CandidatesProposed | None) -> GearOutlook | None:
    """What was predicted of these plans; None where the newest proposal looked at another gear."""
    if proposal is None or not plans:
        return None
    known = {plan.id for plan in proposal.current.gear.plans}
    return proposal.current.outlook if known & {plan.id for plan in plans} else None


def place_text(plan: Plan, fleet: Fleet) -> str:
    """Where a plan lies: for each stage its block, or its devices where they are no block."""
    blocks = {frozenset(block.devices): block.id for block in reversed(fleet.blocks)}
    stages = []
    for stage in plan.stages:
        block = blocks.get(frozenset(stage.devices))
        stages.append(_devices_text(stage.devices) if block is None else block)
    return " → ".join(stages)


def _devices_text(refs: Sequence[DeviceRef]) -> str:
    return ",".join(map(str, refs))


def gears_view(pictures: Sequence[GearPicture], now_s: float) -> RenderableType:
    """The gears in force, one table a deployment, and what is to be known about each."""
    if not pictures:
        return Text("nothing is declared: `flexpipe apply -f FILE`")
    parts: list[RenderableType] = []
    for picture in pictures:
        parts.append(_gear_title(picture))
        if picture.entry is not None and picture.entry.plans:
            parts.append(_plans_table(picture, picture.entry))
        parts.extend(gear_notes(picture, now_s))
    return Group(*parts)


def _gear_title(picture: GearPicture) -> Text:
    entry = picture.entry
    if entry is None or not entry.plans:
        words = "stopped by hand" if entry is not None and entry.stopped else "nothing serves"
    else:
        words = " + ".join(routed.plan.shape for routed in entry.plans)
    emulated = emulated_text(picture.time_scale)
    return Text.assemble((picture.deployment, "bold"), f": {words}", (emulated, "dim"))


def _plans_table(picture: GearPicture, entry: RouteEntry) -> Table:
    table = Table()
    for column in ("plan", "shape", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("predicted", overflow="fold")
    admits = sum(routed.admit for routed in entry.plans)
    outlooks = {} if picture.outlook is None else {p.plan: p for p in picture.outlook.plans}
    for routed in entry.plans:
        table.add_row(
            routed.plan.id,
            routed.plan.shape,
            plan_state_text(routed.state),
            f"{routed.admit / admits:.0%}" if admits else "0%",
            Text(picture.places.get(routed.plan.id, NOTHING)),
            Text(plan_outlook_text(outlooks.get(routed.plan.id))),
        )
    return table


def gear_notes(picture: GearPicture, now_s: float) -> list[Text]:
    """Prediction of the whole, shift in flight, pin and baseline: a line each."""
    notes = []
    if picture.outlook is not None:
        notes.append(Text(f"  predicted: {outlook_text(picture.outlook)}"))
    entry = picture.entry
    if entry is not None and entry.in_flight is not None:
        notes.append(Text(f"  {flight_text(entry.in_flight, picture.running, now_s)}", "cyan"))
    if picture.running is not None:
        notes.append(Text(f"  because {picture.running.order.trigger}", "dim"))
    if entry is not None and entry.pin is not None:
        pin = entry.pin
        words = f"  pinned by {pin.by} at {clock_text(pin.at_s)}: {pin.reason}"
        notes.append(Text(f"{words}; automation is off", "yellow"))
    notes.append(_baseline_text(picture))
    return notes


def _baseline_text(picture: GearPicture) -> Text:
    baseline = picture.baseline
    if baseline is None:
        return Text("  baseline: not resolved; no planner has spoken yet", "yellow")
    words = sentence_of(BaselineResolved(baseline=baseline)).partition(": ")[2]
    if baseline.gear is None:
        return Text(f"  {words}; a downshift would be refused", "bold white on red")
    stale = baseline.fleet_revision < picture.fleet_revision
    late = f" (the fleet is at revision {picture.fleet_revision})" if stale else ""
    return Text(f"  {words}{late}: {picture.baseline_place}", "green")


def flight_text(number: int, record: ShiftRecord | None, now_s: float) -> str:
    """A shift in flight: its phase and how long it has been in it."""
    if record is None:
        return f"shift {number} in flight"
    since_s = record.timings[-1].start_s if record.timings else record.accepted_at_s
    return (
        f"shift {number} in flight: {record.source.label} → {record.order.target.label}, "
        f"{record.phase} for {max(0.0, now_s - since_s):.1f} s"
    )


def plan_outlook_text(outlook: PlanOutlook | None) -> str:
    """One plan's prediction, short."""
    if outlook is None:
        return NOTHING
    return (
        f"TTFT {outlook.ttft_p50_ms:.0f} ms, ITL {outlook.itl_p50_ms:.1f} ms, "
        f"{outlook.good_requests_per_s:.3g} good req/s, "
        f"{outlook.capacity_tokens:,} KV tokens, bound by {outlook.bound_by}"
    )


def outlook_text(outlook: GearOutlook) -> str:
    """A gear's prediction, short."""
    return (
        f"{outlook.good_tokens_per_s:.4g} good tokens/s, at most {outlook.good_requests_per_s:.3g} "
        f"good requests/s, TTFT {outlook.ttft_p50_ms:.0f} ms, ITL {outlook.itl_p50_ms:.1f} ms"
    )


def candidates_view(
    proposals: Sequence[CandidatesProposed], fleet: Fleet, deployments: Sequence[Deployment]
) -> RenderableType:
    """The newest proposal of each deployment: load, gears side by side, what they start, what was rejected and why."""
    if not proposals:
        return Text("no proposal on the event log: no planner has spoken yet", "yellow")
    scales = time_scales(deployments)
    parts: list[RenderableType] = []
    for proposal in proposals:
        emulated = emulated_text(scales.get(proposal.deployment))
        parts += [_proposal_head(proposal, emulated), _candidates_table(proposal)]
        for rank, candidate in enumerate(proposal.candidates, start=1):
            if candidate.starts:
                parts.append(Text(f"  {rank} would start {_starts_text(candidate, fleet)}"))
        for each in proposal.rejected:
            parts.append(Text(f"  not {each.what}: {each.reason}", "dim"))
    return Group(*parts)


def _proposal_head(proposal: CandidatesProposed, emulated: str) -> Text:
    urgent = ", at once" if proposal.urgent else ""
    text = Text.assemble(
        (proposal.deployment, "bold"),
        f": {clock_text(proposal.at_s)} on fleet revision {proposal.fleet_revision}{urgent}: "
        f"{proposal.trigger}",
    )
    text.append(f"\n  load: {_seen_load(proposal.load)}")
    text.append(f"\n  long: {_seen_load(proposal.long_load)}")
    text.append(f"\n  predicted{emulated}, TTFT and ITL P50 in ms:")
    return text


def _seen_load(load: Load) -> str:
    words = load_text(load)
    if load.queued:
        words += f", {load.queued} waiting"
    if load.ttft_p95_ms is not None:
        words += f", TTFT P95 {load.ttft_p95_ms:.0f} ms"
    if load.itl_p50_ms is not None:
        words += f", ITL P50 {load.itl_p50_ms:.1f} ms"
    return words


def _candidates_table(proposal: CandidatesProposed) -> Table:
    table = Table()
    table.add_column("", no_wrap=True)
    table.add_column("gear", overflow="fold")
    table.add_column("on", overflow="fold")
    for column in ("good tok/s", "req/s", "TTFT", "ITL", "starts", "stays s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_row("now", *_candidate_row(proposal.current), style="bold")
    for rank, candidate in enumerate(proposal.candidates, start=1):
        table.add_row(str(rank), *_candidate_row(candidate))
    return table


def _candidate_row(candidate: Candidate) -> tuple[str, ...]:
    outlook, gear = candidate.outlook, candidate.gear
    return (
        gear.label,
        _device_counts(gear),
        f"{outlook.good_tokens_per_s:.4g}",
        f"{outlook.good_requests_per_s:.3g}",
        f"{outlook.ttft_p50_ms:.0f}",
        f"{outlook.itl_p50_ms:.1f}",
        str(len(candidate.starts)),
        f"{candidate.stays_s:.0f}" if candidate.stays_s < FOREVER_S else "∞",
    )


def _starts_text(candidate: Candidate, fleet: Fleet) -> str:
    """The plans that are not there yet, each with its place."""
    plans = (plan for plan in candidate.gear.plans if plan.id in candidate.starts)
    return ", ".join(f"{plan.shape} on {place_text(plan, fleet)}" for plan in plans)


def _device_counts(gear: Gear) -> str:
    """Devices by model, of whose name the first part says enough here: `8 H100 + 2 L40S`."""
    counts: dict[str, int] = {}
    for plan in gear.plans:
        for stage in plan.stages:
            model = stage.device_model.partition("-")[0]
            counts[model] = counts.get(model, 0) + len(stage.devices)
    return " + ".join(f"{counts[model]} {model}" for model in sorted(counts)) or "0"


def declined_view(
    declines: Sequence[ShiftDeclined], deployments: Sequence[Deployment]
) -> RenderableType:
    """Refusals, oldest first, each with the numbers of its candidates."""
    if not declines:
        return Text("nothing was declined in this time")
    factors = {each.name: each.policy.hysteresis for each in deployments}
    scales = time_scales(deployments)
    parts: list[RenderableType] = []
    for decline in declines:
        parts.append(
            Text.assemble(
                f"{clock_text(decline.at_s)}  ",
                (decline.deployment, "bold"),
                f": {decline.guard}: {decline.reason}",
                (emulated_text(scales.get(decline.deployment)), "dim"),
            )
        )
        if decline.declined:
            parts.append(_declined_table(decline, factors.get(decline.deployment)))
    return Group(*parts)


def _declined_table(decline: ShiftDeclined, hysteresis: float | None) -> Table:
    """Predicted tokens of each candidate; a refusal that is the reason of all is not written out again."""
    table = Table()
    for column in ("gear", "on"):
        table.add_column(column, overflow="fold")
    for column in ("gain", "cost", "gain/cost", "needs", "over s", "start s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("refused by", overflow="fold")
    for each in decline.declined:
        price = each.price
        ratio = f"{price.gain_tokens / price.cost_tokens:.2f}" if price.cost_tokens else NOTHING
        refused = next((verdict for verdict in each.verdicts if not verdict.passed), None)
        table.add_row(
            each.gear.label,
            _device_counts(each.gear),
            f"{price.gain_tokens:,.0f}",
            f"{price.cost_tokens:,.0f}",
            ratio,
            NOTHING if hysteresis is None else f"> {hysteresis:g}",
            f"{price.horizon_s:.0f}",
            f"{price.start_s:.1f}",
            Text(_refusal_text(refused, decline.reason)),
        )
    return table


def _refusal_text(refused: GuardVerdict | None, reason: str) -> str:
    if refused is None:
        return NOTHING
    return refused.guard if refused.says == reason else f"{refused.guard}: {refused.says}"
