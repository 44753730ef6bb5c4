"""What the command line reads: buckets, the event log and the span log, as values."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import TypeVar

from flexpipe.bus.connection import Bus
from flexpipe.bus.envelope import open_envelope
from flexpipe.bus.hearing import Hearing, filters_of, stream_of
from flexpipe.bus.reading import read_stream
from flexpipe.events import catalog
from flexpipe.events.catalog import Lane, first_fault
from flexpipe.events.message import Message
from flexpipe.events.planning import Baseline
from flexpipe.events.trace import SpanEnded
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Delivered, Entry, Span
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import Fleet, Host, Node
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import DeviceReservations, ShiftRecord

V = TypeVar("V", bound=Frozen)
M = TypeVar("M", bound=Message)


async def read_values(bus: Bus, bucket: str, cls: type[V]) -> tuple[V, ...]:
    """Every value of a bucket, by key. Raises InvalidInput naming the key of one that cannot be read."""
    entries = sorted(await bus.read_all(bucket), key=lambda entry: entry.key)
    return tuple(_read(cls, entry, entry.value) for entry in entries if entry.value is not None)


def _read(cls: type[V], entry: Entry, text: str) -> V:
    try:
        return cls.model_validate_json(text)
    except ValueError as error:
        raise InvalidInput(f"{entry.bucket}/{entry.key}", text, first_fault(error)) from error


async def read_deployments(bus: Bus) -> tuple[Deployment, ...]:
    """What users declared."""
    return await read_values(bus, "deployments", Deployment)


async def declared(bus: Bus, name: str) -> Deployment:
    """One declared deployment. Raises InvalidInput with the names that there are."""
    deployments = {each.name: each for each in await read_deployments(bus)}
    if name not in deployments:
        known = ", ".join(sorted(deployments)) or "none yet"
        raise InvalidInput("deployment", name, f"apply it first; there are: {known}")
    return deployments[name]


async def read_routes(bus: Bus) -> tuple[RouteEntry, ...]:
    """The gears in force."""
    return await read_values(bus, "routes", RouteEntry)


async def read_fleet(bus: Bus) -> Fleet:
    """All nodes."""
    return Fleet(nodes=await read_values(bus, "fleet", Node))


async def read_hosts(bus: Bus) -> tuple[Host, ...]:
    """Where workers place engines."""
    return await read_values(bus, "hosts", Host)


async def read_baselines(bus: Bus) -> tuple[Baseline, ...]:
    """What the hatch would force."""
    return await read_values(bus, "baselines", Baseline)


async def read_reservations(bus: Bus) -> tuple[DeviceReservations, ...]:
    """What is held."""
    return await read_values(bus, "reservations", DeviceReservations)


async def read_shifts(bus: Bus, deployment: str | None = None) -> tuple[ShiftRecord, ...]:
    """All shift records, by deployment and number."""
    records = await read_values(bus, "shifts", ShiftRecord)
    chosen = (each for each in records if deployment in (None, each.deployment))
    return tuple(sorted(chosen, key=lambda each: (each.deployment, each.shift)))


async def read_shift(bus: Bus, number: int, deployment: str | None) -> ShiftRecord:
    """One shift. Raises InvalidInput where there is none, or several deployments have one of that number."""
    found = [record for record in await read_shifts(bus, deployment) if record.shift == number]
    if not found:
        raise InvalidInput("shift", number, "there is none of that number; see `flexpipe shifts`")
    if len(found) > 1:
        names = ", ".join(record.deployment for record in found)
        raise InvalidInput(
            "shift", number, f"several deployments have it; add --deployment (one of {names})"
        )
    return found[0]


async def read_spans(bus: Bus, trace: str) -> tuple[Span, ...]:
    """Every span kept of one trace; a span that was said twice is one."""
    spans: dict[str, Span] = {}
    async for delivered in history(bus, (Hearing(SpanEnded, key=trace),)):
        message = SpanEnded.model_validate_json(delivered.message)
        attributes = {**message.span.attributes, "flexpipe.service": message.service}
        spans[message.span.span_id] = message.span.model_copy(update={"attributes": attributes})
    return tuple(sorted(spans.values(), key=lambda span: (span.start_s, span.span_id)))


async def history(
    bus: Bus,
    hears: tuple[Hearing, ...],
    since_s: float | None = None,
    *,
    newest_only: bool = False,
) -> AsyncIterator[Delivered]:
    """What was said from `since_s` (epoch; None: from the beginning) to now, oldest first. Raises Unavailable.

    `newest_only`: of each class and key the last one, whenever it was said.
    """
    past = read_stream(
        bus.main,
        stream_of(hears),
        *filters_of(hears),
        since_s=since_s,
        newest_only=newest_only,
    )
    async for stored in past:
        try:
            said = open_envelope(
                stored.headers,
                stored.body,
                fallback_id=str(stored.sequence),
                subject=stored.subject,
                stored_at_s=stored.at_s,
            )
        except InvalidInput:
            continue  # of another version, or nobody's
        yield said


async def newest(bus: Bus, cls: type[M], deployment: str | None = None) -> tuple[M, ...]:
    """The newest message of a class for each of its keys (or for one), sorted by key."""
    hears = (Hearing(cls, key=deployment or "*"),)
    found: dict[str, M] = {}
    async for delivered in history(bus, hears, newest_only=True):
        message = cls.model_validate_json(delivered.message)
        found[message.bus_key()] = message
    return tuple(found[key] for key in sorted(found))


async def recent(
    bus: Bus, cls: type[M], deployment: str | None, *, since_s: float, last: int
) -> tuple[M, ...]:
    """The last few messages of a class since a time, oldest first."""
    hears = (Hearing(cls, key=deployment or "*"),)
    kept: deque[M] = deque(maxlen=last)
    async for delivered in history(bus, hears, since_s):
        kept.append(cls.model_validate_json(delivered.message))
    return tuple(kept)


def logged_events() -> tuple[Hearing, ...]:
    """Everything on the event log."""
    return tuple(Hearing(said.message) for said in catalog.MESSAGES if said.lane is Lane.EVT)
