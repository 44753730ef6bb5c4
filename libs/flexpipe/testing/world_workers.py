"""A worker without processes: it answers commands after given delays, under the same rules of fencing as the real one.
Mounted on a `World` beside the executor. `faults` says what goes wrong, by plan id or `*` for every plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from flexpipe.bus.hearing import Hearing
from flexpipe.events.catalog import parse
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import (
    CommandSuperseded,
    DrainPlan,
    EngineFailed,
    EngineLost,
    EngineReady,
    FenceWorker,
    GatePlan,
    PlanDrained,
    PlanGated,
    PlanStopped,
    PlanStuck,
    PlanWarmed,
    StartPlan,
    StopPlan,
    WarmPlan,
    WithdrawDevice,
    WorkerCommand,
)
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Input,
    Publish,
    Put,
    Started,
    Stored,
    Woken,
)
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Host, Node
from flexpipe.model.plan import Plan

Fault = Literal[
    "start-fails",
    "never-ready",
    "gate-silent",
    "warm-fails",
    "drain-stuck",
    "drain-silent",
    "stop-slow",
]
SLOW_STOP_S: Final = 7.0
"""Longer than two release limits of the tests' policy."""
WITHDRAW_GRACE_S: Final = 0.5


class RankDied(Input):
    """A rank of a plan is gone without having been told to stop."""

    plan: str


@dataclass
class Hosted:
    """One plan's ranks on this node."""

    plan: Plan
    fence: Fence
    ready: bool = False
    admitting: bool = False
    stopping: bool = False


@dataclass
class Delays:
    """How long things take, seconds."""

    start_s: float = 2.0
    gate_s: float = 0.02
    warm_s: float = 0.3
    drain_s: float = 1.0
    stop_s: float = 0.2


@dataclass
class FakeWorker:
    """One node. Its memory survives the executor, as a real worker's does."""

    node: Node
    delays: Delays = field(default_factory=Delays)
    faults: dict[str, set[Fault]] = field(default_factory=dict)
    hosted: dict[str, Hosted] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    terms: dict[str, int] = field(default_factory=dict)
    fences: dict[str, Fence] = field(default_factory=dict)
    answers: dict[tuple[str, str], Publish] = field(default_factory=dict)
    _due: list[tuple[float, int, str, WorkerCommand | RankDied]] = field(default_factory=list)
    _count: int = 0
    _revision: int = 0
    _effects: list[Effect] = field(default_factory=list)

    HEARS = (FenceWorker, StartPlan, WarmPlan, GatePlan, DrainPlan, StopPlan, WithdrawDevice)

    def hears(self) -> tuple[Hearing, ...]:
        """What it is mounted with."""
        return tuple(Hearing(message, key=self.node.node) for message in self.HEARS)

    def handle(self, now_s: float, event: Input) -> Effects:
        """One input."""
        self._effects = []
        match event:
            case Started(entries=entries):
                known = [e.revision for e in entries if e.key == self.node.node]
                self._revision = max(known, default=0)
                self._declare()
            case Stored(entries=entries):
                self._revision = entries[0].revision
            case Delivered():
                command = parse(event.type, event.message)
                assert isinstance(command, WorkerCommand)
                self._hear(now_s, event.message_id, command)
            case RankDied():
                self._die(event.plan, "a rank exited with code 137")
            case Woken():
                pass
        for due in sorted(each for each in self._due if each[0] <= now_s):
            self._due.remove(due)
            self._finish(now_s, due[2], due[3])
        wake_at_s = min((each[0] for each in self._due), default=None)
        return Effects(do=tuple(self._effects), wake_at_s=wake_at_s)

    def snapshot(self) -> str:
        """Fakes are not restarted from snapshots."""
        raise NotImplementedError

    def restore(self, snapshot: str) -> None:
        """Fakes are not restarted from snapshots."""
        raise NotImplementedError

    def used_bytes(self, device: str) -> int:
        """Bytes that ranks on a device hold."""
        return sum(
            bytes_
            for hosted in self.hosted.values()
            for ref, bytes_ in hosted.plan.claims()
            if (ref.node, ref.device) == (self.node.node, device)
        )

    # -- commands -------------------------------------------------------------------------------

    def _hear(self, now_s: float, cause: str, command: WorkerCommand) -> None:
        if isinstance(command, WithdrawDevice):
            self._withdraw(now_s, command)
            return
        fence, term = command.fence, self.terms.get(command.fence.deployment, 0)
        if fence.term < term:
            highest = fence.model_copy(update={"term": term, "shift": 0, "step": 0})
            self._superseded(command, highest, cause)
            return
        self.terms[fence.deployment] = fence.term
        if isinstance(command, FenceWorker):
            return
        plan = plan_of(command)
        known = self.fences.get(plan)
        if known is not None and fence.order < known.order:
            self._superseded(command, known, cause)
            return
        kind = type(command).__name__
        if known == fence and (plan, kind) in self.answers:
            again = self.answers[plan, kind]
            update = {"message_id": f"{again.message_id} again for {cause}"}
            self._effects.append(again.model_copy(update=update))
            return
        self.fences[plan] = fence
        self._obey(now_s, cause, plan, command)

    def _obey(self, now_s: float, cause: str, plan: str, command: WorkerCommand) -> None:
        faults = self._faults(plan)
        delay_s = 0.0
        match command:
            case StartPlan():
                hosted = self.hosted.get(plan)
                if hosted is None:
                    self.hosted[plan] = Hosted(command.plan, command.fence)
                    delay_s = self.delays.start_s
                else:
                    hosted.fence = command.fence
                    delay_s = 0.0 if hosted.ready else self.delays.start_s
                if "never-ready" in faults:
                    return
            case GatePlan():
                delay_s = self.delays.gate_s
                if "gate-silent" in faults:
                    return
            case WarmPlan():
                delay_s = self.delays.warm_s
            case DrainPlan():
                delay_s = self.delays.drain_s
                if "drain-silent" in faults:
                    return
            case StopPlan():
                delay_s = SLOW_STOP_S if "stop-slow" in faults else self.delays.stop_s
                if plan in self.hosted:
                    self.hosted[plan].stopping = True
            case _:
                raise AssertionError(f"no meaning is given to {type(command).__name__}")
        self._later(now_s + delay_s, cause, command)

    def _finish(self, now_s: float, cause: str, command: WorkerCommand | RankDied) -> None:
        if isinstance(command, RankDied):
            self._die(command.plan, "its device was withdrawn")
            return
        plan = plan_of(command)
        if self.fences.get(plan) != command.fence and not isinstance(command, StopPlan):
            return  # a later command has taken its place
        answer = self._answer(now_s, plan, command)
        if answer is not None:
            said = publish(answer, cause)
            self.answers[plan, type(command).__name__] = said
            self._effects.append(said)

    def _answer(self, now_s: float, plan: str, command: WorkerCommand) -> Message | None:
        hosted, faults = self.hosted.get(plan), self._faults(plan)
        base = {"node": self.node.node, "plan": plan, "fence": command.fence}
        match command:
            case StartPlan():
                return self._started(now_s, plan, base)
            case GatePlan() if hosted is None:
                why = {"what": "gate", "reason": "it does not run here"}
                return PlanStuck.model_validate({**base, **why})
            case GatePlan(admitting=admitting) if hosted is not None:
                hosted.admitting = admitting
                return PlanGated.model_validate({**base, "admitting": admitting})
            case WarmPlan(requests=requests):
                errors = requests if "warm-fails" in faults or hosted is None else 0
                counts = {"requests": requests, "errors": errors}
                reason = "HTTP 500" if errors else None
                return PlanWarmed.model_validate({**base, **counts, "reason": reason})
            case DrainPlan() if "drain-stuck" in faults and hosted is not None:
                why = {"what": "drain", "reason": "2 requests are left"}
                return PlanStuck.model_validate({**base, **why})
            case DrainPlan():
                return PlanDrained.model_validate(base)
            case StopPlan():
                released = () if hosted is None else hosted.plan.devices
                if hosted is None or hosted.fence.order <= command.fence.order:
                    self.hosted.pop(plan, None)  # what was started since is another engine
                return PlanStopped.model_validate({**base, "released": released})
            case _:
                raise AssertionError(f"no meaning is given to {type(command).__name__}")

    def _started(self, now_s: float, plan: str, base: dict[str, object]) -> Message | None:
        hosted = self.hosted.get(plan)
        if hosted is None:
            return None
        if "start-fails" in self._faults(plan):
            del self.hosted[plan]
            facts = {"reason": "exit code 1", "log_tail": "OSError: no such weights"}
            return EngineFailed.model_validate({**base, **facts})
        hosted.ready = True
        times = {"start_s": now_s - self.delays.start_s, "ready_s": now_s}
        return EngineReady.model_validate({**base, **times})

    def _withdraw(self, now_s: float, command: WithdrawDevice) -> None:
        if command.present:
            self.withdrawn.discard(command.device)
        else:
            self.withdrawn.add(command.device)
            for plan, hosted in sorted(self.hosted.items()):
                here = {ref.device for ref in hosted.plan.devices if ref.node == self.node.node}
                if command.device in here:
                    grace_s = 0.0 if command.at_once else WITHDRAW_GRACE_S
                    self._later(now_s + grace_s, "", RankDied(plan=plan))
        self._declare()

    # -- saying ---------------------------------------------------------------------------------

    def _die(self, plan: str, reason: str) -> None:
        hosted = self.hosted.get(plan)
        if hosted is None or hosted.stopping:
            return
        del self.hosted[plan]
        facts = {
            "node": self.node.node,
            "plan": plan,
            "fence": hosted.fence,
            "reason": reason,
            "log_tail": "killed",
        }
        lost = EngineLost if hosted.ready else EngineFailed
        self._effects.append(publish(lost.model_validate(facts), str(hosted.fence)))

    def _superseded(self, command: WorkerCommand, highest: Fence, cause: str) -> None:
        said = CommandSuperseded(
            target=self.node.node,
            command=type(command).__name__,
            fence=command.fence,
            highest=highest,
        )
        self._effects.append(publish(said, cause))

    def _declare(self) -> None:
        devices = (device.device for device in self.node.devices)
        declared = Host(
            node=self.node.node,
            address=self.node.address,
            first_port=self.node.first_port,
            port_blocks=self.node.port_blocks,
            devices=tuple(device for device in devices if device not in self.withdrawn),
        )
        self._count += 1
        self._effects.append(
            Put(
                write_id=f"{self.node.node} {self._count}",
                bucket="hosts",
                key=self.node.node,
                value=declared.canonical_json(),
                expected=self._revision,
            )
        )

    def _later(self, at_s: float, cause: str, command: WorkerCommand | RankDied) -> None:
        self._count += 1
        self._due.append((at_s, self._count, cause, command))

    def _faults(self, plan: str) -> set[Fault]:
        return self.faults.get(plan, set()) | self.faults.get("*", set())


def plan_of(command: WorkerCommand) -> str:
    """The plan that a command is about; empty where it is about none."""
    plan: Plan | str = getattr(command, "plan", "")
    return plan.id if isinstance(plan, Plan) else plan
