"""What the buckets say: the planner's mirror of every key it was shown. It decides nothing.

The buckets of others are read tolerantly: a value that cannot be read counts as absent until its writer mends it.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from flexpipe.events.planning import Baseline
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Entry
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet, Node
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import DeviceReservations

_KINDS: Final[dict[str, type[Frozen]]] = {
    "deployments": Deployment,
    "fleet": Node,
    "routes": RouteEntry,
    "reservations": DeviceReservations,
    "baselines": Baseline,
}

BUCKETS: Final = tuple(_KINDS)
"""What the planner watches: `baselines` is its own, the others are read only."""


class Books:
    """Entries by bucket and key, each read once."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._values: dict[str, dict[str, Frozen]] = {name: {} for name in _KINDS}
        self._fleet: Fleet | None = None

    def learn(self, entry: Entry) -> None:
        """Take what is there now. Watches never give an older revision after a newer one, unless the store was lost."""
        kind = _KINDS.get(entry.bucket)
        if kind is None:
            return
        self._entries[entry.bucket, entry.key] = entry
        value = _read(kind, entry)
        if value is None:
            self._values[entry.bucket].pop(entry.key, None)
        else:
            self._values[entry.bucket][entry.key] = value
        if entry.bucket == "fleet":
            self._fleet = None

    def revision(self, bucket: str, key: str) -> int:
        """The revision of a key; 0 where it was never shown."""
        entry = self._entries.get((bucket, key))
        return 0 if entry is None else entry.revision

    def entries(self) -> tuple[Entry, ...]:
        """Everything known, sorted by bucket and key."""
        return tuple(self._entries[key] for key in sorted(self._entries))

    def deployments(self) -> tuple[Deployment, ...]:
        """What users declared, by name."""
        values = self._values["deployments"]
        return tuple(v for key in sorted(values) if isinstance(v := values[key], Deployment))

    def deployment(self, name: str) -> Deployment | None:
        """One of them."""
        value = self._values["deployments"].get(name)
        return value if isinstance(value, Deployment) else None

    def route(self, deployment: str) -> RouteEntry | None:
        """The gear in force."""
        value = self._values["routes"].get(deployment)
        return value if isinstance(value, RouteEntry) else None

    def baseline(self, deployment: str) -> Baseline | None:
        """What was last written for the hatch."""
        value = self._values["baselines"].get(deployment)
        return value if isinstance(value, Baseline) else None

    def fleet(self) -> Fleet:
        """All nodes known."""
        if self._fleet is None:
            values = self._values["fleet"]
            nodes = (v for key in sorted(values) if isinstance(v := values[key], Node))
            self._fleet = Fleet(nodes=tuple(nodes))
        return self._fleet

    def held(self) -> dict[DeviceRef, DeviceReservations]:
        """Devices with at least one reservation, sorted."""
        values = self._values["reservations"]
        held = [v for v in values.values() if isinstance(v, DeviceReservations) and v.held]
        return {each.device: each for each in sorted(held, key=lambda each: each.device)}


def _read(kind: type[Frozen], entry: Entry) -> Frozen | None:
    if entry.value is None:
        return None
    try:
        return kind.model_validate_json(entry.value)
    except ValidationError:
        return None
