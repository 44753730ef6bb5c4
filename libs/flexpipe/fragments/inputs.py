"""What shells feed the machines of agent and monitor beside messages and buckets, and what they perform for them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexpipe.fragments.declared import NodeSpec
from flexpipe.kernel.machine import Effect, Input
from flexpipe.model.names import Name

NODES_BOUND = 1000
"""Nodes of one fleet: a revision is one atomic batch, and NATS takes at most a thousand messages in one."""


class NodesGiven(Input):
    """The agent's process is up and these are its nodes, as declared. Always fed before anything else."""

    nodes: Annotated[tuple[NodeSpec, ...], Field(min_length=1, max_length=NODES_BOUND)]


class Heard(Input):
    """Every sign of life since the last one of these. Fed by the monitor's service four times a second.

    Names and small numbers, because the journal holds each of these.
    """

    beats: dict[Name, tuple[int, int]] = {}  # of agents: node → (counter, how many ms ago)
    host_beats: tuple[Name, ...] = ()  # nodes whose workers beat
    answered: tuple[str, ...] = ()  # plans whose engines gave some router tokens
    echo_at_s: float | None = None  # when the newest round trip that came back had been sent


class Remark(Effect):
    """Something for the log of the service: an order that changed nothing, say."""

    text: str
