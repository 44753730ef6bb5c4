"""A monitor without agents: what workers say they can place on is what the fleet has. Mounted by worlds and on a bus.

It stands for agents that see exactly the configured devices; it carves no blocks and closes no device.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from flexpipe.kernel.machine import Effects, Entry, Input, Put, Started, Stored, Watched
from flexpipe.model.fleet import Host, Node

HOSTS: Final = "hosts"
FLEET: Final = "fleet"


class FakeMonitor:
    """Bucket `hosts` in, bucket `fleet` out. `nodes` are the nodes with every device they have."""

    WATCHES: Final = (HOSTS, FLEET)

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.node: node for node in nodes}
        self._hosts: dict[str, str | None] = {}
        self._fleet: dict[str, tuple[str | None, int]] = {}

    def handle(self, now_s: float, event: Input) -> Effects:
        """One input."""
        match event:
            case Started(entries=entries) | Stored(entries=entries):
                self._learn(entries)
            case Watched(entry=entry):
                self._learn((entry,))
            case _:
                pass
        return Effects(do=tuple(self._puts()))

    def _learn(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            known = self._fleet.get(entry.key, (None, 0))
            if entry.bucket == HOSTS:
                self._hosts[entry.key] = entry.value
            elif entry.revision > known[1]:
                self._fleet[entry.key] = (entry.value, entry.revision)

    def _puts(self) -> Iterable[Put]:
        for name, host in sorted(self._hosts.items()):
            value, revision = self._fleet.get(name, (None, 0))
            wanted = self._seen(name, host)
            if wanted != value:
                yield Put(
                    write_id=f"monitor {name} {revision}",
                    bucket=FLEET,
                    key=name,
                    value=wanted,
                    expected=revision,
                )

    def _seen(self, name: str, text: str | None) -> str | None:
        if text is None or name not in self._nodes:
            return None
        node, host = self._nodes[name], Host.model_validate_json(text)
        devices = tuple(each for each in node.devices if each.device in host.devices)
        return node.model_copy(update={"devices": devices}).canonical_json()

    def snapshot(self) -> str:
        """What it knows."""
        return json.dumps([self._hosts, self._fleet])

    def restore(self, snapshot: str) -> None:
        """Know what another one knew."""
        self._hosts, fleet = json.loads(snapshot)
        self._fleet = {name: (value, revision) for name, (value, revision) in fleet.items()}
