"""What the buckets say: the estimator's mirror of declared deployments and route entries. It decides nothing.

Values of others that cannot be read count as absent until their writer mends them.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Entry
from flexpipe.model.deployment import Deployment
from flexpipe.model.route import RouteEntry

_KINDS: Final[dict[str, type[Frozen]]] = {"deployments": Deployment, "routes": RouteEntry}

BUCKETS: Final = tuple(_KINDS)
"""What the estimator watches."""


class Books:
    """Entries by bucket and key, each read once."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._values: dict[tuple[str, str], Frozen] = {}

    def learn(self, entry: Entry) -> None:
        """Take what is there now. A watch never gives an older revision after a newer one."""
        kind = _KINDS.get(entry.bucket)
        if kind is None:
            return
        place = (entry.bucket, entry.key)
        self._entries[place] = entry
        self._values.pop(place, None)
        if entry.value is None:
            return
        try:
            self._values[place] = kind.model_validate_json(entry.value)
        except ValidationError:
            return

    def revision(self, bucket: str, key: str) -> int:
        """The revision of a key; 0 where it was never shown."""
        entry = self._entries.get((bucket, key))
        return 0 if entry is None else entry.revision

    def entries(self) -> tuple[Entry, ...]:
        """Everything known, sorted by bucket and key."""
        return tuple(self._entries[place] for place in sorted(self._entries))

    def deployment(self, name: str) -> Deployment | None:
        """What the user declared."""
        value = self._values.get(("deployments", name))
        return value if isinstance(value, Deployment) else None

    def route(self, deployment: str) -> RouteEntry | None:
        """The gear in force."""
        value = self._values.get(("routes", deployment))
        return value if isinstance(value, RouteEntry) else None
