"""What views look like on a terminal, as text."""

from __future__ import annotations

from rich.console import Console, RenderableType

COLUMNS = 80


def page(view: RenderableType, columns: int = COLUMNS) -> str:
    """As on a terminal of so many columns; no line is wider."""
    console = Console(width=columns, force_terminal=False)
    with console.capture() as capture:
        console.print(view)
    text = capture.get()
    assert max(map(len, text.splitlines()), default=0) <= columns
    return text


def words(view: RenderableType, columns: int = COLUMNS) -> str:
    """The same with all blanks and line ends as one blank: for sentences that were wrapped."""
    return " ".join(page(view, columns).split())


def row_of(text: str, start: str) -> str:
    """The one line of a page that holds `start`."""
    (line,) = [line for line in text.splitlines() if start in line]
    return " ".join(line.replace("│", " ").split())
