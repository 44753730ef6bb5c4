"""What the worker's shell tells its brain, beside commands from the bus."""

from __future__ import annotations

from flexpipe.hosting.memory import HostingLimits
from flexpipe.kernel.machine import Input
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Node


class Opened(Input):
    """A new worker process is up and no engine process of an earlier one is left. Fed once, first.

    `node` is this node as configured, with every device. `memory` is what the last `Keep` wrote, None where there
    is nothing.
    """

    node: Node
    limits: HostingLimits = HostingLimits()
    memory: str | None = None


class Closing(Input):
    """The worker is being stopped: its engines end with it."""


class GroupInput(Input):
    """What all reports about one rank group share. One that names a group not hosted is ignored."""

    group: str


class RanksUp(GroupInput):
    """The processes of a group were started; `pid` leads them."""

    pid: int


class LaunchFailed(GroupInput):
    """Nothing was started: the engine cannot run this, a port is in use, a program is missing."""

    reason: str


class RanksExited(GroupInput):
    """A group's leader is gone. Other processes of the group may still be there."""

    reason: str
    log_tail: str


class RanksGone(GroupInput):
    """No process of the group is left, so its memory is free."""


class RanksLinger(GroupInput):
    """Processes of the group are still there at the limit."""

    pids: tuple[int, ...]


class FrontReady(GroupInput):
    """The front answered ready."""


class FrontSilent(GroupInput):
    """The front was not ready within the limit of the start."""

    waited_s: float
    log_tail: str


class GateSet(GroupInput):
    """The gate took the state asked for under this fence."""

    fence: Fence


class GateNotSet(GroupInput):
    """The gate did not take it."""

    fence: Fence
    reason: str


class PromptsSent(GroupInput):
    """Outcome of synthetic prompts; medians are None where no prompt came that far."""

    fence: Fence
    requests: int
    errors: int
    reason: str | None
    ttft_p50_ms: float | None
    itl_p50_ms: float | None


class Drained(GroupInput):
    """The engine's own count of requests is zero."""

    fence: Fence


class NotDrained(GroupInput):
    """The engine's own count did not come to zero within the limit."""

    fence: Fence
    reason: str
