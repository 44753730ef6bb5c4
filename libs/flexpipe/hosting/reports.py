"""What each report about a rank group means. `worker` calls these for groups that are still hosted."""

from __future__ import annotations

from flexpipe.events.plan import PlanDrained, PlanGated, PlanWarmed
from flexpipe.hosting import inputs
from flexpipe.hosting.effects import PollReady, StopRanks
from flexpipe.hosting.memory import Hosted, Stage
from flexpipe.hosting.turn import Turn


def ranks_up(turn: Turn, hosted: Hosted, report: inputs.RanksUp) -> None:
    """Processes run. The first node waits for its front; on others they run as long as they live:
    rank 0 gets ready only when all have joined."""
    hosted = turn.put(hosted, pid=report.pid)
    if hosted.stage is not Stage.STARTING:
        return
    if hosted.leads:
        left_s = max(0.0, hosted.deadline_s - turn.now_s)
        turn.do(_poll(hosted, left_s))
    else:
        _runs(turn, hosted)


def _poll(hosted: Hosted, limit_s: float) -> PollReady:
    front, plan = hosted.ranks.front, hosted.ranks.plan.id
    return PollReady(group=hosted.group, front=front, plan=plan, limit_s=limit_s)


def front_ready(turn: Turn, hosted: Hosted) -> None:
    """The vote of the first node."""
    if hosted.stage is Stage.STARTING:
        _runs(turn, hosted)


def _runs(turn: Turn, hosted: Hosted) -> None:
    hosted = turn.put(hosted, stage=Stage.RUNNING, ready_s=turn.now_s)
    turn.ready(hosted)
    launched_s = hosted.start.at_s if hosted.launched_s is None else hosted.launched_s
    queued_s = launched_s - hosted.start.at_s
    turn.span("engine start", hosted.plan, hosted.start, queued_s=queued_s)


def launch_failed(turn: Turn, hosted: Hosted, report: inputs.LaunchFailed) -> None:
    """Nothing was started, so nothing is to be ended."""
    if hosted.stage is Stage.STARTING:
        turn.failed(hosted.plan, hosted.start, report.reason)
        turn.drop(hosted)


def front_silent(turn: Turn, hosted: Hosted, report: inputs.FrontSilent) -> None:
    """A start that ran out of time. A later step may have given it more."""
    if hosted.stage is not Stage.STARTING:
        return
    left_s = hosted.deadline_s - turn.now_s
    if left_s > 0:
        turn.do(_poll(hosted, left_s))
        return
    reason = f"not ready within {report.waited_s:.0f} s of its launch"
    turn.failed(hosted.plan, hosted.start, reason, report.log_tail)
    turn.end(hosted, turn.limits.broken_grace_s)


def ranks_exited(turn: Turn, hosted: Hosted, report: inputs.RanksExited) -> None:
    """The leader is gone without having been told to stop: one rank lost, plan lost."""
    reason = report.reason if hosted.doom is None else hosted.doom
    if hosted.stage is Stage.STARTING:
        turn.failed(hosted.plan, hosted.start, reason, report.log_tail)
        turn.end(hosted, turn.limits.broken_grace_s)
    elif hosted.stage is Stage.RUNNING:
        turn.lost(hosted, reason, report.log_tail)
        turn.end(hosted, turn.limits.broken_grace_s)


def ranks_gone(turn: Turn, hosted: Hosted) -> None:
    """The last process is gone: memory is free."""
    turn.drop(hosted)
    if hosted.stop is None or any(each.stop == hosted.stop for each in turn.memory.hosted):
        return
    turn.stopped(hosted.plan.id, hosted.stop, hosted.devices)
    turn.span("engine stop", hosted.plan, hosted.stop)


def ranks_linger(turn: Turn, hosted: Hosted, report: inputs.RanksLinger) -> None:
    """Processes that SIGKILL did not end. They hold their memory; the executor asks again."""
    pids = tuple(sorted(report.pids))
    hosted = turn.put(hosted, lingering=pids)
    reason = f"pid {', '.join(map(str, pids))} of {hosted.plan.id} does not end"
    if hosted.stop is not None:
        turn.stuck(hosted.plan.id, hosted.stop, "stop", reason)
        turn.put(hosted, stop=None)
    limit_s = turn.limits.kill_limit_s
    turn.do(StopRanks(group=hosted.group, grace_s=0.0, limit_s=limit_s))


def gate_set(turn: Turn, hosted: Hosted, report: inputs.GateSet) -> None:
    """The gate took its state."""
    command = hosted.gate
    if command is None or command.fence != report.fence:
        return
    message = PlanGated(
        node=turn.node.node,
        plan=hosted.plan.id,
        fence=command.fence,
        admitting=hosted.gate_admitting,
    )
    turn.answer(hosted.plan.id, command, "GatePlan", message)
    turn.put(hosted, gate=None)


def gate_not_set(turn: Turn, hosted: Hosted, report: inputs.GateNotSet) -> None:
    """The gate refused, or its front did not answer."""
    command = hosted.gate
    if command is not None and command.fence == report.fence:
        turn.stuck(hosted.plan.id, command, "gate", report.reason)
        turn.put(hosted, gate=None)


def prompts_sent(turn: Turn, hosted: Hosted, report: inputs.PromptsSent) -> None:
    """Outcome of synthetic prompts."""
    command = hosted.warm
    if command is None or command.fence != report.fence:
        return
    message = PlanWarmed(
        node=turn.node.node,
        plan=hosted.plan.id,
        fence=command.fence,
        requests=report.requests,
        errors=report.errors,
        reason=report.reason,
        ttft_p50_ms=report.ttft_p50_ms,
        itl_p50_ms=report.itl_p50_ms,
    )
    turn.answer(hosted.plan.id, command, "WarmPlan", message)
    turn.put(hosted, warm=None)


def drained(turn: Turn, hosted: Hosted, report: inputs.Drained) -> None:
    """The engine holds no request."""
    command = hosted.drain
    if command is None or command.fence != report.fence:
        return
    message = PlanDrained(node=turn.node.node, plan=hosted.plan.id, fence=command.fence)
    turn.answer(hosted.plan.id, command, "DrainPlan", message)
    turn.put(hosted, drain=None)


def not_drained(turn: Turn, hosted: Hosted, report: inputs.NotDrained) -> None:
    """The engine still holds requests at the limit."""
    command = hosted.drain
    if command is not None and command.fence == report.fence:
        turn.stuck(hosted.plan.id, command, "drain", report.reason)
        turn.put(hosted, drain=None)
