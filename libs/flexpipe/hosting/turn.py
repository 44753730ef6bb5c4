"""One input's worth of work: the memory as it changes, the effects as they gather, and what is said on the way."""

from __future__ import annotations

from typing import Literal

from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import EngineFailed, EngineLost, EngineReady, PlanStopped, PlanStuck
from flexpipe.hosting.effects import StopRanks
from flexpipe.hosting.memory import (
    MOURNED_LIMIT,
    Command,
    Hosted,
    HostingLimits,
    Memory,
    PlanMemory,
    Stage,
)
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.ids import derived_id, parse_traceparent, span_id
from flexpipe.kernel.machine import Effect, Publish, Span
from flexpipe.model.fleet import DeviceRef, Node
from flexpipe.model.plan import Plan


class Turn:
    """Made for one input, thrown away after it. Only `Worker` makes one."""

    def __init__(self, now_s: float, memory: Memory) -> None:
        self.now_s = now_s
        self.memory = memory
        self.effects: list[Effect] = []

    @property
    def node(self) -> Node:
        """This node with every device that was configured, also withdrawn ones. Known from `Opened` on."""
        if self.memory.node is None:
            raise BrokenInvariant("a worker's brain was asked to act before it was opened")
        return self.memory.node

    @property
    def limits(self) -> HostingLimits:
        """Time limits of this node."""
        return self.memory.limits

    def do(self, *effects: Effect) -> None:
        """Ask for effects, in order."""
        self.effects.extend(effects)

    def put(self, hosted: Hosted, **changes: object) -> Hosted:
        """Host a group, or change it. Gives the group as it is now."""
        changed = hosted.model_copy(update=changes)
        self.memory = self.memory.replaced(changed)
        return changed

    def drop(self, hosted: Hosted) -> None:
        """A group is gone."""
        self.memory = self.memory.without(hosted.group)

    def change(self, **changes: object) -> None:
        """Change something else in the memory."""
        self.memory = self.memory.model_copy(update=changes)

    def remember(self, plan: PlanMemory) -> None:
        """Change what is remembered of one plan's fence and answers."""
        self.memory = self.memory.remember(plan)

    # -- saying -------------------------------------------------------------------------------

    def answer(self, plan: str, command: Command, kind: str, message: Message) -> None:
        """Answer a command, and keep the answer for a repeat of it."""
        said = publish(message, command.cause, traceparent=command.traceparent)
        self.do(said)
        known = self.memory.plan(plan, command.fence.deployment)
        if known is not None and known.fence == command.fence:
            answers = {**known.answers, kind: said}
            self.memory = self.memory.remember(known.model_copy(update={"answers": answers}))

    def repeat(self, answer: Publish, cause: str) -> None:
        """Say a recorded answer again, as a new message: the bus would drop the old one's id."""
        again = derived_id("repeat", answer.message_id, cause)
        self.do(answer.model_copy(update={"message_id": again}))

    def failed(self, plan: Plan, start: Command, reason: str, log_tail: str = "") -> None:
        """Say that a start did not succeed. What becomes of its processes is the caller's next word."""
        message = EngineFailed(
            node=self.node.node,
            plan=plan.id,
            fence=start.fence,
            reason=reason,
            log_tail=log_tail,
        )
        self.answer(plan.id, start, "StartPlan", message)
        self.span("engine start", plan, start, error=reason)

    def ready(self, hosted: Hosted) -> None:
        """Say that a group runs."""
        started_s = hosted.start.at_s if hosted.launched_s is None else hosted.launched_s
        message = EngineReady(
            node=self.node.node,
            plan=hosted.plan.id,
            fence=hosted.start.fence,
            start_s=started_s,
            ready_s=self.now_s if hosted.ready_s is None else hosted.ready_s,
        )
        self.answer(hosted.plan.id, hosted.start, "StartPlan", message)

    def lost(self, hosted: Hosted, reason: str, log_tail: str = "") -> None:
        """Say that a group that ran is not whole any more: the plan is lost.

        It is remembered until a later write was stored, and with it all that was said before: where the bus is gone
        too, the next process says it again.
        """
        others = tuple(each for each in self.memory.mourned if each.plan.id != hosted.plan.id)
        self.change(mourned=(*others, hosted)[-MOURNED_LIMIT:])
        message = EngineLost(
            node=self.node.node,
            plan=hosted.plan.id,
            fence=hosted.start.fence,
            reason=reason,
            log_tail=log_tail,
        )
        self.do(publish(message, hosted.group, traceparent=hosted.start.traceparent))

    def stopped(self, plan: str, command: Command, released: tuple[DeviceRef, ...]) -> None:
        """Say that none of this node's ranks of a plan is left."""
        message = PlanStopped(
            node=self.node.node, plan=plan, fence=command.fence, released=released
        )
        self.answer(plan, command, "StopPlan", message)

    def stuck(
        self, plan: str, command: Command, what: Literal["drain", "gate", "stop"], reason: str
    ) -> None:
        """Say that something asked of a plan could not be done."""
        message = PlanStuck(
            node=self.node.node, plan=plan, fence=command.fence, what=what, reason=reason
        )
        self.answer(plan, command, f"{what.capitalize()}Plan", message)

    def end(self, hosted: Hosted, grace_s: float, limit_s: float | None = None) -> Hosted:
        """End the processes of a group. What was asked of its front is not answered any more."""
        limit_s = self.limits.kill_limit_s if limit_s is None else limit_s
        self.do(StopRanks(group=hosted.group, grace_s=min(grace_s, limit_s / 2), limit_s=limit_s))
        return self.put(
            hosted,
            stage=Stage.STOPPING,
            doom_s=None,
            gate=None,
            warm=None,
            drain=None,
            lingering=(),
        )

    def span(
        self,
        name: Literal["engine start", "engine stop"],
        plan: Plan,
        command: Command,
        *,
        queued_s: float | None = None,
        error: str | None = None,
    ) -> None:
        """A finished piece of the trace that the command belongs to, from the command until now."""
        parent = parse_traceparent(command.traceparent)
        if parent is None:
            return
        attributes: dict[str, str | int | float | bool] = {
            "flexpipe.node": self.node.node,
            "flexpipe.plan": plan.id,
            "flexpipe.shape": plan.shape,
            "flexpipe.ranks": len(plan.ranks_on(self.node.node)),
        }
        if queued_s is not None:
            attributes["flexpipe.queued_s"] = round(queued_s, 6)
        self.do(
            Span(
                trace_id=parent[0],
                span_id=span_id(name, self.node.node, plan.id, command.fence.header),
                parent_span_id=parent[1],
                name=name,
                start_s=command.at_s,
                end_s=self.now_s,
                attributes=attributes,
                error=error,
            )
        )
