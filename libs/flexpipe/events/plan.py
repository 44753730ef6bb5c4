"""Commands to workers about plans, and their answers. Every command is fenced; every answer repeats the fence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flexpipe.events.message import Command, Event
from flexpipe.model.deployment import EngineSettings, ModelRef
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.names import DeviceId, Name
from flexpipe.model.plan import Plan
from flexpipe.model.shift import StartClass


class WorkerCommand(Command):
    """What all commands to a worker share. `node` names the worker (one a node)."""

    node: Name
    fence: Fence

    def bus_key(self) -> str:
        return self.node


class FenceWorker(WorkerCommand):
    """A new leader's first word to a target: nothing older than this fence counts any more."""


class StartPlan(WorkerCommand):
    """Start this node's ranks of a plan as a shadow: gate closed, nobody sent there."""

    plan: Plan
    model: ModelRef
    engine: EngineSettings
    front_port: int  # HTTP front of rank 0, on the plan's first node
    rendezvous: str  # host:port where ranks of several nodes meet
    limit_s: Annotated[float, Field(gt=0)]


class WarmPlan(WorkerCommand):
    """Send synthetic prompts through a plan's front (canary; purpose header `warm`)."""

    plan: str
    requests: Annotated[int, Field(ge=1, le=100)]
    limit_s: Annotated[float, Field(gt=0)]


class GatePlan(WorkerCommand):
    """Open or close the gate in front of a plan. `route_entry` is what a refused request is told."""

    plan: str
    admitting: bool
    route_entry: str | None = None


class DrainPlan(WorkerCommand):
    """Say when the engine's own count of requests has come to zero."""

    plan: str
    limit_s: Annotated[float, Field(gt=0)]


class StopPlan(WorkerCommand):
    """Stop this node's ranks of a plan and watch until their memory is seen free."""

    plan: str
    limit_s: Annotated[float, Field(gt=0)]


class WithdrawDevice(WorkerCommand):
    """A device is taken away (or given back): it leaves (or joins) those on which the worker can place something.

    `at_once`: it is gone already, so that what runs there is killed without grace.
    """

    device: DeviceId
    present: bool
    at_once: bool = False


class PlanReport(Event):
    """What all reports about a plan share."""

    node: Name
    plan: str
    fence: Fence

    def bus_key(self) -> str:
        return f"{self.fence.deployment}.{self.plan}"


class EngineReady(PlanReport):
    """This node's ranks run; on the first node also: the front answers. Voted by `/ready`, not by an open port."""

    start_s: float  # when the start began, epoch
    ready_s: float  # when it was ready, epoch
    start_class: StartClass = StartClass.COLD


class EngineFailed(PlanReport):
    """A start did not succeed. `log_tail` holds the last lines of the rank's own log."""

    reason: str
    log_tail: str = ""


class EngineLost(PlanReport):
    """A rank that ran is gone without having been told to stop: the plan is lost."""

    reason: str
    log_tail: str = ""


class PlanGated(PlanReport):
    """A gate took its new state."""

    admitting: bool


class PlanWarmed(PlanReport):
    """Outcome of synthetic prompts."""

    requests: int
    errors: int
    reason: str | None = None
    ttft_p50_ms: float | None = None
    itl_p50_ms: float | None = None


class PlanDrained(PlanReport):
    """The engine's own count of requests is zero."""


class PlanStopped(PlanReport):
    """This node's ranks are gone and their memory is seen free on these devices."""

    released: tuple[DeviceRef, ...]


class PlanStuck(PlanReport):
    """Something asked of a plan could not be done within its limit (drain, gate, stop)."""

    what: Literal["drain", "gate", "stop"]
    reason: str


class CommandSuperseded(Event):
    """A target refused a command because it has accepted a higher fence."""

    target: Name
    command: str
    fence: Fence
    highest: Fence

    def bus_key(self) -> str:
        return self.fence.deployment
