"""Which plans a model allows on free blocks, each layout tried once over equal blocks. Called by `proposal`.

A layout is a width and the kinds of blocks under its stages: one block is one stage of its width, two to `PP_LIMIT`
equal widths are a pipeline, strongest first. What does not divide, does not fit or is not carried is written down with
its numbers, never silently left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Final, NamedTuple

from flexpipe.gears.layout import build_plan, check_depth, check_width
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment, ModelFacts
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.outlook import Load, PlanOutlook, Rejected
from flexpipe.model.plan import Plan
from flexpipe.performance.outlook import plan_outlook
from flexpipe.planning.ground import Ground
from flexpipe.planning.spots import Kind, Spot, place

PP_LIMIT: Final = 4
"""Stages of a pipeline at most. Each adds its latency to every token, and four of the smallest blocks hold what one of
the largest does."""

DRAWINGS_LIMIT: Final = 2048
"""Plans kept for one deployment and fleet: some hundred are asked for on 27 devices."""


@dataclass(frozen=True)
class Layout:
    """Kinds of blocks in stage order."""

    kinds: tuple[Kind, ...]

    @property
    def tp(self) -> int:
        """Width of every stage."""
        return self.kinds[0].size

    @property
    def pp(self) -> int:
        """Stages."""
        return len(self.kinds)

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.tp * self.pp

    @property
    def memory_bytes(self) -> int:
        """Of all its devices."""
        return sum(kind.memory_bytes * kind.size for kind in self.kinds)

    @property
    def shape(self) -> str:
        """Such as `tp2`, `pp3`, `tp4pp2`."""
        width = f"tp{self.tp}" if self.tp > 1 or self.pp == 1 else ""
        return width + (f"pp{self.pp}" if self.pp > 1 else "")

    @cached_property
    def key(self) -> str:
        """Its identity as text: what ties are broken by."""
        return f"{self.shape} {[tuple(kind) for kind in self.kinds]}"

    def __str__(self) -> str:
        counts = {kind: self.kinds.count(kind) for kind in dict.fromkeys(self.kinds)}
        several = "blocks of " if self.tp > 1 else ""
        parts = [
            f"{count} {several}{kind}" if count > 1 else str(kind) for kind, count in counts.items()
        ]
        return f"{self.shape} on " + " and ".join(parts)


@dataclass(frozen=True)
class Option:
    """A layout that fits, with what one plan of it would deliver."""

    layout: Layout
    plan: Plan  # over the first blocks that were free
    outlook: PlanOutlook

    @property
    def rate(self) -> float:
        """Requests a second at which it holds the SLO."""
        return self.outlook.good_requests_per_s


class Drawings:
    """Plans of one deployment on one fleet, each laid once: every look asks for the same ones again.

    What it gives is a function of the two and the question, so keeping it or not changes nothing but time.
    """

    def __init__(self, deployment: Deployment, fleet: Fleet) -> None:
        self.deployment = deployment
        self._fleet = fleet
        self._plans: dict[tuple[int, tuple[DeviceRef, ...]], Plan | InvalidInput] = {}

    def suits(self, deployment: Deployment, fleet: Fleet) -> bool:
        """Whether these very values are what it was made for."""
        return self.deployment is deployment and self._fleet is fleet

    def plan(self, layout: Layout, spots: Sequence[Spot]) -> Plan:
        """The plan of a layout over these blocks. Raises InvalidInput where it does not fit."""
        devices = tuple(ref for spot in spots for ref in spot.block.devices)
        key = (layout.pp, devices)
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= DRAWINGS_LIMIT:
                self._plans.clear()
            found = self._plans[key] = self._lay(layout, devices)
        if isinstance(found, InvalidInput):
            raise InvalidInput(found.field, found.value, found.fix)
        return found

    def _lay(self, layout: Layout, devices: tuple[DeviceRef, ...]) -> Plan | InvalidInput:
        try:
            return build_plan(
                self.deployment, tp=layout.tp, pp=layout.pp, devices=devices, fleet=self._fleet
            )
        except InvalidInput as fault:
            return fault


class Choices(NamedTuple):
    """Layouts that fit on free blocks and can hold the SLO (any that fit, where none can), and what is left out."""

    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]  # in the order in which they were tried
    nearest: Rejected | None = None  # of those that do not fit, the one with the most memory


def choices_on(drawings: Drawings, ground: Ground, load: Load) -> Choices:
    """Every layout of the deployment that the drawings are of, tried on this ground under this load."""
    deployment = drawings.deployment
    facts = deployment.model.facts
    if facts is None:
        why = (
            "model.facts is not known: apply the deployment again, so that its config.json is read"
        )
        return Choices((), (Rejected(what="every layout", reason=why),))
    found: list[Option] = []
    slow: list[Option] = []
    rejected: list[Rejected] = []
    short: list[tuple[int, Rejected]] = []
    for layout in _layouts(ground, facts, rejected):
        spots = place(ground.spots, layout.kinds, 0)
        if spots is None:
            continue
        try:
            plan = drawings.plan(layout, spots)
            outlook = plan_outlook(plan, deployment, load)
        except InvalidInput as fault:
            rejected.append(Rejected(what=str(layout), reason=f"{fault.field}: {fault.fix}"))
            if fault.field == "memory":
                short.append((layout.memory_bytes, rejected[-1]))
            continue
        (found if outlook.good_requests_per_s > 0 else slow).append(Option(layout, plan, outlook))
    nearest = max(short, key=lambda each: each[0])[1] if short else None
    if not found:  # better slowly than not at all
        return Choices(tuple(slow), tuple(rejected), nearest)
    return Choices(tuple(found), (*rejected, *_too_slow(slow, deployment)), nearest)


def _too_slow(slow: Sequence[Option], deployment: Deployment) -> tuple[Rejected, ...]:
    """One line for all layouts that cannot hold the SLO: there are dozens of slow ways to lay a model out."""
    if not slow:
        return ()
    slo, first = deployment.slo, slow[0].layout
    limits = f"TTFT {slo.ttft_ms:.4g} ms and ITL {slo.itl_ms:.3g} ms"
    why = f"slo: not even one request at a time holds {limits}"
    return (Rejected(what=f"{len(slow)} layouts, such as {first}", reason=why),)


def _layouts(ground: Ground, facts: ModelFacts, rejected: list[Rejected]) -> Iterator[Layout]:
    """Layouts whose width and depth suit the model: by width, then depth, then strength of their blocks."""
    by_width: dict[int, list[Kind]] = {}
    for kind in ground.spots:
        by_width.setdefault(kind.size, []).append(kind)
    for width in sorted(by_width):
        try:
            check_width(facts, width)
        except InvalidInput as fault:
            rejected.append(Rejected(what=f"tp{width}", reason=fault.fix))
            continue
        for depth in range(1, PP_LIMIT + 1):
            try:
                check_depth(facts, depth)
            except InvalidInput as fault:
                rejected.append(Rejected(what=f"pp{depth} and deeper", reason=fault.fix))
                break
            for kinds in combinations_with_replacement(by_width[width], depth):
                yield Layout(kinds)
