"""Which queued group starts next, and whether its devices have room. Called at the end of every turn.

Starts on CPU slots happen one after another: an engine's start is nearly all imports, so two at once
take as long as two in a row and neither is ready early. On a node of GPUs several may start at once:
most of a start there is weights on their way to different cards. Queues of several nodes see the
executor's commands in the same order and launch in that order, so two gangs never wait for each other.
"""

from __future__ import annotations

from typing import Final

from flexpipe.hosting.effects import LaunchRanks
from flexpipe.hosting.memory import Hosted, Stage
from flexpipe.hosting.turn import Turn

GPU_STARTS_LIMIT: Final = 8
"""Starts at once on a node of GPUs: one a card of the largest usual machine."""


def advance(turn: Turn) -> None:
    """Launch the first queued group if it is its turn and there is room; fail those that waited too long."""
    for hosted in [each for each in turn.memory.hosted if each.stage is Stage.QUEUED]:
        if turn.now_s >= hosted.deadline_s:
            waited_s = turn.now_s - hosted.start.at_s
            turn.failed(hosted.plan, hosted.start, f"its turn did not come within {waited_s:.0f} s")
            turn.drop(hosted)
    while _starting(turn) < _starts_limit(turn):
        first = next((each for each in turn.memory.hosted if each.stage is Stage.QUEUED), None)
        if first is None or not _launch(turn, first):
            return


def _starting(turn: Turn) -> int:
    return sum(each.stage is Stage.STARTING for each in turn.memory.hosted)


def _starts_limit(turn: Turn) -> int:
    shares_cores = any(device.model == "cpu" for device in turn.node.devices)
    return 1 if shares_cores else GPU_STARTS_LIMIT


def _launch(turn: Turn, hosted: Hosted) -> bool:
    """Whether the queue moved on: the group was launched, or it failed. False: memory is waited for."""
    short = shortage(turn, hosted)
    if short is None:
        launched = turn.put(hosted, stage=Stage.STARTING, launched_s=turn.now_s, clear_by_s=None)
        turn.do(LaunchRanks(group=launched.group, ranks=launched.ranks))
        return True
    reason, being_freed = short
    clear_by_s = hosted.clear_by_s
    if clear_by_s is None:
        clear_by_s = min(turn.now_s + turn.limits.clear_limit_s, hosted.deadline_s)
    if being_freed and turn.now_s < clear_by_s:
        turn.put(hosted, clear_by_s=clear_by_s)
        return False
    turn.failed(hosted.plan, hosted.start, reason)
    turn.drop(hosted)
    return True


def shortage(turn: Turn, hosted: Hosted) -> tuple[str, bool] | None:
    """What the first device of a group lacks, and whether somebody who holds it is going. None: room for all.

    Memory counts as held until the last process of the group that claims it is gone.
    """
    for device in turn.node.devices:
        need = hosted.claim(device.device)
        if not need:
            continue
        holders = [
            each for each in turn.memory.hosted if each.holds_memory and each.claim(device.device)
        ]
        free = device.memory_bytes - sum(each.claim(device.device) for each in holders)
        if need > free:
            held = ", ".join(f"{each.plan.id} ({_pids(each)})" for each in holders)
            reason = (
                f"{turn.node.node}/{device.device} has {free} of {device.memory_bytes} bytes free "
                f"and {need} are needed; held by {held or 'nobody'}"
            )
            return reason, any(each.stage is Stage.STOPPING for each in holders)
    return None


def _pids(hosted: Hosted) -> str:
    if hosted.lingering:
        return "pid " + ", ".join(map(str, hosted.lingering)) + " does not end"
    return "starting" if hosted.pid is None else f"pid {hosted.pid}"


def next_wake_s(turn: Turn) -> float | None:
    """When something happens although nothing is heard: a queue limit, or the end of a withdrawn device."""
    hosted = turn.memory.hosted
    times = [each.doom_s for each in hosted if each.doom_s is not None]
    for each in hosted:
        if each.stage is Stage.QUEUED:
            times.append(each.deadline_s)
            if each.clear_by_s is not None:
                times.append(each.clear_by_s)
    return min(times, default=None)
