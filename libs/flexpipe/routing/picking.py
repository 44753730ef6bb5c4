"""Pick a plan for one request: filter, score, pick.

Called by `admission`. The filter takes out plans that carry more than their share; the score is a smooth weighted turn
(each plan earns its share at every pick, the richest goes and pays), so that over any run of picks plans are used in
proportion to their shares; ties go to the less loaded, then to the lower id. Nothing here is random.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OVERLOAD_SLACK = 2.0
"""Requests by which a plan may exceed its share before the turn passes it over: less, and two requests that happen to
last long would upset the shares."""

CANARY_FIRST_DEBT = 0.5
"""A canary of share s sees its first request after 1/(2s) of them, so that any run is shared without bias."""

CANARY_PATIENCE = 2.0
"""Requests that a canary is owed before it takes one of any priority: waiting for a low one must not starve it."""

PRIORITIES_KEPT = 16
"""The lowest priority among this many of the latest requests is what a canary waits for."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that admits, its share of new requests, and what it has running for this router."""

    plan: str
    share: float
    running: int
    canary: bool


@dataclass(slots=True)
class PickMemory:
    """What picks leave behind for the next."""

    credits: dict[str, float] = field(default_factory=dict)
    canary_debt: float = CANARY_FIRST_DEBT
    priorities: list[int] = field(default_factory=list)

    def forget(self, kept: tuple[str, ...]) -> None:
        """Drop the credits of plans that are gone; a new canary starts from the first debt."""
        self.credits = {plan: self.credits[plan] for plan in sorted(self.credits) if plan in kept}


def pick_new(candidates: tuple[Candidate, ...], priority: int, memory: PickMemory) -> str | None:
    """The plan for a new request, or None where none admits. Canaries take their share, low priority first."""
    regular, canaries = _parted(candidates)
    lowest = min([*memory.priorities, priority])
    memory.priorities = [*memory.priorities, priority][-PRIORITIES_KEPT:]
    if not regular or not canaries:
        return _turn(regular or canaries, memory)
    share = sum(each.share for each in canaries) / sum(each.share for each in candidates)
    memory.canary_debt = min(memory.canary_debt + share, CANARY_PATIENCE + 1)
    due = memory.canary_debt >= 1 and priority <= lowest
    if not due and memory.canary_debt < CANARY_PATIENCE:
        return _turn(regular, memory)
    memory.canary_debt -= 1
    return _turn(canaries, memory)


def pick_moved(candidates: tuple[Candidate, ...], memory: PickMemory) -> str | None:
    """The plan for a sequence that moves: no canary where another plan admits."""
    regular, canaries = _parted(candidates)
    return _turn(regular or canaries, memory)


def _parted(
    candidates: tuple[Candidate, ...],
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    regular = tuple(each for each in candidates if not each.canary)
    canaries = tuple(each for each in candidates if each.canary)
    return regular, canaries


def _turn(candidates: tuple[Candidate, ...], memory: PickMemory) -> str | None:
    if not candidates:
        return None
    total = sum(each.share for each in candidates)
    within = _within_share(candidates, total)
    for each in candidates:
        memory.credits[each.plan] = memory.credits.get(each.plan, 0.0) + each.share / total
    best = min(
        within, key=lambda each: (-memory.credits[each.plan], each.running / each.share, each.plan)
    )
    memory.credits[best.plan] -= 1
    # Credit earned while passed over must not turn into a burst later.
    for each in candidates:
        memory.credits[each.plan] = max(-1.0, min(1.0, round(memory.credits[each.plan], 9)))
    return best.plan


def _within_share(candidates: tuple[Candidate, ...], total: float) -> tuple[Candidate, ...]:
    running = sum(each.running for each in candidates)
    within = tuple(
        each
        for each in candidates
        if each.running + 1 <= (running + 1) * each.share / total + OVERLOAD_SLACK
    )
    return within or candidates
