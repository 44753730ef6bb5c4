"""The placer port: how rank groups become processes somewhere. `processes` is the form for one machine.

Containers and pods are other forms of the same port; `hands` knows nothing of them.
"""

from __future__ import annotations

from typing import Protocol

from flexpipe.engines.port import LaunchSpec
from flexpipe.kernel.errors import FlexPipeError

Address = tuple[str, int]
"""Host and port."""


class NotPlaced(FlexPipeError):
    """A group could not be started, and nothing of it runs. One line that names the cause and the fix."""


class Placed(Protocol):
    """One rank group that was started."""

    @property
    def pid(self) -> int:
        """Its leader, for people."""
        ...

    async def ended(self) -> str:
        """Returns when the leader is gone, and says how."""
        ...

    async def end(self, grace_s: float, limit_s: float) -> tuple[int, ...]:
        """Ask all processes to end, kill them after `grace_s`; returns what is left at `limit_s` (nothing, else pids).

        May be called again, also while it runs (the later call replaces the earlier).
        """
        ...

    def log_tail(self) -> str:
        """The last lines that its processes wrote; bounded."""
        ...


class Placer(Protocol):
    """Starts rank groups."""

    async def sweep(self) -> None:
        """End every group that an earlier worker of this node left. Raises Unavailable naming what does not end."""
        ...

    async def place(self, group: str, spec: LaunchSpec, ports: tuple[Address, ...]) -> Placed:
        """Start a group; `ports` are those its first process will listen on. Raises NotPlaced."""
        ...

    async def close(self) -> None:
        """End whatever is left of what was placed."""
        ...
