"""`flexpipe journal export` and `flexpipe replay`: a journal in a file, and fed to a fresh machine of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flexpipe.bus.connection import Bus
from flexpipe.bus.journal import Begin, parse_line, write_journal_file
from flexpipe.bus.replay import ReplayReport, replay
from flexpipe.costing import Estimator
from flexpipe.fragments.monitor import Monitor
from flexpipe.fragments.sampling import Agent
from flexpipe.hosting.worker import Worker
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.machine import Machine
from flexpipe.model.names import Name
from flexpipe.planning import Planner
from flexpipe.routing.machine import Routing
from flexpipe.transitions.machine import Executor

MACHINES: dict[str, Callable[[str], Machine]] = {
    "agent": lambda _: Agent(),
    "estimator": lambda _: Estimator(),
    "executor": lambda _: Executor(),
    "planner": lambda _: Planner(),
    "monitor": lambda _: Monitor(),
    "router": lambda name: Routing(name, url=""),
    "worker": lambda _: Worker(),
}
"""Service → its deciding machine, made with the name of the instance; each run's first line says what it was."""


async def export_file(bus: Bus, service: str, name: str, path: Path) -> int:
    """Write the journal of one machine; the number of lines.

    Raises InvalidInput for a machine without a journal or a file that cannot be written, Unavailable.
    """
    if service not in MACHINES:
        raise InvalidInput("service", service, "use one of " + ", ".join(sorted(MACHINES)))
    try:
        TypeAdapter(Name).validate_python(name)
        lines = await write_journal_file(bus, service, name, path)
    except ValidationError as error:
        raise InvalidInput("name", name, error.errors()[0]["msg"]) from error
    except OSError as error:
        raise InvalidInput("file", str(path), f"{error.strerror}; name another") from error
    if not lines:
        raise InvalidInput("name", name, f"no {service} of that name has a journal")
    return lines


def replay_file(path: Path) -> ReplayReport:
    """Replay a file of `flexpipe journal export`. Raises InvalidInput where it is not one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("file", str(path), "name a file of `flexpipe journal export`") from error
    first = parse_line(lines[0]) if lines else None
    if not isinstance(first, Begin) or first.service not in MACHINES:
        raise InvalidInput(
            "file", str(path), "it must start with the first line of a run of a known service"
        )
    make = MACHINES[first.service]
    return replay(lines, lambda: make(first.name))
