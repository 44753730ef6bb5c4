"""Ports for tests that start processes: neighbours that nobody else takes between the look and the use."""

from __future__ import annotations

import os
import socket
from itertools import count
from typing import Final

BLOCK: Final = 32
BLOCKS: Final = range(20_000, 31_000, BLOCK)
"""Below the range that the kernel draws ports of outgoing connections from: one of those would take a port of ours."""

_calls = count()


def free_ports(ports: int = BLOCK) -> int:
    """The first of so many neighbouring ports that are free. Processes, and calls within one, look at other places."""
    assert ports <= BLOCK
    first = (os.getpid() * 7 + next(_calls)) % len(BLOCKS)
    starts: list[int] = [*BLOCKS[first:], *BLOCKS[:first]]
    for start in starts:
        if all(_is_free(start + offset) for offset in range(ports)):
            return start
    raise AssertionError(f"no {ports} neighbouring ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0
