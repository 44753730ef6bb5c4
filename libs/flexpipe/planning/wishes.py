"""Why to look at a deployment before its cycle is over, and when that can be done. Used by the planner's machine.

A message may overtake the bucket entries that it speaks of: a wish waits until they are known and have settled, and no
longer than a limit.
"""

from __future__ import annotations

from typing import Final, Literal

from flexpipe.kernel.frozen import Frozen

Cause = Literal["fleet", "shift", "plan", "room"]

SETTLE_S: Final = 0.05
"""Entries of one atomic batch, and what a shift writes at its end, come within milliseconds of each other."""
NEWS_S: Final = 0.5
"""A plan may be lost because its cards go. What died is heard of before the fleet shows why, and a look in between
would lay the next plan on the same dying block: an agent's word takes a quarter of a second to become a revision."""
GAP_S: Final = 0.25
"""Least time between two urgent looks: a rack that falls card by card is a few proposals, not one a card."""
OVERTAKEN_LIMIT_S: Final = 12.0
"""How long a wish waits for what it speaks of. Watched buckets are compared in full every ten seconds."""
STALE_S: Final = 60.0
"""A message that was on the bus for longer speaks of what the buckets have shown since: it waited for a planner that
was down, and asks for nothing."""

ORIGIN_S: Final = 90.0
"""How long what happened to a deployment's own devices is the reason for what is proposed to it: past the end of any
cooldown there are other reasons."""

_WEIGHT: Final[dict[Cause, int]] = {"fleet": 3, "shift": 2, "plan": 1, "room": 0}


class Wish(Frozen):
    """To look at one deployment soon."""

    cause: Cause
    sentence: str  # for people
    heard_at_s: float
    until_s: float
    fleet_revision: int = 0  # that the fleet must have reached
    shift: int | None = None  # that must not be in flight any more
    trace_id: str | None = None
    parent_span_id: str | None = None


class Blow(Frozen):
    """What happened to devices of a deployment's own plans: later looks without a trace of their own go on with its."""

    at_s: float
    trace_id: str
    span_id: str


def joined(old: Wish | None, new: Wish) -> Wish:
    """One wish for two. The weightier cause speaks, and both conditions hold; which came first does not matter."""
    if old is None:
        return new
    first, second = sorted((old, new), key=_weight)
    return second.model_copy(
        update={
            "heard_at_s": min(first.heard_at_s, second.heard_at_s),
            "until_s": max(first.until_s, second.until_s),
            "fleet_revision": max(first.fleet_revision, second.fleet_revision),
            "shift": second.shift if second.shift is not None else first.shift,
        }
    )


def _weight(wish: Wish) -> tuple[int, int, int, str]:
    return _WEIGHT[wish.cause], wish.fleet_revision, wish.shift or 0, wish.canonical_json()


def ready_at_s(wish: Wish, *, is_known: bool, fleet_at_s: float, looked_at_s: float) -> float:
    """When its look is due, as things stand. `fleet_at_s` is that of the fleet's last entry."""
    if not is_known:
        return wish.until_s
    settled = max(wish.heard_at_s, fleet_at_s) + SETTLE_S
    if wish.cause in ("plan", "shift"):
        settled = max(settled, wish.heard_at_s + NEWS_S)
    return min(max(settled, looked_at_s + GAP_S), wish.until_s)
