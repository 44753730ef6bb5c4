"""Ports of this machine for instances that run side by side. Used by `embedded`; binds only to look and to guard."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.model.fleet import PORTS_PER_PLAN

LOOPBACK = "127.0.0.1"
PLANS_A_NODE = 16
"""Plans that the engine ports of one node are for: its worker's `port_blocks`."""
GAP = 32
"""Ports behind them: for services, but for the last."""
PORTS_A_NODE = PLANS_A_NODE * PORTS_PER_PLAN + GAP
GUARD = PORTS_A_NODE - 1
"""The last port of a range stays bound as long as the range is taken: engines and services listen only seconds or
minutes after it was chosen, and another instance must not choose it meanwhile."""
ENGINE_PORTS = range(20_000, 31_000, PORTS_A_NODE)
"""Where the range of a node may begin: below the ports that the kernel gives to clients (32768 on)."""


class InstancePorts:
    """What one instance may listen on until it is left. Made by `instance_ports`."""

    def __init__(self, firsts: tuple[int, ...]) -> None:
        self.engines = firsts
        """The first engine port of each node: `PLANS_A_NODE` times `PORTS_PER_PLAN` from here are the node's."""
        gaps = (range(first + PORTS_A_NODE - GAP, first + GUARD) for first in firsts)
        self._left = chain.from_iterable(gaps)

    def service(self) -> int:
        """A port for a service: at each call another one, free now. Raises Unavailable where all are given out."""
        for port in self._left:
            if _is_free(port):
                return port
        raise Unavailable(f"this instance's {len(self.engines) * (GAP - 1)} ports are given out")


def free_port() -> int:
    """A port that nobody listens on at this moment; another program may have it in the next. See `instance_ports`."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_free(port: int) -> None:
    """Raises InvalidInput where somebody listens on the port."""
    if not _is_free(port):
        raise InvalidInput("port", port, "another program uses it; stop that one or give another")


@contextmanager
def instance_ports(nodes: int) -> Iterator[InstancePorts]:
    """Ports for an instance of so many nodes, its own until the block ends, whoever looks for some meanwhile.

    Raises Unavailable where there is no room for one more instance.
    """
    for base in ENGINE_PORTS:
        firsts = tuple(base + index * PORTS_A_NODE for index in range(nodes))
        with ExitStack() as guards:
            if all(_taken(first, guards) for first in firsts):
                yield InstancePorts(firsts)
                return
    raise Unavailable(f"no free engine ports between {ENGINE_PORTS.start} and {ENGINE_PORTS.stop}")


@contextmanager
def engine_ports(nodes: int) -> Iterator[tuple[int, ...]]:
    """The first engine port of each node, taken until the block ends. Raises as `instance_ports`."""
    with instance_ports(nodes) as ports:
        yield ports.engines


def _taken(first: int, guards: ExitStack) -> bool:
    """Take a range, if nobody has it and nobody listens in it."""
    guard = guards.enter_context(socket.socket())
    try:
        guard.bind((LOOPBACK, first + GUARD))
    except OSError:
        return False
    return all(_is_free(first + offset) for offset in range(GUARD))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - only to see whether any address has it
        except OSError:
            return False
        return True
