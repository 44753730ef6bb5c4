"""Replay: a journal fed to fresh machines, each answer compared byte for byte with what was answered then.

Pure but for the machines it is given; called by the command line and by tests. It never touches the bus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flexpipe.bus.journal import Begin, Fed, effects_digest, effects_text, parse_line
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Machine


class Differing(Frozen):
    """One input whose answer is not the one in the journal. `effects` is the canonical text of the new answer."""

    run: str
    n: int
    now_s: float
    kind: str
    was: str  # digest
    became: str  # digest, or `crash: …`
    effects: str


class ReplayReport(Frozen):
    """What a replay found. `duration_s` is the machines' own time."""

    runs: int
    events: int
    differing: tuple[Differing, ...]
    duration_s: float


def replay(lines: Iterable[str], fresh: Callable[[], Machine]) -> ReplayReport:
    """Feed each run of a journal to a machine of its own (`fresh()`, or restored as the run began), and compare.

    Inputs that crashed the machine are fed too: they must crash it again, and are rolled back as they were then.
    Raises InvalidInput for a line that no shell wrote, a journal whose start is missing, or a run that began from a
    snapshot of another version.
    """
    machine: Machine | None = None
    run, n, runs, events = "", 0, 0, 0
    differing: list[Differing] = []
    began_s = time.perf_counter()
    for text in lines:
        match parse_line(text):
            case Begin() as line:
                machine, run, n = fresh(), line.run, 0
                runs += 1
                if line.snapshot is not None:
                    _restore(machine, line.snapshot)
            case Fed() as line:
                if machine is None:
                    raise InvalidInput("journal", text, "start at the first line of a run")
                if line.run != run or line.n <= n:
                    continue  # a batch that was stored twice
                events += 1
                difference = _feed(machine, line)
                if difference is not None:
                    differing.append(difference)
                n = n if line.is_crash else line.n
    return ReplayReport(
        runs=runs,
        events=events,
        differing=tuple(differing),
        duration_s=time.perf_counter() - began_s,
    )


def _restore(machine: Machine, snapshot: str) -> None:
    try:
        machine.restore(snapshot)
    except ValueError as error:
        raise InvalidInput(
            "journal",
            snapshot,
            "a run that began as another version of this machine is not replayed",
        ) from error


def _feed(machine: Machine, line: Fed) -> Differing | None:
    before = machine.snapshot() if line.is_crash else ""
    try:
        effects = machine.handle(line.now_s, line.event())
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a machine raises is its answer
        became, text = f"crash: {type(error).__name__}", repr(error)
    else:
        became, text = effects_digest(effects), effects_text(effects)
    if line.is_crash:
        machine.restore(before)
    if became == line.effects:
        return None
    return Differing(
        run=line.run,
        n=line.n,
        now_s=line.now_s,
        kind=line.kind,
        was=line.effects,
        became=became,
        effects=text,
    )
