"""Which plans together make a gear: what to keep of the present one, and what to add. Called by `proposal`.

A draft is a set of present plans and layouts beside them. From each kept set a beam grows by one layout at a time as
long as the demand is not met: the few best by what they carry and the few best a device go on. So replicas, mixed
gears, growth and exchange of one plan are all found, with a bound on what is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from flexpipe.model.outlook import PlanOutlook
from flexpipe.model.plan import Plan
from flexpipe.planning.ground import Ground
from flexpipe.planning.layouts import Option
from flexpipe.planning.spots import place

PLANS_LIMIT: Final = 4
"""Plans of a gear that is proposed: more are seldom better than larger ones, and each shift would move them all."""
BEAM: Final = 4
"""Drafts that grow by one more plan, by each of the two measures."""
GROWING_LIMIT: Final = 12
"""Layouts that are added to drafts, by each of the two measures."""
LEAST_SHARE: Final = 0.05
"""What a plan must carry of a gear to be added to it: less is not worth an engine, and its weight says nothing."""
DRAFTS_A_SET: Final = 6
"""Drafts kept for an exact look, of those that keep the same present plans."""


@dataclass(frozen=True)
class Present:
    """A plan in force that is alive, with what it would deliver."""

    plan: Plan
    outlook: PlanOutlook
    leaves: bool  # a device of it was given notice, within the horizon


@dataclass(frozen=True)
class Draft:
    """A gear in the making. `places` are the blocks of `added`, in order."""

    kept: tuple[Present, ...]
    added: tuple[Option, ...]
    mask: int

    @cached_property
    def rate(self) -> float:
        """Requests a second that hold the SLO, over all its plans."""
        return sum(outlook.good_requests_per_s for outlook in self.outlooks)

    @cached_property
    def devices(self) -> int:
        """Devices in all."""
        return sum(len(present.plan.devices) for present in self.kept) + sum(
            option.layout.devices for option in self.added
        )

    @cached_property
    def outlooks(self) -> tuple[PlanOutlook, ...]:
        """Of each plan."""
        return (*(present.outlook for present in self.kept), *(each.outlook for each in self.added))

    @cached_property
    def itl_ms(self) -> float:
        """Mean over plans by their rates."""
        weights = [max(outlook.good_requests_per_s, 1e-9) for outlook in self.outlooks]
        total = sum(weights)
        return sum(
            outlook.itl_p50_ms * weight / total
            for outlook, weight in zip(self.outlooks, weights, strict=True)
        )

    @property
    def plans(self) -> int:
        """How many plans."""
        return len(self.kept) + len(self.added)

    @cached_property
    def name(self) -> tuple[str, ...]:
        """What it is: equal drafts, equal names."""
        kept = sorted(present.plan.id for present in self.kept)
        return (*kept, *sorted(option.layout.key for option in self.added))


def drafts(
    ground: Ground, choices: Sequence[Option], present: Sequence[Present], need: float
) -> tuple[Draft, ...]:
    """Gears other than the present one, without repeats. `need`: requests a second that are asked for."""
    growing = _worth_adding(choices)
    found: dict[tuple[str, ...], Draft] = {}
    whole = tuple(sorted(each.plan.id for each in present))
    for kept in _kept_sets(present):
        seed = Draft(kept=kept, added=(), mask=0)
        suffices = kept and seed.rate >= need and not any(each.leaves for each in kept)
        grown = [] if suffices else _grow(ground, seed, choices, growing, need)
        # Giving plans up without adding any is a gear of its own, where something is left.
        mine = [*([seed] if kept and seed.name != whole else []), *grown]
        best = sorted(mine, key=lambda draft: _merit(draft, need))
        for draft in best[:DRAFTS_A_SET]:
            found.setdefault(draft.name, draft)
    return tuple(found[name] for name in sorted(found))


def _kept_sets(present: Sequence[Present]) -> tuple[tuple[Present, ...], ...]:
    """All that is alive, all but one of it in turn, only what stays, and nothing."""
    every = tuple(sorted(present, key=lambda each: each.plan.id))
    staying = tuple(each for each in every if not each.leaves)
    but_one = [tuple(each for each in every if each is not gone) for gone in every]
    sets = {tuple(each.plan.id for each in kept): kept for kept in (every, *but_one, staying, ())}
    return tuple(kept for kept in sets.values() if len(kept) <= PLANS_LIMIT)


def _worth_adding(choices: Sequence[Option]) -> tuple[Option, ...]:
    """The best layouts by rate and by rate a device; where none holds the SLO, those with the quickest tokens."""
    good = [option for option in choices if option.rate > 0]
    if not good:
        return tuple(sorted(choices, key=_slowness)[:GROWING_LIMIT])
    strongest = sorted(good, key=lambda o: (-o.rate, o.layout.devices, _slowness(o)))
    thriftiest = sorted(good, key=lambda o: (-o.rate / o.layout.devices, _slowness(o)))
    quickest = sorted(good, key=_slowness)[:2]
    chosen = (*strongest[:GROWING_LIMIT], *thriftiest[:GROWING_LIMIT], *quickest)
    return tuple(dict.fromkeys(chosen))


def _slowness(option: Option) -> tuple[float, int, str]:
    return option.outlook.itl_p50_ms, option.layout.devices, option.layout.key


def _grow(
    ground: Ground,
    seed: Draft,
    choices: Sequence[Option],
    growing: Sequence[Option],
    need: float,
) -> list[Draft]:
    """What comes of a seed: first every single layout beside it, then more beside the most promising."""
    every = _next(ground, (seed,), choices)
    beam = _beam(every, need)
    for _ in range(seed.plans + 1, PLANS_LIMIT):
        fresh = _next(ground, beam, growing)
        if not fresh:
            break
        every.extend(fresh)
        beam = _beam(fresh, need)
    return every


def _next(ground: Ground, beam: Iterable[Draft], options: Sequence[Option]) -> list[Draft]:
    grown: dict[tuple[str, ...], Draft] = {}
    for draft in beam:
        if draft.plans >= PLANS_LIMIT:
            continue
        for option in options:
            if option.rate < LEAST_SHARE * draft.rate:
                continue
            spots = place(ground.spots, option.layout.kinds, draft.mask)
            if spots is None:
                continue
            mask = draft.mask
            for spot in spots:
                mask |= spot.mask
            more = Draft(kept=draft.kept, added=(*draft.added, option), mask=mask)
            grown.setdefault(more.name, more)
    return list(grown.values())


def _beam(drafts_: Sequence[Draft], need: float) -> tuple[Draft, ...]:
    """Those that go on: what meets the demand already needs nothing more."""
    short = [draft for draft in drafts_ if draft.rate < need]
    carrying = sorted(short, key=lambda draft: _merit(draft, need))[:BEAM]
    thrifty = sorted(short, key=lambda draft: (-draft.rate / draft.devices, draft.name))[:BEAM]
    unique = {draft.name: draft for draft in (*carrying, *thrifty)}
    return tuple(unique.values())


def _merit(draft: Draft, need: float) -> tuple[bool, float, int, float, tuple[str, ...]]:
    """Best first: it holds the SLO at all, what it carries of the demand, few devices, quick tokens."""
    carried = round(min(draft.rate, need), 6)
    return draft.rate <= 0, -carried, draft.devices, draft.itl_ms, draft.name
