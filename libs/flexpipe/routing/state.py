"""What the routing machine knows, as plain data, and the turn in which it changes.

Only `flexpipe.routing.machine` and the modules it calls touch it. Mappings are walked in sorted order (sequences: in
order of arrival), so that a restored machine acts like the one that was saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.kernel.machine import Effect
from flexpipe.model.deployment import Deployment, Policy
from flexpipe.model.fence import Fence
from flexpipe.model.route import RouteEntry
from flexpipe.model.sequence import MovedSequence, Verdict
from flexpipe.routing.ledger import MoveCause
from flexpipe.routing.picking import PickMemory
from flexpipe.routing.places import Places

LOAD_EVERY_S: Final = 5.0
"""The load window: short enough for a planner's cycle of 15 s, long enough to hold a few requests. A router whose
deployments run at a time scale is told of a shorter one (`ReportsPaced`)."""


class Stage(StrEnum):
    """Where a sequence is."""

    PARKED = "parked"  # waits here for a plan
    DISPATCHED = "dispatched"  # at an engine, no token under this epoch yet
    STREAMING = "streaming"
    CUTTING = "cutting"  # its engine was told to let go
    ENDING = "ending"  # refused or failed; the service is closing it


Judged = tuple[Verdict, str, MoveCause]
"""A verdict, its reason, and why the plan is left."""

AT_ENGINE = (Stage.DISPATCHED, Stage.STREAMING, Stage.CUTTING)


@dataclass(slots=True)
class Move:
    """A hand-over that one sequence is going through."""

    verdict: Verdict
    reason: str
    from_plan: str
    cause: MoveCause
    asked_at_s: float
    tokens: int
    traceparent: str | None


@dataclass(slots=True)
class SequenceState:
    """One sequence. `epoch` 0: never dispatched. `order` counts arrivals."""

    id: str
    deployment: str
    prompt_tokens: int
    max_tokens: int
    resumable: bool
    reason: str | None
    priority: int
    order: int
    arrived_at_s: float
    stage: Stage = Stage.PARKED
    plan: str | None = None
    epoch: int = 0
    tokens: int = 0
    counted_at_s: float = 0.0
    dispatched_at_s: float = 0.0
    moves: int = 0
    failures: int = 0
    waiting_since_s: float | None = (
        None  # since when no engine gives it tokens; None while one does
    )
    cut_at_s: float | None = None
    ttft_ms: float | None = None
    cause: MoveCause = MoveCause.CHOSEN
    shunned: dict[str, float] = field(default_factory=dict)  # plan -> until when
    move: Move | None = None
    begun: bool = False  # its client has content

    @property
    def runs(self) -> bool:
        """Whether an engine has it."""
        return self.stage in AT_ENGINE


class HandOverPhase(StrEnum):
    """How far a `MoveSequences` is."""

    AWAITING_ROUTE = "awaiting-route"
    COUNTING = "counting"
    MOVING = "moving"
    DONE = "done"


@dataclass(slots=True)
class HandOver:
    """The newest `MoveSequences` of a deployment and what became of it."""

    fence: Fence
    from_plans: tuple[str, ...]
    to_plans: tuple[str, ...]
    lost_plans: tuple[str, ...]
    finish_all: bool
    forced: bool
    route_revision: int
    traceparent: str | None
    phase: HandOverPhase = HandOverPhase.AWAITING_ROUTE
    counting_until_s: float = 0.0
    verdicts: dict[str, Judged] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)  # still to be cut, in order
    batch: dict[str, None] = field(default_factory=dict)  # being cut or on their way
    staying: list[str] = field(default_factory=list)
    unreported: dict[str, MovedSequence] = field(default_factory=dict)  # told in order of their ids
    unreported_since_s: float | None = None
    reports: int = 0
    repeats: int = 0
    answer: str | None = None  # the last report, as JSON

    @property
    def source_plans(self) -> tuple[str, ...]:
        """Every plan whose sequences are to leave."""
        return tuple(sorted({*self.from_plans, *self.lost_plans}))

    @property
    def is_done(self) -> bool:
        """Whether its last report was made."""
        return self.phase is HandOverPhase.DONE

    @property
    def remaining(self) -> int:
        """Sequences that are not handed over yet."""
        return len(self.queue) + len(self.batch)


@dataclass(slots=True)
class PlanHealth:
    """What this router saw of a plan. `dead_since_s` keeps new requests away until it is seen alive."""

    errors_in_a_row: int = 0
    dead_since_s: float | None = None
    probe_at_s: float = 0.0
    refused_until_s: float = 0.0  # its gate said no; the entry that explains it is on its way


@dataclass(slots=True)
class CanaryCount:
    """Requests and errors of a plan while it is a canary, and its latencies. Samples are bounded."""

    requests: int = 0
    errors: int = 0
    reason: str | None = None
    ttft_ms: list[float] = field(default_factory=list)  # from the dispatch to it
    itl_ms: list[float] = field(default_factory=list)
    itl_told: int = 0  # samples that were there when it was last told of
    told_at_s: float = 0.0


@dataclass(slots=True)
class PlanWindow:
    """One plan over the present load window. Samples are bounded."""

    finished: int = 0
    failed: int = 0
    output_tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class DeploymentState:
    """One deployment: its route entry, its declaration, its hand-over and its health."""

    name: str
    entry: RouteEntry | None = None
    revision: int = 0
    learned: bool = False  # the entry came from a gate and is newer than the newest watched one
    declared: Deployment | None = None
    picks: PickMemory = field(default_factory=PickMemory)
    health: dict[str, PlanHealth] = field(default_factory=dict)
    highest: Fence | None = None
    hand_over: HandOver | None = None
    cuts_due_s: float | None = None  # no cut reaches its limit before
    gone_at_s: float | None = None  # when sequences leave plans that the entry does not have
    canaries: dict[str, CanaryCount] = field(default_factory=dict)
    arrived: int = 0
    arrived_tokens: int = 0  # of their prompts
    window: dict[str, PlanWindow] = field(default_factory=dict)
    window_since_s: float = 0.0
    closed_tokens: float = 0.0  # allowance of `SequenceClosed` reports
    closed_at_s: float = 0.0

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        if self.entry is not None:
            return self.entry.policy
        return self.declared.policy if self.declared is not None else Policy()


@dataclass(slots=True)
class State:
    """All of it."""

    router: str
    url: str
    life: str = ""  # tells the reports of this process from those of the one before
    since_s: float = 0.0
    stopping: bool = False
    arrivals: int = 0
    roster_writes: int = 0
    deployments: dict[str, DeploymentState] = field(default_factory=dict)
    sequences: dict[str, SequenceState] = field(default_factory=dict)
    load_every_s: float = LOAD_EVERY_S
    load_at_s: float | None = None
    load_asked_at_s: float | None = None
    served: str = ""  # the last `ServeModels`, as JSON

    def of(self, deployment: str) -> tuple[SequenceState, ...]:
        """The sequences of a deployment, in order of arrival: the mapping keeps it (see `in_order_of_arrival`)."""
        return tuple(each for each in self.sequences.values() if each.deployment == deployment)

    def in_order_of_arrival(self) -> None:
        """Put the sequences back in their order: a snapshot sorts keys by name."""
        arrived = sorted(self.sequences.values(), key=lambda each: each.order)
        self.sequences = {each.id: each for each in arrived}


@dataclass(slots=True)
class Turn:
    """One call of `handle`: the state, its index, the time, and the effects asked for so far."""

    state: State
    places: Places
    now_s: float
    do: list[Effect] = field(default_factory=list)

    def ask(self, effect: Effect) -> None:
        """Ask for an effect, after those asked for before."""
        self.do.append(effect)

    def say(self, message: Message, *cause: object, traceparent: str | None = None) -> None:
        """Publish a message; its id derives from the router's life and the cause."""
        state = self.state
        self.ask(publish(message, state.router, state.life, *cause, traceparent=traceparent))

    def place(self, sequence: SequenceState, stage: Stage, plan: str | None = None) -> None:
        """A sequence changes its stage; `plan` is where it is dispatched to, else it keeps its own (parked: none)."""
        self.places.leave(sequence)
        sequence.stage = stage
        if plan is not None or stage is Stage.PARKED:
            sequence.plan = plan
        self.places.enter(sequence)

    def add(self, sequence: SequenceState) -> None:
        """A sequence arrives."""
        self.state.sequences[sequence.id] = sequence
        self.places.enter(sequence)

    def remove(self, sequence: SequenceState) -> None:
        """A sequence is over."""
        del self.state.sequences[sequence.id]
        self.places.leave(sequence)

    def deployment(self, name: str) -> DeploymentState:
        """The deployment's state, made when it is first heard of."""
        return self.state.deployments.setdefault(
            name, DeploymentState(name=name, window_since_s=self.now_s)
        )
