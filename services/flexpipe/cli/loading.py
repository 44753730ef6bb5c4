"""Loads what one service needs and no more: a fleet starts many services at once, and most of a start is imports.

Called by `__main__` and `serving`, around the imports of a service.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NOT_NEEDED: Final = "httpx._main"
"""httpx loads a terminal command of its own, and rich, pygments and click for it, wherever they are installed. It does
without where that cannot be imported; None here is how Python is told so."""


@contextmanager
def loading() -> Iterator[None]:
    """Around imports. What they leave is there for good, so that the collector never looks at it."""
    collects = gc.isenabled()
    gc.disable()
    blocked = NOT_NEEDED not in sys.modules
    if blocked:
        sys.modules[NOT_NEEDED] = None  # type: ignore[assignment]  # documented, though not typed
    try:
        yield
    finally:
        if blocked:
            del sys.modules[NOT_NEEDED]
        if collects:
            gc.freeze()
            gc.enable()
