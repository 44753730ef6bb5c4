"""Keeps the input journals of an instance's machines as files, for `flexpipe replay`."""

from __future__ import annotations

from collections.abc import Callable

from flexpipe.bus.connection import Bus
from flexpipe.bus.journal import write_journal_file
from flexpipe.cli.embedded import AGENT
from flexpipe.cli.layouts import Layout

ALWAYS = (("agent", AGENT), ("monitor", "monitor"), ("executor", "executor"))
LOOP = (("planner", "planner"), ("estimator", "estimator"))


async def keep_journals(bus: Bus, layout: Layout, step: Callable[[str], None]) -> None:
    """What every deciding machine was fed, one file each in `journals`."""
    folder = layout.folder / "journals"
    folder.mkdir(exist_ok=True)
    machines = [*ALWAYS, *(LOOP if layout.loop else ())]
    machines += [("worker", node.node) for node in layout.fleet().nodes]
    machines += [("router", name) for name in layout.routers]
    for service, name in machines:
        await write_journal_file(bus, service, name, folder / f"{service}-{name}.jsonl")
    step(f"input journals kept in {folder}")
