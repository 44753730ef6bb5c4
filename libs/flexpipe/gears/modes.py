"""The registry of gear modes. A new mode is one file and one line here; the contract test finds it by this tuple."""

from __future__ import annotations

from flexpipe.gears.aggregated import AGGREGATED
from flexpipe.gears.mode import GearMode
from flexpipe.gears.pipelined import PIPELINED
from flexpipe.kernel.errors import InvalidInput

MODES: tuple[GearMode, ...] = (AGGREGATED, PIPELINED)


def mode_of(tp: int, pp: int) -> GearMode:
    """The mode that lays out this width and depth. Raises InvalidInput where none does."""
    for mode in MODES:
        if mode.takes(tp, pp):
            return mode
    raise InvalidInput("shape", f"tp{tp}pp{pp}", "no gear mode lays this out")
