"""How a command ends for its caller: one line on standard error and an exit code. Called by `app` and `__main__`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flexpipe.kernel.errors import FlexPipeError, InvalidInput


@contextmanager
def exits() -> Iterator[None]:
    """Errors of ours are one line: 2 for a wrong input, 1 for anything else; 130 after an interrupt."""
    try:
        yield
    except FlexPipeError as error:
        print(f"flexpipe: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidInput) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
