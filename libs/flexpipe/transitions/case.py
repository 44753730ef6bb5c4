"""One flight as its steps see it: the record, its progress, and the world as the buckets describe it. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flexpipe.model.deployment import Deployment, Policy
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.gear import Gear
from flexpipe.model.plan import Plan
from flexpipe.model.route import RouteEntry
from flexpipe.model.shift import Phase, ShiftRecord
from flexpipe.transitions.books import Books
from flexpipe.transitions.progress import Flight, Progress, Seat


@dataclass(frozen=True)
class Case:
    """`applied`: the revision of this deployment's route entry that each router said it acts on."""

    now_s: float
    flight: Flight
    books: Books
    applied: Mapping[str, int]

    def after(self, flight: Flight) -> Case:
        """The same world with the flight changed."""
        return replace(self, flight=flight)

    @property
    def record(self) -> ShiftRecord:
        """The transaction."""
        return self.flight.record

    @property
    def progress(self) -> Progress:
        """Its running details."""
        return self.flight.progress

    @property
    def name(self) -> str:
        """The deployment's name."""
        return self.record.deployment

    @property
    def deployment(self) -> Deployment | None:
        """What the user declares now."""
        return self.books.deployment(self.name)

    @property
    def entry(self) -> RouteEntry | None:
        """The route entry as last known."""
        return self.books.route(self.name)

    @property
    def revision(self) -> int:
        """Revision of the route entry."""
        return self.books.revision("routes", self.name)

    @property
    def policy(self) -> Policy:
        """Limits of this shift: those it was begun under."""
        if self.entry is not None:
            return self.entry.policy
        return self.deployment.policy if self.deployment is not None else Policy()

    @property
    def fence(self) -> Fence:
        """Of the commands of the running step."""
        return Fence(
            deployment=self.name,
            term=self.record.term,
            shift=self.record.shift,
            step=self.record.step,
        )

    # -- plans --------------------------------------------------------------------------------

    @property
    def source(self) -> Gear:
        """The gear in force when the order was accepted."""
        return self.record.source

    @property
    def target(self) -> Gear:
        """The gear that was asked for."""
        return self.record.order.target

    def plan(self, plan_id: str) -> Plan:
        """A plan of either gear."""
        return next(p for p in (*self.source.plans, *self.target.plans) if p.id == plan_id)

    @property
    def old(self) -> tuple[str, ...]:
        """Plans only in the old gear."""
        return tuple(p.id for p in self.source.plans if self.target.weight(p.id) == 0)

    @property
    def kept(self) -> tuple[str, ...]:
        """Plans in both."""
        return tuple(p.id for p in self.source.plans if self.target.weight(p.id) > 0)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Plans only in the new gear."""
        return self.progress.seats

    @property
    def new(self) -> tuple[str, ...]:
        """Ids of the plans only in the new gear."""
        return tuple(seat.plan for seat in self.seats)

    def alive(self, plans: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `plans` whose engines were not lost."""
        return tuple(plan for plan in plans if plan not in self.progress.lost)

    @property
    def lost_source(self) -> tuple[str, ...]:
        """Plans of the old gear that died on the way."""
        return tuple(p.id for p in self.source.plans if p.id in self.progress.lost)

    @property
    def endangered(self) -> bool:
        """Whether the old gear is losing its devices or lost an engine: there is nothing safe to go back to."""
        fleet = self.books.fleet()
        gone = any(fleet.device(ref) is None for plan in self.source.plans for ref in plan.devices)
        return gone or bool(self.lost_source) or any(self.leaving(plan) for plan in self.old)

    def leaving(self, plan_id: str) -> DeviceRef | None:
        """The first device of a plan that is to be preempted."""
        fleet = self.books.fleet()
        devices = ((ref, fleet.device(ref)) for ref in self.plan(plan_id).devices)
        return next((ref for ref, at in devices if at and at.leaves_at_s is not None), None)

    @property
    def forward_only(self) -> bool:
        """From freeze on, a step that timed out is passed instead of undone where the old gear is endangered."""
        switching = self.record.phase in (Phase.FREEZING, Phase.HANDING_OVER)
        return self.record.forward_only or (switching and self.endangered)

    # -- names of answers -----------------------------------------------------------------------

    def front_of(self, plan_id: str) -> str:
        """The node that hosts rank 0 and the front."""
        return self.plan(plan_id).nodes[0]

    def at_fronts(self, plans: tuple[str, ...]) -> tuple[str, ...]:
        """`plan@node` of each plan's front."""
        return tuple(f"{plan}@{self.front_of(plan)}" for plan in plans)

    def at_nodes(self, plans: tuple[str, ...]) -> tuple[str, ...]:
        """`plan@node` of every node of each plan."""
        return tuple(f"{plan}@{node}" for plan in plans for node in self.plan(plan).nodes)

    def missing(self, awaited: tuple[str, ...]) -> tuple[str, ...]:
        """Those that have not answered yet."""
        return tuple(name for name in awaited if name not in self.progress.answers)
