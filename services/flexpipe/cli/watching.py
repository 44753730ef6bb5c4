"""The live screen: fleet, gears with their shifts, load, and the last events. Reads and draws; changes nothing.

Called by the command `watch`. On a terminal it redraws one screen; in a pipe it prints one frame, then a line an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flexpipe.bus.connection import Bus
from flexpipe.bus.hearing import Hearing
from flexpipe.cli import fleetview, looking, loopview
from flexpipe.cli.fleetview import NOTHING
from flexpipe.cli.saying import sentence_of
from flexpipe.cli.views import clock_text
from flexpipe.events import catalog, hatch, planning, shift
from flexpipe.events.fleet import FleetChanged
from flexpipe.events.plan import EngineFailed, EngineLost
from flexpipe.events.route import LoadObserved
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Delivered
from flexpipe.model.fleet import Fleet
from flexpipe.model.shift import DeviceReservations, ShiftRecord

REFRESH_S = 0.5
"""As often as anything in the fleet can change; a handful of small reads."""
PAST_S = 600.0
"""Events that a screen starts with."""
EVENTS_KEPT = 200
EVENTS_SHOWN = 12
"""In a frame that is no screen."""
LOADS_KEPT = 4096
"""Deployments × routers; beyond it the oldest are forgotten."""
CLOSED_SHOWN = 8
STALE_WINDOWS = 3.0
"""A router that has said nothing for three of its windows gives no data."""

WATCHED = (
    FleetChanged,
    *(planning.CandidatesProposed, planning.BaselineResolved, planning.ShiftDeclined),
    *(shift.ShiftOrdered, shift.ShiftRefused, shift.ShiftPhaseChanged, shift.PlanRetired),
    *(shift.ShiftCompleted, shift.ShiftRolledBack, shift.ShiftAbandoned),
    *(hatch.DeploymentPinned, hatch.DeploymentUnpinned, hatch.UrgentAnswered),
    *(EngineLost, EngineFailed),
)
"""What scrolls by."""
EVENTS = tuple(Hearing(cls) for cls in WATCHED)
LOADS = (Hearing(LoadObserved),)


class Line(Frozen):
    """One event."""

    at_s: float
    type: str
    says: str


class HeardLoad(Frozen):
    """What a router said last of a deployment, and when."""

    at_s: float
    load: LoadObserved


class Picture(Frozen):
    """Everything on the screen."""

    fleet: Fleet
    held: tuple[DeviceReservations, ...]
    gears: tuple[loopview.GearPicture, ...]
    loads: tuple[HeardLoad, ...]
    events: tuple[Line, ...]  # oldest first
    trouble: str | None = None  # why it may be old


async def read_gears(bus: Bus) -> tuple[loopview.GearPicture, ...]:
    """The gears in force with all that is known of them."""
    proposals = await looking.newest(bus, planning.CandidatesProposed)
    return await _gears(bus, proposals, await looking.read_fleet(bus))


async def _gears(
    bus: Bus, proposals: Sequence[planning.CandidatesProposed], fleet: Fleet
) -> tuple[loopview.GearPicture, ...]:
    entries = await looking.read_routes(bus)
    records = []
    for entry in entries:
        if entry.in_flight is not None:
            stored = await bus.read("shifts", f"{entry.deployment}.{entry.in_flight}")
            if stored.value is not None:
                records.append(ShiftRecord.model_validate_json(stored.value))
    return loopview.gear_pictures(
        await looking.read_deployments(bus),
        entries,
        records=records,
        proposals=proposals,
        baselines=await looking.read_baselines(bus),
        fleet=fleet,
    )


async def look(bus: Bus) -> Picture:
    """One picture of now."""
    memory = Memory()
    async for delivered in looking.history(bus, EVENTS, time.time() - PAST_S):
        memory.hear(delivered)
    await memory.catch_up(bus)
    return await memory.picture(bus)


class Memory:
    """What was heard so far; the rest of a picture is read when it is drawn."""

    def __init__(self) -> None:
        self._events: deque[Line] = deque(maxlen=EVENTS_KEPT)
        self._loads: dict[tuple[str, str], HeardLoad] = {}
        self._proposals: dict[str, planning.CandidatesProposed] = {}

    async def catch_up(self, bus: Bus) -> None:
        """The newest loads and proposals, however long ago they were said."""
        for hears in (LOADS, (Hearing(planning.CandidatesProposed),)):
            async for delivered in looking.history(bus, hears, newest_only=True):
                self._keep(delivered)

    def hear(self, delivered: Delivered) -> Line | None:
        """Take in one message; the line that it makes, where it is an event."""
        self._keep(delivered)
        message = catalog.parse(delivered.type, delivered.message)
        is_routine = isinstance(message, planning.CandidatesProposed) and not message.urgent
        if is_routine or isinstance(message, LoadObserved):
            return None  # every cycle brings some: the gears and their load are shown above
        at_s = time.time() if delivered.sent_at_s is None else delivered.sent_at_s
        line = Line(at_s=at_s, type=delivered.type, says=sentence_of(message))
        self._events.append(line)
        return line

    def _keep(self, delivered: Delivered) -> None:
        message = catalog.parse(delivered.type, delivered.message)
        if isinstance(message, planning.CandidatesProposed):
            self._proposals[message.deployment] = message
        if isinstance(message, LoadObserved):
            key = (message.deployment, message.router)
            self._loads.pop(key, None)
            self._loads[key] = HeardLoad(at_s=delivered.sent_at_s or 0.0, load=message)
            while len(self._loads) > LOADS_KEPT:
                del self._loads[next(iter(self._loads))]

    async def picture(self, bus: Bus) -> Picture:
        """What was heard, with the buckets as they are now. Raises Unavailable."""
        fleet = await looking.read_fleet(bus)
        return Picture(
            fleet=fleet,
            held=await looking.read_reservations(bus),
            gears=await _gears(bus, tuple(self._proposals.values()), fleet),
            loads=tuple(self._loads[key] for key in sorted(self._loads)),
            events=tuple(self._events),
        )


async def follow(bus: Bus, console: Console) -> None:
    """Draw until cancelled. Raises Unavailable where the bus stays away for long."""
    if not console.is_terminal:
        await _print_lines(bus, console)
        return
    memory = Memory()
    await memory.catch_up(bus)
    hearing = [
        asyncio.create_task(_hear(bus, EVENTS, memory, time.time() - PAST_S)),
        asyncio.create_task(_hear(bus, LOADS, memory, None)),
    ]
    picture = await memory.picture(bus)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                with contextlib.suppress(Unavailable):
                    picture = await memory.picture(bus)
                shown = picture if bus.main.is_up else _old(picture)
                live.update(frame(shown, time.time(), console), refresh=True)
                for task in hearing:
                    if task.done():
                        await task
                await asyncio.sleep(REFRESH_S)
    finally:
        for task in hearing:
            task.cancel()
        await asyncio.gather(*hearing, return_exceptions=True)


def _old(picture: Picture) -> Picture:
    return picture.model_copy(update={"trouble": "the bus does not answer: this is what was"})


async def _hear(
    bus: Bus, hears: tuple[Hearing, ...], memory: Memory, since_s: float | None
) -> None:
    async with bus.listen(hears, since_s=since_s) as deliveries:
        async for delivered in deliveries:
            memory.hear(delivered)


async def _print_lines(bus: Bus, console: Console) -> None:
    memory = Memory()
    async with bus.listen(
        EVENTS
    ) as deliveries:  # before the frame is drawn: nothing is missed between them
        console.print(frame(await look(bus), time.time()))
        async for delivered in deliveries:
            line = memory.hear(delivered)
            if line is not None:
                console.print(line_text(line), soft_wrap=True)


def frame(picture: Picture, now_s: float, screen: Console | None = None) -> RenderableType:
    """Everything, and the last events: a dozen, or on a screen as many as it has lines for, each cut to one line."""
    top: list[RenderableType] = [
        Text(f"{clock_text(now_s)}  {fleetview.fleet_line(picture.fleet, picture.held)}", "bold")
    ]
    if picture.trouble is not None:
        top.append(Text(picture.trouble, "bold white on red"))
    rows = fleetview.block_rows(picture.fleet, picture.held)
    top += [_block_text(row) for row in rows]
    closed = _closed_text(picture.fleet, now_s)
    if closed is not None:
        top.append(closed)
    top.append(_deployments_table(picture, now_s))
    emulated = _emulated_text(picture.gears)
    if emulated is not None:
        top.append(emulated)
    top += [note for each in picture.gears for note in _notes(each, now_s)]
    if not picture.events:
        return Group(*top, Text("no events yet", "dim"))
    if screen is None:
        return Group(*top, *map(line_text, picture.events[-EVENTS_SHOWN:]))
    used = len(screen.render_lines(Group(*top), pad=False))
    room = max(1, screen.size.height - used)
    events = [line_text(line) for line in picture.events[-room:]]
    for event in events:
        event.no_wrap, event.overflow = True, "ellipsis"
    return Group(*top, *events)


def _block_text(row: fleetview.BlockRow) -> Text:
    largest = row.largest_free
    free = (
        "nothing free as a whole"
        if largest is None
        else f"largest free {largest.id} ({largest.size})"
    )
    return Text(
        f"  {row.block.kind:<8} {row.block.id}: {row.block.size} × {row.block.model}, "
        f"{row.free} free, {free}"
    )


def _closed_text(fleet: Fleet, now_s: float) -> Text | None:
    closed = []
    for node in fleet.nodes:
        if node.state != "observed":
            closed.append(f"{node.node} {node.state}")
            continue
        for device in node.devices:
            stands = fleetview.standing(node, device, now_s)
            if stands.word != "open":
                closed.append(f"{node.node}/{device.device} {stands.sentence}")
    if not closed:
        return None
    more = f", and {len(closed) - CLOSED_SHOWN} more" if len(closed) > CLOSED_SHOWN else ""
    return Text(f"  not open: {', '.join(closed[:CLOSED_SHOWN])}{more}", "yellow")


def _deployments_table(picture: Picture, now_s: float) -> Table:
    table = Table()
    table.add_column("deployment", no_wrap=True)
    table.add_column("gear", overflow="fold")
    for column in ("req/s", "running", "queued", "TTFT P95", "P50 predicted"):
        table.add_column(column, justify="right", no_wrap=True)
    for gear in picture.gears:
        predicted = NOTHING if gear.outlook is None else f"{gear.outlook.ttft_p50_ms:.0f} ms"
        loads = [each for each in picture.loads if each.load.deployment == gear.deployment]
        table.add_row(gear.deployment, _gear_text(gear), *_load_cells(loads, now_s), predicted)
    return table


def _emulated_text(gears: Iterable[loopview.GearPicture]) -> Text | None:
    """Whose figures are those of emulated engines."""
    names: dict[str, list[str]] = {}
    for gear in gears:
        if gear.time_scale is not None:
            names.setdefault(loopview.emulated_text(gear.time_scale), []).append(gear.deployment)
    said = [f"{', '.join(names[words])}{words}" for words in sorted(names)]
    return Text(f"  figures of {'; '.join(said)}", "dim") if said else None


def _gear_text(gear: loopview.GearPicture) -> Text:
    if gear.entry is None or not gear.entry.plans:
        return Text("nothing serves", "red")
    return Text(" + ".join(routed.plan.shape for routed in gear.entry.plans))


def _load_cells(loads: Iterable[HeardLoad], now_s: float) -> tuple[str, str, str, str]:
    """Sums over routers; the P95 is that of the worst router, since P95s do not add up."""
    fresh = [each.load for each in loads if now_s - each.at_s <= STALE_WINDOWS * each.load.window_s]
    if not fresh:
        return ("no data", NOTHING, NOTHING, NOTHING)
    rate = sum(load.arrived / load.window_s for load in fresh if load.window_s > 0)
    running = sum(plan.running for load in fresh for plan in load.plans)
    queued = sum(load.queued + load.parked for load in fresh)
    tails = [load.ttft_p95_ms for load in fresh if load.ttft_p95_ms is not None]
    worst = f"{max(tails):.0f} ms" if tails else NOTHING
    return (f"{rate:.2f}", str(running), str(queued), worst)


def _notes(gear: loopview.GearPicture, now_s: float) -> list[Text]:
    """Plans with their places, shift in flight, pin and baseline, each with the deployment's name."""
    notes = loopview.gear_notes(gear.model_copy(update={"outlook": None}), now_s)
    if gear.entry is not None and gear.entry.plans:
        plans = (
            f"{routed.plan.shape} {routed.state} on {gear.places.get(routed.plan.id, NOTHING)}"
            for routed in gear.entry.plans
        )
        notes.insert(0, Text(f"  {'; '.join(plans)}"))
    return [Text(f"  {gear.deployment}:").append_text(note[1:]) for note in notes]


def line_text(line: Line) -> Text:
    """One event on one line."""
    return Text.assemble(
        (clock_text(line.at_s), "dim"), "  ", (line.type, "bold"), f"  {line.says}"
    )
