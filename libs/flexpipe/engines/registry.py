"""Every engine by the name that deployments call it: one line an engine. The worker and the command line ask here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flexpipe.engines.emulated.adapter import EmulatedAdapter
from flexpipe.engines.port import EngineAdapter
from flexpipe.engines.sglang.adapter import SglangAdapter
from flexpipe.kernel.errors import InvalidInput

ENGINES: Final[Mapping[str, Callable[[str], EngineAdapter]]] = {
    "emulated": EmulatedAdapter,
    "sglang": SglangAdapter,
}
"""Name → adapter, made with the interpreter of the engine's environment."""


def adapter(kind: str, python: str) -> EngineAdapter:
    """The adapter of an engine. Raises InvalidInput for a name that is not known."""
    make = ENGINES.get(kind)
    if make is None:
        raise InvalidInput("engine.kind", kind, f"use one of {', '.join(sorted(ENGINES))}")
    return make(python)
