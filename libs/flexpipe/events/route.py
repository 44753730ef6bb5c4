"""What routers say about routes, canaries, hand-overs and load."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexpipe.events.message import Command, Event
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.fence import Fence
from flexpipe.model.names import Name
from flexpipe.model.sequence import MovedSequence


class MoveSequences(Command):
    """Hand over the sequences of some plans to others, as the route entry now says.

    `finish_all` leaves every sequence where it is (a stop); `forced` moves even those that would finish by themselves,
    and ends the ones that cannot move with one clear error (deadline of a retiring plan, lost plan).
    """

    router: Name
    fence: Fence
    from_plans: tuple[str, ...]
    to_plans: tuple[str, ...]
    lost_plans: tuple[str, ...] = ()  # gone: nothing to cut, replay from the router's own tokens
    finish_all: bool = False
    forced: bool = False
    route_revision: int  # the routers act on this entry or a newer one
    limit_s: Annotated[float, Field(gt=0)]

    def bus_key(self) -> str:
        return self.router


class RouteApplied(Event):
    """A router acts on this revision of a route entry: nothing goes to a plan that it no longer admits."""

    router: Name
    deployment: Name
    revision: int
    term: int
    shift: int

    def bus_key(self) -> str:
        return self.deployment


class CanaryObserved(Event):
    """Requests that came to an end (or to their first token) on a canary plan so far."""

    router: Name
    deployment: Name
    plan: str
    shift: int
    requests: int
    errors: int
    reason: str | None = None
    ttft_p50_ms: float | None = None
    itl_p50_ms: float | None = None

    def bus_key(self) -> str:
        return self.deployment


class BatchHandedOver(Event):
    """Verdicts and pauses of some sequences. `remaining` counts those this router still has to hand over."""

    router: Name
    deployment: Name
    fence: Fence
    batch: int
    moved: tuple[MovedSequence, ...]
    remaining: int
    staying: int  # verdict finish or lazy: still on the old plans

    def bus_key(self) -> str:
        return self.deployment


class PlanLoad(Frozen):
    """One plan as one router sees it over a window."""

    plan: str
    running: int
    finished: int
    failed: int
    output_tokens: int
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None


class LoadObserved(Event):
    """Load of a deployment at one router over the last window. No requests is a zero, not an absence."""

    router: Name
    deployment: Name
    window_s: float
    arrived: int
    queued: int
    parked: int
    prompt_tokens: int = 0  # of the requests that arrived, in all
    ttft_p95_ms: float | None = None  # over all plans
    plans: tuple[PlanLoad, ...]

    def bus_key(self) -> str:
        return f"{self.deployment}.{self.router}"


class SequenceClosed(Event):
    """One sequence came to its end. `segments` is its ledger: (epoch, plan, first token, end token)."""

    router: Name
    deployment: Name
    sequence: str
    prompt_tokens: int
    output_tokens: int
    finish: str
    moves: int
    segments: tuple[tuple[int, str, int, int], ...]
    ttft_ms: float | None = None
    duration_ms: float

    def bus_key(self) -> str:
        return f"{self.deployment}.{self.router}"


class RouterSeat(Frozen):
    """A router's own key in the bucket `roster`."""

    router: Name
    url: str
    since_s: float
