"""Drives the routing machine as the router service would, with a clock of its own and engines of paper."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flexpipe.events.catalog import parse
from flexpipe.events.message import Message
from flexpipe.events.route import BatchHandedOver, MoveSequences
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Entry,
    Input,
    Publish,
    Started,
    Watched,
    Woken,
)
from flexpipe.model.deployment import ModelFacts, ModelRef, Policy
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.plan import LayerRange, Plan, Stage
from flexpipe.model.route import PlanState, RoutedPlan, RouteEntry
from flexpipe.routing.effects import CountTokens, Cut, Dispatch
from flexpipe.routing.inputs import (
    AttemptFailed,
    FailureKind,
    FirstToken,
    RequestArrived,
    SequenceCut,
    SequenceEnded,
    TokenCount,
    TokensCounted,
)
from flexpipe.routing.machine import Routing

ROUTER = "router-1"
DEPLOYMENT = "chat"
FACTS = ModelFacts(
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    hidden=128,
    vocab=4096,
    context_tokens=8192,
    weights_bytes=1000,
    tied_embeddings=False,
    architecture="LlamaForCausalLM",
)
MODEL = ModelRef(name="toy", path="/models/toy", facts=FACTS)


def plan(*devices: str) -> Plan:
    """A TP plan over devices of node-a."""
    refs = tuple(DeviceRef(node="node-a", device=device) for device in devices)
    stage = Stage(layers=LayerRange(first=0, end=4), devices=refs, rank_bytes=1000)
    return Plan(model="toy", engine="emulated", stages=(stage,))


OLD = plan("cpu-0")
NEW = plan("cpu-1")


def routed(
    which: Plan, state: PlanState = PlanState.ACTIVE, admit: float = 1.0, port: int = 31000
) -> RoutedPlan:
    """A plan of the route entry; its front is told by its first device."""
    front = f"http://127.0.0.1:{port}"
    fence = Fence(deployment=DEPLOYMENT, term=1, shift=1, step=1)
    return RoutedPlan(plan=which, front=front, admit=admit, state=state, fence=fence)


def entry(
    *plans: RoutedPlan,
    shift: int = 1,
    term: int = 1,
    in_flight: int | None = None,
    policy: Policy | None = None,
    stopped: bool = False,
) -> RouteEntry:
    """A route entry of the deployment."""
    return RouteEntry(
        deployment=DEPLOYMENT,
        model=MODEL,
        policy=policy or Policy(),
        term=term,
        shift=shift,
        plans=plans,
        in_flight=in_flight,
        stopped=stopped,
    )


@dataclass
class Driver:
    """One machine, its time, and everything it was fed and asked for."""

    machine: Routing = field(default_factory=lambda: Routing(ROUTER, "http://r"))
    now_s: float = 1000.0
    fed: list[tuple[float, Input]] = field(default_factory=list)
    said: list[Effects] = field(default_factory=list)
    revision: int = 0
    arrivals: int = 0

    def feed(self, event: Input) -> tuple[Effect, ...]:
        """One input; what the machine asks for."""
        self.fed.append((self.now_s, event))
        effects = self.machine.handle(self.now_s, event)
        self.said.append(effects)
        return effects.do

    def start(self, *plans: RoutedPlan, **fields: object) -> tuple[Effect, ...]:
        """Come up with a route entry in the bucket."""
        self.revision += 1
        route = entry(*plans, **fields)  # type: ignore[arg-type]
        seat = Entry(bucket="roster", key=ROUTER, value="{}", revision=1)
        return self.feed(Started(entries=(_stored(route, self.revision), seat)))

    def route(self, *plans: RoutedPlan, **fields: object) -> tuple[Effect, ...]:
        """The watch shows the next revision."""
        self.revision += 1
        return self.feed(
            Watched(entry=_stored(entry(*plans, **fields), self.revision))  # type: ignore[arg-type]
        )

    def arrive(
        self,
        name: str | None = None,
        *,
        priority: int = 0,
        resumable: bool = True,
        prompt: int = 10,
        max_tokens: int = 100,
    ) -> tuple[str, tuple[Effect, ...]]:
        """A request; its id and what the machine asks for."""
        self.arrivals += 1
        key = name or f"s{self.arrivals:03d}"
        arrived = RequestArrived(
            sequence=key,
            deployment=DEPLOYMENT,
            prompt_tokens=prompt,
            max_tokens=max_tokens,
            resumable=resumable,
            reason=None if resumable else "tools",
            priority=priority,
        )
        return key, self.feed(arrived)

    def streaming(self, name: str | None = None, *, tokens: int = 5, **fields: object) -> str:
        """A request that has its first tokens."""
        key, do = self.arrive(name, **fields)  # type: ignore[arg-type]
        self.token(key, dispatches(do)[0].epoch, tokens)
        return key

    def token(
        self, key: str, epoch: int, tokens: int, pause_ms: float | None = None
    ) -> tuple[Effect, ...]:
        """The first token under an epoch."""
        return self.feed(FirstToken(sequence=key, epoch=epoch, tokens=tokens, pause_ms=pause_ms))

    def cut(self, key: str, epoch: int, tokens: int) -> tuple[Effect, ...]:
        """The engine let go."""
        return self.feed(SequenceCut(sequence=key, epoch=epoch, tokens=tokens))

    def fail(
        self, key: str, epoch: int, kind: FailureKind, tokens: int = 0, status: int | None = None
    ) -> tuple[Effect, ...]:
        """The attempt failed."""
        return self.feed(
            AttemptFailed(
                sequence=key, epoch=epoch, kind=kind, tokens=tokens, reason="why", status=status
            )
        )

    def end(self, key: str, finish: str = "stop", tokens: int = 10) -> tuple[Effect, ...]:
        """The sequence is over."""
        return self.feed(SequenceEnded(sequence=key, epoch=1, finish=finish, tokens=tokens))

    def move(
        self,
        step: int = 10,
        *,
        old: Iterable[Plan] = (OLD,),
        new: Iterable[Plan] = (NEW,),
        lost: Iterable[Plan] = (),
        forced: bool = False,
        finish_all: bool = False,
        revision: int | None = None,
        traceparent: str | None = None,
        message_id: str | None = None,
    ) -> tuple[Effect, ...]:
        """The executor's command."""
        order = MoveSequences(
            router=ROUTER,
            fence=Fence(deployment=DEPLOYMENT, term=1, shift=2, step=step),
            from_plans=tuple(each.id for each in old),
            to_plans=tuple(each.id for each in new),
            lost_plans=tuple(each.id for each in lost),
            finish_all=finish_all,
            forced=forced,
            route_revision=self.revision if revision is None else revision,
            limit_s=30,
        )
        return self.feed(
            Delivered(
                type="MoveSequences",
                message=order.canonical_json(),
                message_id=message_id or f"m{step}",
                traceparent=traceparent,
            )
        )

    def count(self, counts: dict[str, int]) -> tuple[Effect, ...]:
        """The answer to `CountTokens`."""
        told = tuple(TokenCount(sequence=key, tokens=value) for key, value in counts.items())
        return self.feed(TokensCounted(counts=told))

    def pass_time(self, seconds: float) -> tuple[Effect, ...]:
        """Let time go by, waking the machine whenever it asked for it."""
        until_s = self.now_s + seconds
        done: list[Effect] = []
        while True:
            wake_s = self.said[-1].wake_at_s
            if wake_s is None or wake_s > until_s:
                break
            self.now_s = max(self.now_s, wake_s)
            done.extend(self.feed(Woken()))
            assert len(self.said) < 10_000, "the machine wakes itself without end"
        self.now_s = until_s
        return tuple(done)


def _stored(route: RouteEntry, revision: int) -> Entry:
    return Entry(bucket="routes", key=DEPLOYMENT, value=route.canonical_json(), revision=revision)


def dispatches(do: Iterable[Effect]) -> list[Dispatch]:
    """Those of a list of effects."""
    return [each for each in do if isinstance(each, Dispatch)]


def cuts(do: Iterable[Effect]) -> list[Cut]:
    """Those of a list of effects."""
    return [each for each in do if isinstance(each, Cut)]


def counts(do: Iterable[Effect]) -> list[CountTokens]:
    """Those of a list of effects."""
    return [each for each in do if isinstance(each, CountTokens)]


def messages(do: Iterable[Effect], name: str | None = None) -> list[Message]:
    """What is published, of one class or any."""
    return [
        parse(each.type, each.message)
        for each in do
        if isinstance(each, Publish) and name in (None, each.type)
    ]


def handed(do: Iterable[Effect]) -> list[BatchHandedOver]:
    """Reports of a hand-over."""
    found = messages(do, "BatchHandedOver")
    return [each for each in found if isinstance(each, BatchHandedOver)]
