"""The order of gears: a total one, the same for equal input. Called by `proposal`.

More good tokens over the horizon come first, then what stays, then fewer devices, then quicker tokens, then the id.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import GearOutlook

ALIKE: Final = 0.02
"""Gears whose good tokens differ by less than this share of the demand are taken for equal: weights are rounded to two
digits, and no model is as exact as that."""
SHOWN_LIMIT: Final = 8
"""Candidates in one proposal, fewer than it may hold: plans are long, and one is said every cycle, for weeks."""


class Ranked(Frozen):
    """A gear with all that its rank follows from."""

    gear: Gear
    starts: tuple[str, ...]
    keeps: tuple[str, ...]  # ids of present plans that it keeps
    devices: int
    stays_s: float
    horizon_s: float
    under_need: GearOutlook
    wanted_tokens_per_s: float

    @property
    def worth(self) -> tuple[bool, int, bool, int]:
        """What is worth a change at all: holding the SLO, more good tokens, staying longer, fewer devices."""
        return self.rank[:4]

    @cached_property
    def rank(self) -> tuple[bool, int, bool, int, float, str]:
        """Smaller is better."""
        share = min(self.stays_s / self.horizon_s, 1.0)
        value = self.under_need.good_tokens_per_s * share
        step = max(ALIKE * self.wanted_tokens_per_s, 1e-9)
        return (
            self.under_need.good_requests_per_s <= 0,
            -int(value / step + 0.5),
            self.stays_s < self.horizon_s,
            self.devices,
            round(self.under_need.itl_p50_ms, 3),
            self.gear.id,
        )


def best_of(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """The best gears, best first, and with them the best one that keeps each set of present plans.

    An addition is cheap where a replacement is not, and which is worth its price is for the estimator to say.
    """
    ordered = sorted(ranked, key=lambda each: each.rank)
    first: dict[tuple[str, ...], Ranked] = {}
    for each in ordered:
        first.setdefault(each.keeps, each)
    ids = {each.gear.id for each in first.values()}
    chosen = [*first.values(), *(each for each in ordered if each.gear.id not in ids)]
    return tuple(sorted(chosen[:SHOWN_LIMIT], key=lambda each: each.rank))


def stays_s(gear: Gear, fleet: Fleet, now_s: float, horizon_s: float) -> float:
    """How long the devices of a gear are expected to stay, at most the horizon; 0 where one is gone."""
    leaves = (_leaves_in_s(ref, fleet, now_s) for plan in gear.plans for ref in plan.devices)
    return min([horizon_s, *(each for each in leaves if each is not None)])


def _leaves_in_s(ref: DeviceRef, fleet: Fleet, now_s: float) -> float | None:
    device = fleet.device(ref)
    if device is None:
        return 0.0
    return None if device.leaves_at_s is None else max(0.0, device.leaves_at_s - now_s)
