"""The route entry: the gear in force. Whoever wants to know what serves a deployment reads this alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.deployment import ModelRef, Policy
from flexpipe.model.fence import Fence
from flexpipe.model.names import Name
from flexpipe.model.plan import Plan


class PlanState(StrEnum):
    """What a plan in the route entry does with requests."""

    CANARY = "canary"  # takes its small share beside the plans in force
    ACTIVE = "active"  # takes its share
    FROZEN = "frozen"  # takes nothing; its sequences are being handed over
    RETIRING = "retiring"  # takes nothing; finishes what it has


class RoutedPlan(Frozen):
    """One plan as the routers see it."""

    plan: Plan
    front: str  # base URL of rank 0's HTTP front, such as http://127.0.0.1:31000
    admit: Annotated[
        float, Field(ge=0)
    ]  # share of new requests, relative to the other plans' shares
    state: PlanState
    fence: Fence  # of the engine start: what its gate was opened with


class Pin(Frozen):
    """Automation is off for this deployment.

    `downshift`: id of the message that pulled the hatch; while the pin stands, the executor keeps the baseline in
    force. None: it holds the automation and wants nothing.
    """

    reason: str
    by: str
    at_s: float
    downshift: str | None = None


class RouteEntry(Frozen):
    """The value of a key in the bucket `routes`. `term` and `shift` are counters moved by compare-and-set only."""

    deployment: Name
    model: ModelRef
    policy: Policy
    term: int
    shift: int
    plans: tuple[RoutedPlan, ...] = ()
    in_flight: int | None = None  # the shift that holds the deployment's slot
    pin: Pin | None = None
    stopped: bool = False  # stopped by hand: requests are refused rather than parked for long

    def plan(self, plan_id: str) -> RoutedPlan | None:
        """One plan, or None where it is not in the entry."""
        return next((routed for routed in self.plans if routed.plan.id == plan_id), None)

    def in_state(self, *states: PlanState) -> tuple[RoutedPlan, ...]:
        """The plans in one of these states, in the entry's order."""
        return tuple(routed for routed in self.plans if routed.state in states)
