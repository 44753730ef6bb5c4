"""What the buckets say: the executor's mirror of every key it was shown, read once. It decides nothing."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from flexpipe.events.planning import Baseline
from flexpipe.events.route import RouterSeat
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Entry
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet, Node
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import DeviceReservations, Phase, ShiftRecord

CLOSED_KEPT: Final = 64
"""Closed records remembered per deployment, their long parts left out: repeated orders are recognized by them. The lane
keeps an order for ten minutes, in which no deployment closes so many."""

_OWN: Final[dict[str, type[Frozen]]] = {
    "routes": RouteEntry,
    "shifts": ShiftRecord,
    "reservations": DeviceReservations,
}
_FOREIGN: Final[dict[str, type[Frozen]]] = {
    "deployments": Deployment,
    "fleet": Node,
    "roster": RouterSeat,
    "baselines": Baseline,
}


class Books:
    """Entries by bucket and key. Values of our own buckets must be readable; those of others are absent if not."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._values: dict[str, dict[str, Frozen]] = {name: {} for name in (*_OWN, *_FOREIGN)}
        self._fleet: Fleet | None = None  # as last put together
        self.fleet_changes = 0  # how often the fleet was another one than before
        self.changes = 0  # how often anything was

    def learn(self, entry: Entry) -> None:
        """Take what is there now. Older revisions than the one known are ignored."""
        known = self._entries.get((entry.bucket, entry.key))
        if known is not None and entry.revision <= known.revision:
            return
        if entry.bucket not in self._values:
            return
        values = self._values[entry.bucket]
        value = _read(entry)
        if isinstance(value, ShiftRecord) and value.phase is Phase.CLOSED:
            value = value.model_copy(update={"moved": (), "notes": (), "log_tail": ""})
            entry = entry.model_copy(update={"value": value.canonical_json()})
        self._entries[entry.bucket, entry.key] = entry
        self.changes += 1
        if entry.bucket == "fleet":
            self._fleet = None
            self.fleet_changes += 1
        if value is None:
            values.pop(entry.key, None)
        else:
            values[entry.key] = value
        if isinstance(value, ShiftRecord) and value.phase is Phase.CLOSED:
            self._forget_oldest(value.deployment)

    def revision(self, bucket: str, key: str) -> int:
        """What a write of this key must expect."""
        entry = self._entries.get((bucket, key))
        return 0 if entry is None else entry.revision

    def text(self, bucket: str, key: str) -> str | None:
        """The stored text of a key."""
        entry = self._entries.get((bucket, key))
        return None if entry is None else entry.value

    def entries(self) -> tuple[Entry, ...]:
        """Everything known, sorted by bucket and key."""
        return tuple(self._entries[key] for key in sorted(self._entries))

    def deployment(self, name: str) -> Deployment | None:
        """What the user declared."""
        value = self._values["deployments"].get(name)
        return value if isinstance(value, Deployment) else None

    def route(self, deployment: str) -> RouteEntry | None:
        """The gear in force."""
        value = self._values["routes"].get(deployment)
        return value if isinstance(value, RouteEntry) else None

    def routes(self) -> tuple[RouteEntry, ...]:
        """All route entries, by deployment."""
        values = self._values["routes"]
        return tuple(v for key in sorted(values) if isinstance(v := values[key], RouteEntry))

    def records(self) -> tuple[ShiftRecord, ...]:
        """All shift records known, by deployment and number."""
        values = [v for v in self._values["shifts"].values() if isinstance(v, ShiftRecord)]
        return tuple(sorted(values, key=lambda record: (record.deployment, record.shift)))

    def record(self, deployment: str, shift: int) -> ShiftRecord | None:
        """One shift record."""
        value = self._values["shifts"].get(f"{deployment}.{shift}")
        return value if isinstance(value, ShiftRecord) else None

    def held(self, device: DeviceRef) -> DeviceReservations:
        """What is reserved on a device."""
        value = self._values["reservations"].get(device.key)
        return value if isinstance(value, DeviceReservations) else DeviceReservations(device=device)

    def all_held(self) -> tuple[DeviceReservations, ...]:
        """Reservations of all devices, by device."""
        values = self._values["reservations"]
        held = [v for v in values.values() if isinstance(v, DeviceReservations)]
        return tuple(sorted(held, key=lambda each: each.device))

    def fleet(self) -> Fleet:
        """All nodes known."""
        if self._fleet is None:
            values = self._values["fleet"]
            nodes = tuple(v for key in sorted(values) if isinstance(v := values[key], Node))
            self._fleet = Fleet(nodes=nodes)
        return self._fleet

    def node(self, name: str) -> Node | None:
        """One node."""
        value = self._values["fleet"].get(name)
        return value if isinstance(value, Node) else None

    def answering(self, node: str) -> bool:
        """Whether somebody can be expected to answer there: the node is known, and not lost."""
        known = self.node(node)
        return known is not None and known.state != "lost"

    def left(self, device: DeviceRef) -> str | None:
        """Why a device is not in the fleet any more, in words; None where it is, or where no fleet was seen yet."""
        fleet = self.fleet()
        if not fleet.nodes or fleet.device(device) is not None:
            return None
        node = fleet.node(device.node)
        if node is None:
            return f"node {device.node} left the fleet"
        if node.state == "lost":
            return f"node {device.node} is lost"
        found = next((each for each in node.devices if each.device == device.device), None)
        what = "left the fleet" if found is None else f"is {found.state}"
        return f"device {device} {what}"

    def baseline(self, deployment: str) -> Baseline | None:
        """What the planner last resolved the baseline to."""
        value = self._values["baselines"].get(deployment)
        return value if isinstance(value, Baseline) else None

    def roster(self) -> tuple[str, ...]:
        """Names of the routers, sorted."""
        return tuple(sorted(self._values["roster"]))

    def _forget_oldest(self, deployment: str) -> None:
        closed = [
            record
            for record in self.records()
            if record.deployment == deployment and record.phase is Phase.CLOSED
        ]
        for record in closed[:-CLOSED_KEPT]:
            del self._values["shifts"][record.key]
            del self._entries["shifts", record.key]


def _read(entry: Entry) -> Frozen | None:
    if entry.value is None:
        return None
    own = _OWN.get(entry.bucket)
    try:
        return (own or _FOREIGN[entry.bucket]).model_validate_json(entry.value)
    except ValidationError as error:
        if own is None:
            return None  # somebody else's fault; their key counts as absent until they mend it
        fault = f"{entry.bucket}/{entry.key} cannot be read: {error.errors()[0]['msg']}"
        raise BrokenInvariant(fault) from error
