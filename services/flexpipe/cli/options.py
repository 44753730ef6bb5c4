"""What command modules share: options, and how a command is run. Called by `app` and by the modules of commands."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")

SHIFT_LIMIT_S = 900.0
"""Waiting for a shift ends after this: longer than every step limit together at their defaults."""

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
OfDeployment = Annotated[
    str | None, typer.Option("--deployment", "-d", help="Of this deployment only.")
]
OneDeployment = Annotated[str | None, typer.Argument(help="Of this deployment only.")]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one command's work to its end."""
    return asyncio.run(coroutine)
