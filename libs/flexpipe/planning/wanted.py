"""The demand that gears are weighed against, from the load that was seen. Called by `proposal`.

What is not known is never taken for nothing: without data, the demand is what the present gear can carry, so that no
smaller gear looks as good.
"""

from __future__ import annotations

from typing import Final

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.outlook import Load
from flexpipe.performance.outlook import DEFAULT_OUTPUT_TOKENS, DEFAULT_PROMPT_TOKENS

HEADROOM: Final = 1.2
"""Demand is taken a fifth higher than it was seen: random arrivals of a window at 1/1.2 of what a gear carries seldom
exceed it, and a gear that only just holds would be changed again at once."""


class Wanted(Frozen):
    """`basis` is what outlooks are reckoned for and published under; `need` the same with head-room, for ranking."""

    basis: Load
    need: Load
    may_shrink: bool  # whether it is known that less is asked for

    @property
    def requests_per_s(self) -> float:
        """What is asked for, head-room included."""
        return self.need.arrived_per_s


def wanted(short: Load, long: Load, present_rate: float) -> Wanted:
    """From both windows and the rate that the present gear carries (0 where nothing serves).

    A backlog is to be worked off within the short window. Shapes of requests that neither window knows are those that
    the performance model assumes.
    """
    prompt = short.prompt_tokens or long.prompt_tokens or DEFAULT_PROMPT_TOKENS
    output = short.output_tokens or long.output_tokens or DEFAULT_OUTPUT_TOKENS
    match short.data:
        case "no-data":
            arrived, backlog = max(long.arrived_per_s, present_rate / HEADROOM), 0.0
        case "idle" | "busy":
            arrived = short.arrived_per_s
            backlog = short.queued / short.window_s if short.window_s > 0 else 0.0
    known = {"data": "busy", "prompt_tokens": prompt, "output_tokens": output}
    basis = short.model_copy(update={**known, "arrived_per_s": arrived})
    need = basis.model_copy(update={"arrived_per_s": HEADROOM * arrived + backlog})
    return Wanted(basis=basis, need=need, may_shrink=short.data != "no-data")
