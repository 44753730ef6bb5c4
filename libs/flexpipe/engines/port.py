"""What FlexPipe asks of an engine. A new engine is one adapter and one line in `registry`.

An engine is a program. An adapter turns ranks of a plan into launch specs, purely; the program then speaks the HTTP
that `client` knows (SGLang's own), with the gate of `gate` in its front.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.deployment import EngineSettings, ModelRef
from flexpipe.model.fence import Fence
from flexpipe.model.plan import Plan


class RankGroup(Frozen):
    """The ranks of one plan on one node: what is launched together, as one process group."""

    plan: Plan
    fence: Fence
    model: ModelRef
    engine: EngineSettings
    node: str
    node_rank: Annotated[int, Field(ge=0)]  # index of this node in plan.nodes; 0 serves HTTP
    host: str  # address of the front and of the engine's own sockets on this node
    front_port: int  # the plan's block of ports starts here (PORTS_PER_PLAN of them)
    rendezvous: str  # host:port where ranks of several nodes meet
    cores: tuple[int, ...] = ()  # CPU cores of the local ranks in rank order; empty on GPUs
    gpu_uuids: tuple[str, ...] = ()  # GPUs of the local ranks in rank order; empty on CPUs

    @property
    def front(self) -> str:
        """Base URL of the plan's HTTP front; meaningful on node rank 0."""
        return f"http://{self.host}:{self.front_port}"


class LaunchSpec(Frozen):
    """How to start one rank group: an argument list (no shell) and environment variables to add."""

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    env: dict[str, str]
    front: str | None  # base URL to poll `/ready` on; None where this node serves no HTTP


class EngineAdapter(Protocol):
    """One engine."""

    @property
    def name(self) -> str:
        """What deployments call it (`engine.kind`)."""
        ...

    def launch(self, group: RankGroup) -> LaunchSpec:
        """The launch spec of one rank group. Raises InvalidInput where the engine cannot run this layout."""
        ...

    def check(self, plan: Plan, model: ModelRef) -> None:
        """Raises InvalidInput where the engine cannot run this plan of this model (a known fault, say)."""
        ...
