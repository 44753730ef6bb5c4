"""What each command to a worker does. `worker` calls these after the fence has let a command in."""

from __future__ import annotations

from typing import Final, assert_never

from flexpipe.events.plan import (
    DrainPlan,
    GatePlan,
    PlanDrained,
    PlanWarmed,
    StartPlan,
    StopPlan,
    WarmPlan,
    WithdrawDevice,
)
from flexpipe.hosting.effects import SendPrompts, SetGate, StopRanks, WatchDrain
from flexpipe.hosting.memory import Command, Hosted, Stage, rank_group
from flexpipe.hosting.turn import Turn

WARM_PROMPT_TOKENS: Final = 24
WARM_NEW_TOKENS: Final = 6
"""Enough for a median of the time between tokens, little enough for a model at ten tokens a second."""

LOWEST_WARM_ID: Final = 64
"""Ids below are specials in most vocabularies, and a stray end-of-text proves nothing."""

DEFAULT_VOCAB: Final = 256
"""Where the model's facts are not known: every vocabulary has the bytes."""


def start(turn: Turn, order: StartPlan, command: Command) -> None:
    """Host this node's ranks of a plan: queue them, or answer at once where they run already."""
    live = turn.memory.live(order.plan.id)
    fault = _start_fault(turn, order)
    place = (command.fence.deployment, order.front_port)
    if live is not None and (live.start.fence.deployment, live.ranks.front_port) == place:
        _start_again(turn, live, order, command)
    elif live is not None:
        port = live.ranks.front_port
        turn.failed(order.plan, command, f"the plan runs here already, on port {port}")
    elif fault is not None:
        turn.failed(order.plan, command, fault)
    else:
        hosted = Hosted(
            group=f"{order.plan.id}.{command.fence.header}",
            ranks=rank_group(turn.node, order),
            stage=Stage.QUEUED,
            start=command,
            deadline_s=turn.now_s + order.limit_s,
        )
        turn.put(hosted)
        known = turn.memory.plan(order.plan.id, command.fence.deployment)
        if known is not None:
            turn.remember(known.model_copy(update={"devices": hosted.devices}))


def _start_again(turn: Turn, live: Hosted, order: StartPlan, command: Command) -> None:
    """A later step asks for what is there already: the answer goes to the later step."""
    renewed = command.model_copy(update={"at_s": live.start.at_s})
    deadline_s = max(live.deadline_s, turn.now_s + order.limit_s)
    hosted = turn.put(live, start=renewed, deadline_s=deadline_s)
    if hosted.stage is Stage.RUNNING:
        turn.ready(hosted)


def _start_fault(turn: Turn, order: StartPlan) -> str | None:
    """Why this node cannot take its ranks of a plan, whatever else runs here."""
    node = turn.node
    if node.node not in order.plan.nodes:
        return f"the plan has no ranks on {node.node}"
    there = {device.device for device in node.devices}
    for ref in order.plan.devices:
        if ref.node == node.node and ref.device not in there:
            return f"{ref} is not a device of this node"
        if ref.node == node.node and ref.device in turn.memory.withdrawn:
            return f"{ref} is withdrawn"
    return None


def stop(turn: Turn, order: StopPlan, command: Command) -> None:
    """End this node's ranks of a plan; answered when the last process is gone."""
    deployment = command.fence.deployment
    known = turn.memory.plan(order.plan, deployment)
    for hosted in turn.memory.of(order.plan, deployment):
        match hosted.stage:
            case Stage.QUEUED:
                turn.drop(hosted)
            case Stage.STOPPING:
                turn.put(hosted, stop=command)
            case Stage.STARTING | Stage.RUNNING:
                ending = turn.end(hosted, turn.limits.stop_grace_s, order.limit_s)
                turn.put(ending, stop=command)
            case _:
                assert_never(hosted.stage)
    if not turn.memory.of(order.plan, deployment):
        turn.stopped(order.plan, command, () if known is None else known.devices)


def gate(turn: Turn, order: GatePlan, command: Command) -> None:
    """Open or close the gate in a plan's front."""
    hosted = _running(turn, order.plan, command)
    if hosted is None:
        turn.stuck(order.plan, command, "gate", _not_running(turn, order.plan))
        return
    turn.put(hosted, gate=command, gate_admitting=order.admitting)
    turn.do(
        SetGate(
            group=hosted.group,
            front=hosted.ranks.front,
            plan=order.plan,
            fence=command.fence,
            admitting=order.admitting,
            route_entry=order.route_entry,
        )
    )


def warm(turn: Turn, order: WarmPlan, command: Command) -> None:
    """Send synthetic prompts through a plan's front."""
    hosted = _running(turn, order.plan, command)
    if hosted is None:
        message = PlanWarmed(
            node=turn.node.node,
            plan=order.plan,
            fence=command.fence,
            requests=order.requests,
            errors=order.requests,
            reason=_not_running(turn, order.plan),
        )
        turn.answer(order.plan, command, "WarmPlan", message)
        return
    facts = hosted.ranks.model.facts
    vocab = DEFAULT_VOCAB if facts is None else facts.vocab
    turn.put(hosted, warm=command)
    turn.do(
        SendPrompts(
            group=hosted.group,
            front=hosted.ranks.front,
            plan=order.plan,
            fence=command.fence,
            prompts=tuple(warm_prompt(index, vocab) for index in range(order.requests)),
            new_tokens=WARM_NEW_TOKENS,
            limit_s=order.limit_s,
        )
    )


def warm_prompt(index: int, vocab: int) -> tuple[int, ...]:
    """The ids of the synthetic prompt of one number: all different from the first id on."""
    lowest = min(LOWEST_WARM_ID, vocab // 2)
    span = vocab - lowest
    return tuple(
        lowest + (index * 7919 + place * 104_729) % span for place in range(WARM_PROMPT_TOKENS)
    )


def drain(turn: Turn, order: DrainPlan, command: Command) -> None:
    """Watch the engine's own count of requests until it is zero."""
    hosted = _running(turn, order.plan, command)
    if hosted is None:
        message = PlanDrained(node=turn.node.node, plan=order.plan, fence=command.fence)
        turn.answer(order.plan, command, "DrainPlan", message)
        return
    turn.put(hosted, drain=command)
    turn.do(
        WatchDrain(
            group=hosted.group,
            front=hosted.ranks.front,
            fence=command.fence,
            limit_s=order.limit_s,
        )
    )


def withdraw(turn: Turn, order: WithdrawDevice) -> None:
    """A device is taken: what runs there ends soon, or now where it is gone already. Given back: declared again."""
    withdrawn = set(turn.memory.withdrawn)
    if order.present:
        turn.change(withdrawn=tuple(sorted(withdrawn - {order.device})))
        return
    turn.change(withdrawn=tuple(sorted(withdrawn | {order.device})))
    grace_s = 0.0 if order.at_once else turn.limits.withdraw_grace_s
    for hosted in turn.memory.hosted:
        if any(ref.device == order.device for ref in hosted.devices):
            taken = tuple(sorted({*hosted.taken, order.device}))
            _doom(turn, turn.put(hosted, taken=taken), grace_s)


def _doom(turn: Turn, hosted: Hosted, grace_s: float) -> None:
    """A group whose device was taken ends within the grace, whatever it is doing."""
    match hosted.stage:
        case Stage.QUEUED:
            turn.failed(hosted.plan, hosted.start, hosted.doom or "")
            turn.drop(hosted)
        case Stage.STOPPING if grace_s == 0:
            limit_s = turn.limits.kill_limit_s
            turn.do(StopRanks(group=hosted.group, grace_s=0.0, limit_s=limit_s))
        case Stage.STOPPING:
            pass
        case Stage.STARTING | Stage.RUNNING:
            by_s = turn.now_s + grace_s
            turn.put(hosted, doom_s=by_s if hosted.doom_s is None else min(hosted.doom_s, by_s))
        case _:
            assert_never(hosted.stage)


def _running(turn: Turn, plan: str, command: Command) -> Hosted | None:
    """The group that leads a plan, where it runs for the deployment that asks."""
    live = turn.memory.live(plan)
    if live is None or live.start.fence.deployment != command.fence.deployment:
        return None
    return live if live.stage is Stage.RUNNING and live.leads else None


def _not_running(turn: Turn, plan: str) -> str:
    live = turn.memory.live(plan)
    if live is not None and not live.leads:
        return f"the front of {plan} is on {live.plan.nodes[0]}, not on {turn.node.node}"
    return f"{plan} does not run on {turn.node.node}"
