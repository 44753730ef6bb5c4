"""The loop in virtual time: real planner, estimator and executor on the fleet of 27, traffic as a rate that one router
reports every five seconds. Engines take what they are predicted to take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from flexpipe.bus.hearing import Hearing
from flexpipe.costing.books import BUCKETS
from flexpipe.costing.estimator import Estimator
from flexpipe.events import catalog
from flexpipe.events.hatch import DownshiftDeployment
from flexpipe.events.planning import ShiftDeclined
from flexpipe.events.route import LoadObserved, PlanLoad
from flexpipe.events.shift import OrderShift, ShiftCompleted
from flexpipe.gears.layout import build_plan
from flexpipe.model.deployment import (
    Deployment,
    EngineSettings,
    ModelFacts,
    ModelRef,
    Policy,
    Slo,
)
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.gear import Gear
from flexpipe.model.outlook import Load
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState
from flexpipe.performance.outlook import balanced_gear, gear_outlook
from flexpipe.performance.starting import start_s
from flexpipe.planning import Planner
from flexpipe.testing.fleets import twenty_seven
from flexpipe.testing.harness import ShiftWorld

REPORT_S: Final = 5.0
QUEUE_DRAIN: Final = 1.1
"""A gear can deliver somewhat more than it can deliver in time: so queues empty."""
PROMPT_TOKENS: Final = 512
OUTPUT_TOKENS: Final = 256
LLAMA_2_7B: Final = ModelFacts(
    layers=32,
    heads=32,
    kv_heads=32,
    head_dim=128,
    hidden=4096,
    vocab=32_000,
    context_tokens=4096,
    weights_bytes=13_476_839_424,
    tied_embeddings=False,
    architecture="LlamaForCausalLM",
)
CHAT: Final = Deployment(
    name="chat",
    model=ModelRef(name="llama-2-7b", path="/models/llama-2-7b", facts=LLAMA_2_7B),
    engine=EngineSettings(
        kind="emulated",
        form="emulated",
        dtype="bfloat16",
        memory_fraction=0.9,
        performance="roofline",
    ),
    slo=Slo(ttft_ms=1000.0, itl_ms=50.0),
    policy=Policy(),
)
FLEET: Final = twenty_seven()
SMALL_FLEET: Final = Fleet(nodes=tuple(node for node in FLEET.nodes if node.node in ("b1", "b3")))
"""Five A100: enough to grow and to replace, and a tenth of the work for the planner."""

Rate = Callable[[float], float]
"""Seconds since the start → requests a second."""


def a_plan_on(*devices: str) -> Plan:
    """A plan of the 7B over these devices, as wide as they are many."""
    refs = [DeviceRef(node=node, device=device) for node, device in map(_split, devices)]
    return build_plan(CHAT, tp=len(refs), pp=1, devices=refs, fleet=FLEET)


def holds_up_to(gear: Gear) -> float:
    """Requests a second at which a gear holds the SLO."""
    return gear_outlook(gear, CHAT, a_load(1.0)).good_requests_per_s


def a_load(arrived_per_s: float, *, window_s: float = 60.0, queued: int = 0) -> Load:
    """Traffic of the usual shape."""
    return Load(
        data="busy",
        window_s=window_s,
        arrived_per_s=arrived_per_s,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        queued=queued,
    )


class Loop(ShiftWorld):
    """The 7B on one gear, the loop running, no traffic yet."""

    def __init__(
        self,
        plans: Iterable[Plan],
        *,
        policy: Policy | None = None,
        fleet: Fleet = SMALL_FLEET,
    ) -> None:
        self.deployment = CHAT.model_copy(update={"policy": policy or CHAT.policy})
        super().__init__(nodes=fleet.nodes, deployments=(self.deployment,))
        plans = tuple(plans)
        for worker in self.workers.values():
            worker.delays.start_s = start_s(plans[0], self.deployment)
        self.first = balanced_gear(plans, self.deployment, a_load(1.0))
        record = self.shift(self.first, "chat")
        assert record.outcome == "completed", record.reason
        self._owed = 0.0
        self._waiting = 0.0
        self._start_s = self.world.now_s
        self.planner = self.world.mount(
            "planner",
            "planner",
            Planner,
            hears=_heard_by("planner"),
            watches=_read_by("planner"),
        )
        self.estimator = self.world.mount(
            "estimator", "estimator", Estimator, hears=_heard_by("estimator"), watches=BUCKETS
        )

    @property
    def seconds(self) -> float:
        """Since the loop began."""
        return self.world.now_s - self._start_s

    def traffic(self, rate: Rate, seconds: float) -> None:
        """Let this much time pass under a rate of arrivals."""
        end_s = self.world.now_s + seconds
        while self.world.now_s < end_s:
            self.world.run_for(REPORT_S)
            self._report(rate(self.seconds))

    def traffic_until(self, condition: Callable[[], object], rate: Rate, limit_s: float) -> None:
        """Let time pass under a rate until a condition holds, looked at once a second."""
        until_s = self.world.now_s + limit_s
        while not condition():
            assert self.world.now_s < until_s, f"the condition does not hold within {limit_s:g} s"
            self.world.run_for(1.0)
            if int(self.seconds) % int(REPORT_S) == 0:
                self._report(rate(self.seconds))

    def pin(self) -> None:
        """`flexpipe downshift`, to the gear in force."""
        self.world.say(DownshiftDeployment(deployment="chat", by="a test"))
        self.world.run_until(lambda: (entry := self.entry("chat")) and entry.pin, 60.0)

    def ordered(self) -> tuple[OrderShift, ...]:
        """What the estimator ordered."""
        return tuple(o for o in self.world.post.of(OrderShift) if o.order.by == "estimator")

    def completed(self) -> int:
        """Shifts that were committed since the first start."""
        return len(self.world.post.of(ShiftCompleted)) - 1

    def guards(self) -> set[str]:
        """Who declined so far."""
        return {said.guard for said in self.world.post.of(ShiftDeclined)}

    def in_force(self) -> Gear:
        """The gear that serves."""
        entry = self.entry("chat")
        assert entry is not None
        plans = [routed.plan for routed in entry.in_state(PlanState.ACTIVE)]
        return balanced_gear(plans, self.deployment, a_load(1.0))

    def _report(self, rate: float) -> None:
        """What came in the last five seconds; what the gear in force cannot carry waits."""
        self._owed += rate * REPORT_S
        arrived = int(self._owed)
        self._owed -= arrived
        gear = self.in_force()
        most = QUEUE_DRAIN * holds_up_to(gear) * REPORT_S if gear.plans else 0.0
        carried = min(self._waiting + arrived, most)
        self._waiting += arrived - carried
        finished = int(carried)
        said = LoadObserved(
            router="router-0",
            deployment="chat",
            window_s=REPORT_S,
            arrived=arrived,
            queued=int(self._waiting),
            parked=0,
            prompt_tokens=arrived * PROMPT_TOKENS,
            plans=(
                PlanLoad(
                    plan=self.first.plans[0].id,
                    running=finished,
                    finished=finished,
                    failed=0,
                    output_tokens=finished * OUTPUT_TOKENS,
                ),
            ),
        )
        self.world.say(said, self.world.now_s)


def _heard_by(service: str) -> tuple[Hearing, ...]:
    return tuple(Hearing(said.message) for said in catalog.MESSAGES if service in said.hears)


def _read_by(service: str) -> tuple[str, ...]:
    """The buckets that a service may read, snapshots apart."""
    buckets = (b for b in catalog.BUCKETS if service in b.readers and b.name != "snapshots")
    return tuple(bucket.name for bucket in buckets)


def _split(text: str) -> tuple[str, str]:
    node, _, device = text.partition("/")
    return node, device
