"""What the worker's brain asks its shell to do. Each effect but `Keep` is answered by one input of `inputs`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexpipe.engines.port import RankGroup
from flexpipe.kernel.machine import Effect
from flexpipe.model.fence import Fence


class Keep(Effect):
    """Write the brain's memory to stable storage before anything after it in the list is done."""

    memory: str


class GroupEffect(Effect):
    """What all effects on one rank group share. `group` is its name on this node."""

    group: str


class LaunchRanks(GroupEffect):
    """Start a rank group's processes. Answered by RanksUp or LaunchFailed; later by RanksExited."""

    ranks: RankGroup


class PollReady(GroupEffect):
    """Ask the front until it is ready. Answered by FrontReady, or FrontSilent at the limit.

    Ready is what says that it serves this plan: somebody else may listen where the front is still to come.
    """

    front: str
    plan: str
    limit_s: float


class SetGate(GroupEffect):
    """Set the gate of a front. Answered by GateSet or GateNotSet."""

    front: str
    plan: str
    fence: Fence
    admitting: bool
    route_entry: str | None


class SendPrompts(GroupEffect):
    """Send synthetic prompts (purpose `warm`), measure them. Answered by PromptsSent."""

    front: str
    plan: str
    fence: Fence
    prompts: Annotated[tuple[tuple[int, ...], ...], Field(min_length=1)]
    new_tokens: int
    limit_s: float


class WatchDrain(GroupEffect):
    """Ask for the engine's own count until it is zero. Answered by Drained, or NotDrained at the limit."""

    front: str
    fence: Fence
    limit_s: float


class StopRanks(GroupEffect):
    """End every process of a group: SIGTERM, after `grace_s` SIGKILL, then watch until all are gone.

    Answered by RanksGone, or RanksLinger at the limit. Ends the group's other tasks.
    """

    grace_s: float
    limit_s: float
