"""The bus on one page: every lane, message, stream and bucket, who says what and who hears it."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from flexpipe.events import fleet, hatch, plan, planning, route, shift, trace
from flexpipe.events.message import Message, type_name, words
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.frozen import Frozen

ROOT = "flexpipe"


class Lane(StrEnum):
    """What may happen to a message decides its lane."""

    URGENT = "urgent"  # before anything else that waits
    CMD = "cmd"  # an order to one doer; a work queue
    EVT = "evt"  # the event log
    SEQ = "seq"  # load and closed sequences; noise never evicts shift events
    TEL = "tel"  # samples and beats; may be lost, nothing is stored
    SPAN = "span"  # finished pieces of shift traces
    INPUT = "input"  # the input journal
    DEAD = "dead"  # what could not be read or crashed its machine


Service = Literal[
    "agent", "monitor", "planner", "estimator", "executor", "router", "worker", "operator"
]


class Said(Frozen):
    """One row: a message, its lane, who says it and who hears it."""

    message: type[Message]
    lane: Lane
    says: tuple[Service, ...]
    hears: tuple[Service, ...]

    @property
    def ce_type(self) -> str:
        """CloudEvents type."""
        return type_name(self.message)

    @property
    def is_stored(self) -> bool:
        """Whether a stream keeps it. What no stream keeps may be lost."""
        return self.lane is not Lane.TEL

    @property
    def is_beat(self) -> bool:
        """Whether it is a sign of life: said without headers, and its subject tells its type."""
        return not self.is_stored and words(self.message)[1] == "heartbeat"

    def subject(self, key: str) -> str:
        """Subject of one message; `key` may be a wildcard."""
        noun, word = words(self.message)
        if self.lane is Lane.URGENT:
            return f"{ROOT}.{self.lane}.{word}.{key}"  # short: people type it
        return f"{ROOT}.{self.lane}.{noun}.{word}.{key}"


def _row(message: type[Message], lane: Lane, says: str, hears: str) -> Said:
    return Said.model_validate(
        {
            "message": message,
            "lane": lane,
            "says": tuple(says.split()),
            "hears": tuple(hears.split()),
        }
    )


MESSAGES: tuple[Said, ...] = (
    _row(hatch.DownshiftDeployment, Lane.URGENT, "operator", "executor"),
    _row(hatch.CancelShift, Lane.URGENT, "operator", "executor"),
    _row(hatch.UnpinDeployment, Lane.URGENT, "operator", "executor"),
    _row(hatch.DeploymentPinned, Lane.EVT, "executor", "operator"),
    _row(hatch.DeploymentUnpinned, Lane.EVT, "executor", "operator"),
    _row(hatch.UrgentAnswered, Lane.EVT, "executor", "operator"),
    _row(fleet.AlterNode, Lane.CMD, "operator", "agent"),
    _row(fleet.NodeSampled, Lane.TEL, "agent", "monitor"),
    _row(fleet.NodeHeartbeat, Lane.TEL, "agent", "monitor"),
    _row(fleet.HostHeartbeat, Lane.TEL, "worker", "monitor"),
    _row(fleet.PlanAnswered, Lane.TEL, "router", "monitor"),
    _row(fleet.SampleAsked, Lane.TEL, "monitor", "agent"),
    _row(fleet.FleetChanged, Lane.EVT, "monitor", "planner operator"),
    _row(planning.CandidatesProposed, Lane.EVT, "planner", "estimator operator"),
    _row(planning.BaselineResolved, Lane.EVT, "planner", "operator"),
    _row(planning.ShiftDeclined, Lane.EVT, "estimator", "operator"),
    _row(shift.OrderShift, Lane.CMD, "operator estimator", "executor"),
    _row(shift.ShiftOrdered, Lane.EVT, "executor", "estimator operator"),
    _row(shift.ShiftRefused, Lane.EVT, "executor", "estimator operator"),
    _row(shift.ShiftPhaseChanged, Lane.EVT, "executor", "operator"),
    _row(shift.ShiftCompleted, Lane.EVT, "executor", "planner estimator operator"),
    _row(shift.ShiftRolledBack, Lane.EVT, "executor", "planner estimator operator"),
    _row(shift.ShiftAbandoned, Lane.EVT, "executor", "planner estimator operator"),
    _row(shift.PlanRetired, Lane.EVT, "executor", "planner operator"),
    _row(plan.FenceWorker, Lane.CMD, "executor", "worker"),
    _row(plan.StartPlan, Lane.CMD, "executor", "worker"),
    _row(plan.WarmPlan, Lane.CMD, "executor", "worker"),
    _row(plan.GatePlan, Lane.CMD, "executor", "worker"),
    _row(plan.DrainPlan, Lane.CMD, "executor", "worker"),
    _row(plan.StopPlan, Lane.CMD, "executor", "worker"),
    _row(plan.WithdrawDevice, Lane.CMD, "operator agent", "worker"),
    _row(plan.EngineReady, Lane.EVT, "worker", "executor"),
    _row(plan.EngineFailed, Lane.EVT, "worker", "executor"),
    _row(plan.EngineLost, Lane.EVT, "worker", "executor"),
    _row(plan.PlanGated, Lane.EVT, "worker", "executor"),
    _row(plan.PlanWarmed, Lane.EVT, "worker", "executor"),
    _row(plan.PlanDrained, Lane.EVT, "worker", "executor"),
    _row(plan.PlanStopped, Lane.EVT, "worker", "executor"),
    _row(plan.PlanStuck, Lane.EVT, "worker", "executor"),
    _row(plan.CommandSuperseded, Lane.EVT, "worker router", "executor"),
    _row(route.MoveSequences, Lane.CMD, "executor", "router"),
    _row(route.RouteApplied, Lane.EVT, "router", "executor"),
    _row(route.CanaryObserved, Lane.EVT, "router", "executor"),
    _row(route.BatchHandedOver, Lane.EVT, "router", "executor"),
    _row(route.LoadObserved, Lane.SEQ, "router", "planner operator"),
    _row(route.SequenceClosed, Lane.SEQ, "router", "operator"),
    _row(
        trace.SpanEnded,
        Lane.SPAN,
        "monitor planner estimator executor worker router",
        "operator",
    ),
)

BY_NAME: dict[str, Said] = {said.message.__name__: said for said in MESSAGES}
BY_TYPE: dict[str, Said] = {said.ce_type: said for said in MESSAGES}
BY_PREFIX: dict[str, Said] = {said.subject(""): said for said in MESSAGES}
PREFIX_PARTS = sorted({prefix.count(".") for prefix in BY_PREFIX})


def of_subject(subject: str) -> tuple[Said, str] | None:
    """The row of a concrete subject and the key at its end, or None where nothing of the catalogue is said there."""
    parts = subject.split(".")
    for count in PREFIX_PARTS:
        said = BY_PREFIX.get(".".join(parts[:count]) + ".")
        if said is not None and len(parts) > count:
            return said, ".".join(parts[count:])
    return None


class Stream(Frozen):
    """A JetStream stream of one or more lanes. Ages in seconds, sizes in bytes."""

    name: str
    lanes: tuple[Lane, ...]
    retention: Literal["limits", "workqueue"] = "limits"
    max_age_s: int
    max_bytes: int
    duplicate_window_s: int = 120

    @property
    def subjects(self) -> tuple[str, ...]:
        """Everything said on its lanes."""
        return tuple(f"{ROOT}.{lane}.>" for lane in self.lanes)


DAY_S = 86_400
MIB = 1 << 20

STREAMS: tuple[Stream, ...] = (
    Stream(name="FLEXPIPE_URGENT", lanes=(Lane.URGENT,), max_age_s=DAY_S, max_bytes=16 * MIB),
    # An order older than ten minutes is nobody's wish any more.
    Stream(
        name="FLEXPIPE_CMD",
        lanes=(Lane.CMD,),
        retention="workqueue",
        max_age_s=600,
        max_bytes=64 * MIB,
    ),
    Stream(name="FLEXPIPE_EVT", lanes=(Lane.EVT,), max_age_s=30 * DAY_S, max_bytes=1024 * MIB),
    Stream(name="FLEXPIPE_INPUT", lanes=(Lane.INPUT,), max_age_s=7 * DAY_S, max_bytes=1024 * MIB),
    Stream(name="FLEXPIPE_SEQ", lanes=(Lane.SEQ,), max_age_s=DAY_S, max_bytes=128 * MIB),
    Stream(name="FLEXPIPE_SPAN", lanes=(Lane.SPAN,), max_age_s=30 * DAY_S, max_bytes=256 * MIB),
    Stream(name="FLEXPIPE_DEAD", lanes=(Lane.DEAD,), max_age_s=30 * DAY_S, max_bytes=64 * MIB),
)


class Bucket(Frozen):
    """A NATS key/value store. All writes compare-and-set. `writers` and `readers` become permissions."""

    name: str
    what: str
    writers: tuple[Service, ...]
    readers: tuple[Service, ...]
    atomic: bool = False  # its stream allows atomic batches
    history: int = 8


BUCKETS: tuple[Bucket, ...] = (
    Bucket(
        name="deployments",
        what="what users declared, by name",
        writers=("operator",),
        readers=("executor", "router", "planner", "estimator", "operator"),
    ),
    Bucket(
        name="routes",
        what="the gear in force, by deployment",
        writers=("executor",),
        readers=("executor", "router", "worker", "monitor", "planner", "estimator", "operator"),
    ),
    Bucket(
        name="shifts",
        what="transaction records, by deployment and number",
        writers=("executor",),
        readers=("executor", "operator"),
    ),
    Bucket(
        name="reservations",
        what="bytes held, by node and device",
        writers=("executor",),
        readers=("executor", "planner", "operator"),
        atomic=True,
    ),
    Bucket(
        name="hosts",
        what="where workers place engines, by node",
        writers=("worker",),
        readers=("monitor", "operator"),
    ),
    Bucket(
        name="fleet",
        what="nodes with their devices and blocks, by node",
        writers=("monitor",),
        readers=("monitor", "planner", "executor", "operator"),
        atomic=True,
    ),
    Bucket(
        name="baselines",
        what="the gear that the hatch forces, by deployment",
        writers=("planner",),
        readers=("planner", "executor", "operator"),
    ),
    Bucket(
        name="roster",
        what="routers, by name",
        writers=("router",),
        readers=("executor", "router", "operator"),
    ),
    Bucket(
        name="snapshots",
        what="machines, by service and name",
        writers=("agent", "monitor", "planner", "estimator", "executor", "router", "worker"),
        readers=(
            *("agent", "monitor", "planner", "estimator"),
            *("executor", "router", "worker", "operator"),
        ),
        history=1,
    ),
)


def parse(type_: str, body: str) -> Message:
    """The message of a CloudEvents type or class name. Raises InvalidInput naming the first field that is wrong."""
    said = BY_TYPE.get(type_) or BY_NAME.get(type_)
    if said is None:
        raise InvalidInput("ce-type", type_, "use a type of the catalogue (schemas/)")
    try:
        return said.message.model_validate_json(body)
    except ValueError as error:
        raise InvalidInput(said.ce_type, body, first_fault(error)) from error


def first_fault(error: ValueError) -> str:
    """One line for the first fault of a pydantic error: where, and what is wrong."""
    faults = getattr(error, "errors", None)
    if faults is None:
        return " ".join(str(error).split())
    fault = faults()[0]
    where = ".".join(str(part) for part in fault["loc"]) or "body"
    return f"{where}: {fault['msg']}"
