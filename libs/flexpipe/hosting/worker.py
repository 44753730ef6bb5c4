"""The worker's machine: one a node. It keeps fences, hosts rank groups and tells the executor what became of them.

Fed with commands (`Delivered`), reports of its shell (`inputs`) and outcomes of its one bucket key
(`Stored`). It never decides what should run: it does what it is told, in the order of fences, and
says truly what is there. A *group* is this node's ranks of one plan.
"""

from __future__ import annotations

from typing import assert_never

from flexpipe.events.catalog import parse
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import (
    CommandSuperseded,
    DrainPlan,
    FenceWorker,
    GatePlan,
    StartPlan,
    StopPlan,
    WarmPlan,
    WithdrawDevice,
    WorkerCommand,
)
from flexpipe.hosting import commands, inputs, queue, reports
from flexpipe.hosting.effects import Keep
from flexpipe.hosting.memory import Command, Hosted, Memory, PlanMemory, Stage
from flexpipe.hosting.turn import Turn
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.ids import derived_id
from flexpipe.kernel.machine import Delivered, Effects, Input, Put, Stored
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Host

BUCKET = "hosts"

DECLARE_ATTEMPTS = 8
"""Our key has one writer: one conflict tells the revision that a worker before us left. More than a few
in a row mean that two workers go by one name."""

EARLY_COMMANDS = 256
"""Commands that may come before `Opened`, which the shell feeds first thing: the lane hands out one at a time."""


class Worker:
    """See the module. A fresh one knows nothing: what node it is of comes with `Opened`."""

    def __init__(self) -> None:
        self._memory = Memory()

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input. What changed in memory is kept before anything else is done."""
        turn = Turn(now_s, self._memory)
        _take(turn, event)
        if turn.memory.open:
            _end_doomed(turn)
            if not turn.memory.closing:
                queue.advance(turn)
            _declare(turn)
        changed = turn.memory is not self._memory and turn.memory != self._memory
        self._memory = turn.memory
        keep = [Keep(memory=self.snapshot())] if changed and turn.memory.open else []
        return Effects(do=(*keep, *turn.effects), wake_at_s=queue.next_wake_s(turn))

    def snapshot(self) -> str:
        """Everything the machine knows, as canonical JSON."""
        return self._memory.canonical_json()

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot."""
        self._memory = Memory.model_validate_json(snapshot)

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """The rank groups of this node now (readiness page, tests)."""
        return self._memory.hosted

    @property
    def beats(self) -> bool:
        """Whether its node shows signs of life: while it is open, unless every device was withdrawn.

        A node that an emulated fleet has failed is as silent as a dead one.
        """
        memory = self._memory
        if memory.node is None or memory.closing:
            return False
        return any(each.device not in memory.withdrawn for each in memory.node.devices)


def _take(turn: Turn, event: Input) -> None:
    match event:
        case Delivered():
            if turn.memory.open:
                _command(turn, event)
            elif len(turn.memory.early) < EARLY_COMMANDS:
                turn.change(early=(*turn.memory.early, event))
        case inputs.GroupInput():
            hosted = turn.memory.group(event.group)
            if hosted is not None:
                _report(turn, hosted, event)
        case inputs.Opened():
            _open(turn, event)
        case inputs.Closing():
            _close(turn)
        case Stored():
            _stored(turn, event)
        case _:
            pass  # Started (no bucket is watched) and Woken: time is looked at in every turn


def _report(turn: Turn, hosted: Hosted, report: inputs.GroupInput) -> None:
    match report:
        case inputs.RanksUp():
            reports.ranks_up(turn, hosted, report)
        case inputs.LaunchFailed():
            reports.launch_failed(turn, hosted, report)
        case inputs.RanksExited():
            reports.ranks_exited(turn, hosted, report)
        case inputs.RanksGone():
            reports.ranks_gone(turn, hosted)
        case inputs.RanksLinger():
            reports.ranks_linger(turn, hosted, report)
        case inputs.FrontReady():
            reports.front_ready(turn, hosted)
        case inputs.FrontSilent():
            reports.front_silent(turn, hosted, report)
        case _:
            _outcome(turn, hosted, report)


def _outcome(turn: Turn, hosted: Hosted, report: inputs.GroupInput) -> None:
    match report:
        case inputs.GateSet():
            reports.gate_set(turn, hosted, report)
        case inputs.GateNotSet():
            reports.gate_not_set(turn, hosted, report)
        case inputs.PromptsSent():
            reports.prompts_sent(turn, hosted, report)
        case inputs.Drained():
            reports.drained(turn, hosted, report)
        case inputs.NotDrained():
            reports.not_drained(turn, hosted, report)
        case _:
            raise BrokenInvariant(f"no meaning is given to {type(report).__name__}")


# -- commands -----------------------------------------------------------------------------------


def _command(turn: Turn, delivered: Delivered) -> None:
    order = parse(delivered.type, delivered.message)
    if not isinstance(order, WorkerCommand) or order.node != turn.node.node:
        return
    command = Command(
        fence=order.fence,
        cause=delivered.message_id,
        traceparent=delivered.traceparent,
        at_s=turn.now_s,
    )
    match order:
        case WithdrawDevice():
            # An operator's word about a device, not a step of a shift: it is obeyed whatever the fence.
            commands.withdraw(turn, order)
        case FenceWorker():
            _accept_term(turn, order, command)
        case StartPlan() | StopPlan() | GatePlan() | WarmPlan() | DrainPlan():
            if _accept_term(turn, order, command) and _accept_step(turn, order, command):
                _obey(turn, order, command)
        case _:
            raise BrokenInvariant(f"no meaning is given to {type(order).__name__}")


PlanCommand = StartPlan | StopPlan | GatePlan | WarmPlan | DrainPlan


def _obey(turn: Turn, order: PlanCommand, command: Command) -> None:
    match order:
        case StartPlan():
            commands.start(turn, order, command)
        case StopPlan():
            commands.stop(turn, order, command)
        case GatePlan():
            commands.gate(turn, order, command)
        case WarmPlan():
            commands.warm(turn, order, command)
        case DrainPlan():
            commands.drain(turn, order, command)
        case _:
            assert_never(order)


def _accept_term(turn: Turn, order: WorkerCommand, command: Command) -> bool:
    """Raise the deployment's term, or refuse a command of a leader that is not in charge any more."""
    deployment, term = order.fence.deployment, order.fence.term
    highest = turn.memory.terms.get(deployment, 0)
    if term < highest:
        fence = Fence(deployment=deployment, term=highest, shift=0, step=0)
        _superseded(turn, order, command, fence)
        return False
    if term > highest:
        turn.change(terms=dict(sorted({**turn.memory.terms, deployment: term}.items())))
    return True


def _accept_step(turn: Turn, order: PlanCommand, command: Command) -> bool:
    """Raise the plan's fence; a repeat is answered as before, or not yet; a lower one is refused."""
    plan = order.plan.id if isinstance(order, StartPlan) else order.plan
    kind = type(order).__name__
    known = turn.memory.plan(plan, order.fence.deployment)
    if known is not None:
        if order.fence.order < known.fence.order:
            _superseded(turn, order, command, known.fence)
            return False
        if order.fence == known.fence and kind in known.answers:
            answer = known.answers[kind]
            if answer is not None:
                turn.repeat(answer, command.cause)
            return False
    same_step = known is not None and known.fence == order.fence
    answers = {**known.answers, kind: None} if known is not None and same_step else {kind: None}
    devices = () if known is None else known.devices
    turn.remember(PlanMemory(plan=plan, fence=order.fence, devices=devices, answers=answers))
    return True


def _superseded(turn: Turn, order: WorkerCommand, command: Command, highest: Fence) -> None:
    message = CommandSuperseded(
        target=turn.node.node,
        command=type(order).__name__,
        fence=order.fence,
        highest=highest,
    )
    turn.do(publish(message, command.cause, traceparent=command.traceparent))


# -- opening and closing ------------------------------------------------------------------------


def _open(turn: Turn, opened: inputs.Opened) -> None:
    """Say what became of the groups of the process before: none of them is left."""
    early = turn.memory.early
    before = turn.memory
    if opened.memory is not None:
        before = Memory.model_validate_json(opened.memory)
    changes = {
        "mourned": (),
        "node": opened.node,
        "limits": opened.limits,
        "closing": False,
        "early": (),
        "host_revision": turn.memory.host_revision,
        "declared": turn.memory.declared,
    }
    turn.memory = before.model_copy(update=changes)
    reason = f"the worker of {turn.node.node} was started anew and ended what it found"
    for hosted in before.hosted:
        turn.drop(hosted)
        match hosted.stage:
            case Stage.RUNNING:
                turn.lost(hosted, reason)
            case Stage.QUEUED | Stage.STARTING:
                turn.failed(hosted.plan, hosted.start, reason)
            case Stage.STOPPING:
                if hosted.stop is not None:
                    turn.stopped(hosted.plan.id, hosted.stop, hosted.devices)
            case _:
                assert_never(hosted.stage)
    for mourned in before.mourned:
        turn.lost(mourned, reason)  # nobody may have heard of it: the bus may have gone with us
    for delivered in early:
        _command(turn, delivered)


def _close(turn: Turn) -> None:
    """End everything; the executor hears of it as of any other loss, at the latest from the next process."""
    turn.change(closing=True)
    reason = f"the worker of {turn.node.node} was stopped"
    for hosted in turn.memory.hosted:
        match hosted.stage:
            case Stage.QUEUED:
                turn.failed(hosted.plan, hosted.start, reason)
                turn.drop(hosted)
            case Stage.STARTING:
                turn.failed(hosted.plan, hosted.start, reason)
                turn.end(hosted, turn.limits.broken_grace_s)
            case Stage.RUNNING:
                turn.lost(hosted, reason)
                turn.end(hosted, turn.limits.stop_grace_s)
            case Stage.STOPPING:
                pass
            case _:
                assert_never(hosted.stage)


def _end_doomed(turn: Turn) -> None:
    """End what runs on devices that are taken now."""
    for hosted in turn.memory.hosted:
        if hosted.doom_s is None or hosted.doom is None or turn.now_s < hosted.doom_s:
            continue
        if hosted.stage is Stage.RUNNING:
            turn.lost(hosted, hosted.doom)
        else:
            turn.failed(hosted.plan, hosted.start, hosted.doom)
        turn.end(hosted, 0.0)


# -- our key in the bucket `hosts` --------------------------------------------------------------


def _declared(turn: Turn) -> str | None:
    """What our key should hold: devices that can take something. One that was taken can, only when it is empty."""
    if turn.memory.closing:
        return None
    absent = {device for each in turn.memory.hosted for device in each.taken}
    absent |= set(turn.memory.withdrawn)
    node = turn.node
    host = Host(
        node=node.node,
        address=node.address,
        first_port=node.first_port,
        port_blocks=node.port_blocks,
        devices=tuple(each.device for each in node.devices if each.device not in absent),
    )
    return host.canonical_json()


def _declare(turn: Turn) -> None:
    wanted = _declared(turn)
    if wanted == turn.memory.declared or turn.memory.declare_attempts >= DECLARE_ATTEMPTS:
        return
    expected = turn.memory.host_revision
    turn.do(
        Put(
            write_id=derived_id("declare", turn.node.node, expected, wanted),
            bucket=BUCKET,
            key=turn.node.node,
            value=wanted,
            expected=expected,
        )
    )


def _stored(turn: Turn, stored: Stored) -> None:
    entry = next((each for each in stored.entries if each.bucket == BUCKET), None)
    if entry is None:
        return
    written = stored.outcome == "written"
    attempts = 0 if written else turn.memory.declare_attempts + 1
    if attempts >= DECLARE_ATTEMPTS:
        raise BrokenInvariant(f"another worker writes the key {turn.node.node} of bucket {BUCKET}")
    turn.change(host_revision=entry.revision, declared=entry.value, declare_attempts=attempts)
    if written:
        turn.change(mourned=())  # a write follows all that was said before it
