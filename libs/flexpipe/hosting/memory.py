"""All that the worker's brain knows, as one frozen value: what `Keep` writes and a restart reads."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from flexpipe.engines.port import RankGroup
from flexpipe.events.plan import StartPlan
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Delivered, Publish
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Device, DeviceRef, Node
from flexpipe.model.names import DeviceId
from flexpipe.model.plan import Plan

PLANS_REMEMBERED: Final = 256
"""Plans whose fence is kept after they are gone. A command for one older than these is ten minutes old at most (the
lane drops it then), in which no node sees so many plans."""


Seconds = Annotated[float, Field(ge=0, le=3600)]


class HostingLimits(Frozen):
    """Time limits of one node. Those of a start, a drain and a stop come with their commands."""

    stop_grace_s: Seconds = 10.0  # engines end their streams and threads within a few seconds
    broken_grace_s: Seconds = 1.0  # of a group that failed or lost a rank: nothing to be saved
    withdraw_grace_s: Seconds = 2.0  # between a device's withdrawal and the end of what runs there
    kill_limit_s: Seconds = 30.0  # a process that outlives SIGKILL for longer hangs in the kernel
    clear_limit_s: Seconds = 30.0  # a start waits so long for memory that is being freed


class Command(Frozen):
    """A command being carried out: what its answer must name."""

    fence: Fence
    cause: str  # the command's message id
    traceparent: str | None
    at_s: float


class Stage(StrEnum):
    """Where a rank group is in its life. Gone is: not hosted any more."""

    QUEUED = "queued"  # waits for its turn, or for memory that is being freed
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Hosted(Frozen):
    """One rank group of this node. `group` is its name towards the shell."""

    group: str
    ranks: RankGroup
    stage: Stage
    start: Command
    deadline_s: float  # of the start
    clear_by_s: float | None = None  # until when memory is waited for, once its turn came
    launched_s: float | None = None
    ready_s: float | None = None
    pid: int | None = None
    doom_s: float | None = None  # when its withdrawn device is taken for good
    taken: tuple[DeviceId, ...] = ()  # its devices that were withdrawn
    lingering: tuple[int, ...] = ()  # pids that did not end within a stop's limit
    stop: Command | None = None
    gate: Command | None = None
    gate_admitting: bool = False
    warm: Command | None = None
    warm_requests: int = 0
    drain: Command | None = None

    @property
    def plan(self) -> Plan:
        """The plan it is part of."""
        return self.ranks.plan

    @property
    def leads(self) -> bool:
        """Whether rank 0 and the HTTP front are here."""
        return self.ranks.node_rank == 0

    @property
    def doom(self) -> str | None:
        """Why it will be ended, where a device of it was withdrawn."""
        if not self.taken:
            return None
        return f"{self.ranks.node}/{', '.join(self.taken)} was withdrawn"

    @property
    def holds_memory(self) -> bool:
        """Whether processes of it may be there."""
        return self.stage is not Stage.QUEUED

    def claim(self, device: DeviceId) -> int:
        """Bytes that it claims on one device of this node."""
        return sum(
            bytes_
            for ref, bytes_ in self.plan.claims()
            if ref.node == self.ranks.node and ref.device == device
        )

    @property
    def devices(self) -> tuple[DeviceRef, ...]:
        """Its devices on this node, in rank order."""
        return tuple(ref for ref in self.plan.devices if ref.node == self.ranks.node)


class PlanMemory(Frozen):
    """The highest fence accepted for one plan, and what was answered under it by kind of command."""

    plan: str
    fence: Fence
    devices: tuple[DeviceRef, ...] = ()
    answers: dict[str, Publish | None] = {}

    @property
    def key(self) -> tuple[str, str]:
        """Plan and deployment."""
        return (self.plan, self.fence.deployment)


MOURNED_LIMIT: Final = 64
"""Losses kept for the next process to say again: more plans than a node has ports for."""


class Memory(Frozen):
    """The whole. `plans` in the order of their last acceptance, `hosted` in the order of starts."""

    node: Node | None = None  # as configured; None before `Opened`
    limits: HostingLimits = HostingLimits()
    terms: dict[str, int] = {}  # highest term accepted, by deployment
    plans: tuple[PlanMemory, ...] = ()
    hosted: tuple[Hosted, ...] = ()
    mourned: tuple[Hosted, ...] = ()  # lost, and not certain that the bus knows
    withdrawn: tuple[DeviceId, ...] = ()
    host_revision: int = 0
    declared: str | None = None  # what our key in the bucket `hosts` holds
    declare_attempts: int = 0  # conflicts in a row
    early: tuple[Delivered, ...] = ()  # commands that came before `Opened`
    closing: bool = False

    @property
    def open(self) -> bool:
        """Whether a worker process has opened it."""
        return self.node is not None

    def plan(self, plan_id: str, deployment: str) -> PlanMemory | None:
        """What is remembered of one plan of a deployment: another one may have a plan of the same id."""
        key = (plan_id, deployment)
        return next((each for each in self.plans if each.key == key), None)

    def group(self, name: str) -> Hosted | None:
        """One rank group, or None where it is gone."""
        return next((each for each in self.hosted if each.group == name), None)

    def of(self, plan_id: str, deployment: str) -> tuple[Hosted, ...]:
        """The groups of a plan that run for a deployment."""
        return tuple(
            each
            for each in self.hosted
            if each.plan.id == plan_id and each.start.fence.deployment == deployment
        )

    def live(self, plan_id: str) -> Hosted | None:
        """The group of a plan that is not being stopped."""
        return next(
            (
                each
                for each in self.hosted
                if each.plan.id == plan_id and each.stage is not Stage.STOPPING
            ),
            None,
        )

    def remember(self, plan: PlanMemory) -> Memory:
        """With one plan's memory replaced; the oldest of plans that are not hosted are forgotten."""
        others = [each for each in self.plans if each.key != plan.key]
        here = {(each.plan.id, each.start.fence.deployment) for each in self.hosted}
        idle = [each for each in others if each.key not in here]
        forgotten = {each.key for each in idle[: max(0, len(idle) - PLANS_REMEMBERED)]}
        kept = tuple(each for each in others if each.key not in forgotten)
        return self.model_copy(update={"plans": (*kept, plan)})

    def replaced(self, hosted: Hosted) -> Memory:
        """With one rank group put in (at the end) or replaced (in place)."""
        if self.group(hosted.group) is None:
            return self.model_copy(update={"hosted": (*self.hosted, hosted)})
        swapped = tuple(hosted if each.group == hosted.group else each for each in self.hosted)
        return self.model_copy(update={"hosted": swapped})

    def without(self, group: str) -> Memory:
        """Without one rank group."""
        return self.model_copy(
            update={"hosted": tuple(each for each in self.hosted if each.group != group)}
        )


def rank_group(node: Node, order: StartPlan) -> RankGroup:
    """This node's ranks of a plan, bound to the node's devices in rank order."""
    by_id = {device.device: device for device in node.devices}
    local = [by_id[ref.device] for ref in order.plan.devices if ref.node == node.node]
    return RankGroup(
        plan=order.plan,
        fence=order.fence,
        model=order.model,
        engine=order.engine,
        node=node.node,
        node_rank=order.plan.nodes.index(node.node),
        host=node.address,
        front_port=order.front_port,
        rendezvous=order.rendezvous,
        cores=_cores(local),
        gpu_uuids=tuple(device.device for device in local if device.kind == "cuda"),
    )


def _cores(devices: list[Device]) -> tuple[int, ...]:
    """Cores of all local ranks, or none where one has no core."""
    cores = tuple(device.core for device in devices if device.core is not None)
    return cores if len(cores) == len(devices) else ()
