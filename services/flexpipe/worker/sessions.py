"""Sessions of operating-system processes: who is in one, and how to end all of it. Linux: reads `/proc`.

What a rank group is made of: everything in the session its leader founded, and everything that descends from it.
A zombie holds no memory, so it does not count.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

LOOK_EVERY_S: Final = 0.05
"""How often a session that ends is looked at. One look reads the process table: a few milliseconds."""

PROC: Final = Path("/proc")


class ProcessFact(NamedTuple):
    """One process that is there. `start_ticks` (since boot) tells it from a later one of the same pid."""

    parent: int
    session: int
    start_ticks: int


Table = Mapping[int, ProcessFact]


def process_table() -> dict[int, ProcessFact]:
    """Every process that is not a zombie, by pid."""
    table: dict[int, ProcessFact] = {}
    for name in os.listdir(PROC):
        if name.isdigit():
            fact = process_fact(int(name))
            if fact is not None:
                table[int(name)] = fact
    return table


def process_fact(pid: int) -> ProcessFact | None:
    """One process, or None where it is gone or a zombie. Fields of proc(5), counted after the name."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent, _, session, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else ProcessFact(int(parent), int(session), int(rest[15]))


def boot_id() -> str:
    """Differs from boot to boot: pids and start ticks mean nothing in another one."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def members(session: int, table: Table | None = None) -> dict[int, int]:
    """Start ticks by pid of a session's processes and of all that descend from them."""
    table = process_table() if table is None else table
    found = {pid for pid, fact in table.items() if fact.session == session}
    grown = True
    while grown:
        children = {pid for pid, fact in table.items() if fact.parent in found} - found
        found |= children
        grown = bool(children)
    return {pid: table[pid].start_ticks for pid in sorted(found)}


async def end_session(session: int, grace_s: float, limit_s: float) -> tuple[int, ...]:
    """SIGTERM to all, SIGKILL after the grace and again to whatever turns up; pids that are left at the limit."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    # A descendant that founded a session of its own loses its link to us when its parent dies: keep it by pid.
    known = members(session)
    _send(known, signal.SIGTERM)
    while True:
        table = process_table()
        known |= members(session, table)
        left = [
            pid for pid, ticks in known.items() if pid in table and table[pid].start_ticks == ticks
        ]
        passed_s = loop.time() - began_s
        if not left or passed_s >= limit_s:
            return tuple(sorted(left))
        if passed_s >= grace_s:
            _send(left, signal.SIGKILL)
        await asyncio.sleep(LOOK_EVERY_S)


def _send(pids: Iterable[int], which: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, which)
        except ProcessLookupError:
            continue
