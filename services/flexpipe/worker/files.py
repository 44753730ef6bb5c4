"""Files that must be whole after a crash: written beside, synced, renamed into place."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flexpipe.kernel.errors import InvalidInput


def write_durably(path: Path, text: str) -> None:
    """Replace a file's content. When this returns, the new content survives a crash; before, the old one does."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Make a folder and hold it for this process alone. Raises InvalidInput where another holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            fix = "another worker runs on it: stop that one or give another directory"
            raise InvalidInput("state_dir", str(folder), fix) from error
        yield
