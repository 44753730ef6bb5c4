"""How commands print: tables for people, one JSON document for programs.

What others said (reasons, last words of an engine, paths) is printed as `Text`: in a plain string rich takes a word in
brackets for markup, drops it, or raises.
"""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from flexpipe.cli import ordering, views
from flexpipe.cli.saying import sentence_of
from flexpipe.events import catalog
from flexpipe.events import hatch as hatch_events
from flexpipe.events import shift as shift_events
from flexpipe.events.message import Message
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Delivered

console = Console()


def teller(*, as_json: bool) -> ordering.Told:
    """Prints the events of a shift as they come; nothing where the answer is for a program."""

    def tell(message: Message) -> None:
        if not as_json:
            console.print(_line(message), highlight=False)

    return tell


def _line(message: Message) -> Text:
    match message:
        case shift_events.ShiftOrdered():
            return Text(f"shift {message.shift} accepted: {message.trigger}")
        case shift_events.ShiftPhaseChanged():
            return Text(f"{views.clock_text(message.at_s)}  {message.phase}")
        case shift_events.ShiftCompleted():
            after = f" after {message.duration_s:.1f} s ({message.start_class})"
            return Text.assemble(("completed", "green"), after)
        case shift_events.ShiftRolledBack():
            after = f" after {message.duration_s:.1f} s: {message.reason}"
            return Text.assemble(("rolled back", "yellow"), after)
        case shift_events.ShiftAbandoned():
            after = f" after {message.duration_s:.1f} s: {message.reason}"
            return Text.assemble(("abandoned", "red"), after)
        case hatch_events.UrgentAnswered():
            style = {"done": "green", "refused": "red"}.get(message.outcome, "cyan")
            return Text.assemble((message.outcome, style), f": {message.says}")
        case _:
            return Text(sentence_of(message))


def finish(told: Message, *, as_json: bool) -> None:
    """Print the outcome for machines, and let the exit code say whether the new gear is in force."""
    if as_json:
        show({"event": type(told).__name__, **told.model_dump(mode="json")}, as_json=True)
    if isinstance(told, shift_events.ShiftRolledBack | shift_events.ShiftAbandoned):
        raise typer.Exit(1)


def event_line(delivered: Delivered, *, as_json: bool) -> None:
    """One event of the log, one line: when the bus took it, what it is, and what it says."""
    body = json.loads(delivered.message)
    if as_json:
        print(json.dumps({"type": delivered.type, "at_s": delivered.sent_at_s, **body}))
        return
    at_s = delivered.sent_at_s
    line = Text.assemble(
        "" if at_s is None else f"{views.clock_text(at_s)}  ",
        (delivered.type, "bold"),
        f"  {sentence_of(catalog.parse(delivered.type, delivered.message))}",
    )
    console.print(line, highlight=False, soft_wrap=True)


def show(document: Any, view: RenderableType | None = None, *, as_json: bool) -> None:
    """The document as JSON, or its view for people."""
    if as_json or view is None:
        print(json.dumps(_plain(document), allow_nan=False))
    else:
        console.print(view)


def _plain(document: Any) -> Any:
    if isinstance(document, Frozen):
        return document.model_dump(mode="json")
    if isinstance(document, dict):
        return {key: _plain(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_plain(value) for value in document]
    return document
