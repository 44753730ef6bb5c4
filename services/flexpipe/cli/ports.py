"""Ports of this machine for instances that run side by side. Used by `embedded`; binds only to look and to guard."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from flexpipe.kernel.errors import InvalidInput, Unavailable

ENGINE_PORTS = range(20_000, 31_000, 520)
"""Where the engine ports of a node may begin: below the ports that the kernel gives to clients (32768 on)."""
PORTS_A_NODE = 520
"""64 plans of eight ports, and a gap."""
PORTS_LOOKED_AT = 64
"""Ports at the beginning of a node's range that must be free: eight plans, more than a machine like this one holds."""
GUARD = PORTS_A_NODE - 1
"""The last port of a range, in the gap, stays bound as long as the range is taken: engines listen only minutes after
the range was chosen, and another instance must not choose it meanwhile."""


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_free(port: int) -> None:
    """Raises InvalidInput where somebody listens on the port."""
    if not _is_free(port):
        raise InvalidInput("port", port, "another program uses it; stop that one or give another")


@contextmanager
def engine_ports(nodes: int) -> Iterator[tuple[int, ...]]:
    """The first engine port of each node, taken until the block ends.

    Nobody listens where their first plans go. Raises Unavailable where there is no room for one more instance.
    """
    for base in ENGINE_PORTS:
        firsts = tuple(base + index * PORTS_A_NODE for index in range(nodes))
        with ExitStack() as guards:
            if all(_taken(first, guards) for first in firsts):
                yield firsts
                return
    raise Unavailable(f"no free engine ports between {ENGINE_PORTS.start} and {ENGINE_PORTS.stop}")


def _taken(first: int, guards: ExitStack) -> bool:
    guard = guards.enter_context(socket.socket())
    try:
        guard.bind(("127.0.0.1", first + GUARD))
    except OSError:
        return False
    return all(_is_free(first + offset) for offset in range(PORTS_LOOKED_AT))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - only to see whether any address has it
        except OSError:
            return False
        return True
