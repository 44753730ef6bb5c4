"""The command `flexpipe`, also as `python -m flexpipe.cli`.

`run SERVICE` is told apart here, because services need nothing of what the other commands load. Whatever is not exactly
that (its help, a wrong option) is `app`'s to answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from flexpipe.cli.exits import exits

HELD = "--exit-with-parent"
"""As `app` declares it."""


class Run(NamedTuple):
    """`run SERVICE`, as it was typed."""

    service: str
    exit_with_parent: bool


def run_of(words: Sequence[str]) -> Run | None:
    """The service that a command line runs, where it says that and no more; else None."""
    if len(words) < 2 or words[0] != "run":
        return None
    rest = [word for word in words[1:] if word != HELD]
    if len(rest) != 1 or rest[0].startswith("-") or len(words) - len(rest) > 2:
        return None
    return Run(rest[0], HELD in words)


def main() -> None:
    """The entry point."""
    run = run_of(sys.argv[1:])
    if run is None:
        from flexpipe.cli.app import main as every_command  # noqa: PLC0415

        every_command()
        return
    from flexpipe.cli.loading import loading  # noqa: PLC0415

    with exits():
        with loading():
            from flexpipe.cli.serving import run_in_foreground  # noqa: PLC0415
        run_in_foreground(run.service, exit_with_parent=run.exit_with_parent)


if __name__ == "__main__":
    main()
