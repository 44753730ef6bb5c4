"""The models of the story on the fleet of the story, and a planner in virtual time: what tests of planning share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from flexpipe.bus.hearing import Hearing
from flexpipe.events import catalog
from flexpipe.events.fleet import DeviceChange, FleetChanged
from flexpipe.events.planning import Baseline, CandidatesProposed
from flexpipe.events.route import LoadObserved, PlanLoad
from flexpipe.gears.layout import build_plan
from flexpipe.kernel.ids import span_id, trace_id
from flexpipe.model.deployment import (
    Deployment,
    EngineSettings,
    ModelFacts,
    ModelRef,
    Policy,
    Slo,
)
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Block, Device, DeviceRef, Fleet, Node
from flexpipe.model.outlook import Load
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState, RoutedPlan, RouteEntry
from flexpipe.model.shift import DeviceReservations, Reservation
from flexpipe.planning import WATCHES, Planner
from flexpipe.planning.proposal import Look, View, look
from flexpipe.testing.fleets import twenty_seven, twenty_seven_spec, without
from flexpipe.testing.world import EPOCH_S, World

HEARS: Final = tuple(Hearing(said.message) for said in catalog.MESSAGES if "planner" in said.hears)
FLEET: Final = twenty_seven()


def _deployment(name: str, facts: ModelFacts, baseline: str) -> Deployment:
    return Deployment(
        name=name,
        model=ModelRef(name=name, path=f"/models/{name}", facts=facts),
        engine=EngineSettings(
            kind="emulated", form="emulated", dtype="bfloat16", memory_fraction=0.9
        ),
        slo=Slo(ttft_ms=2000, itl_ms=80),
        policy=Policy(),
        baseline=baseline,
    )


def _llama(layers: int, heads: int, kv_heads: int, hidden: int, weights_bytes: int) -> ModelFacts:
    return ModelFacts(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        hidden=hidden,
        vocab=32_000,
        context_tokens=4096,
        weights_bytes=weights_bytes,
        tied_embeddings=False,
        architecture="LlamaForCausalLM",
    )


LLAMA_7B: Final = _deployment("llama-7b", _llama(32, 32, 32, 4096, 13_476_000_000), "tp1")
LLAMA_70B: Final = _deployment("llama-70b", _llama(80, 64, 8, 8192, 137_953_000_000), "tp4")


def block(id_: str, fleet: Fleet = FLEET) -> Block:
    """A block of the fleet by its id."""
    return next(each for each in fleet.blocks if each.id == id_)


def plan_on(deployment: Deployment, *blocks: str, fleet: Fleet = FLEET) -> Plan:
    """A plan with one stage a block."""
    laid = [block(id_, fleet) for id_ in blocks]
    devices = tuple(ref for each in laid for ref in each.devices)
    return build_plan(deployment, tp=laid[0].size, pp=len(laid), devices=devices, fleet=fleet)


def entry_of(
    deployment: Deployment,
    *plans: Plan,
    states: Mapping[str, PlanState] | None = None,
    shift: int = 1,
    in_flight: int | None = None,
    stopped: bool = False,
) -> RouteEntry:
    """A route entry of these plans, active where `states` says nothing else."""
    fence = Fence(deployment=deployment.name, term=1, shift=shift, step=0)
    of = states or {}
    return RouteEntry(
        deployment=deployment.name,
        model=deployment.model,
        policy=deployment.policy,
        term=1,
        shift=shift,
        in_flight=in_flight,
        stopped=stopped,
        plans=tuple(
            RoutedPlan(
                plan=plan,
                front="http://10.0.0.1:31000",
                admit=0.0 if of.get(plan.id) in (PlanState.FROZEN, PlanState.RETIRING) else 1.0,
                state=of.get(plan.id, PlanState.ACTIVE),
                fence=fence,
            )
            for plan in plans
        ),
    )


def held_by(name: str, *plans: Plan) -> dict[DeviceRef, DeviceReservations]:
    """The reservations of plans, by device."""
    return {
        ref: DeviceReservations(
            device=ref,
            held=(Reservation(plan=plan.id, deployment=name, term=1, shift=1, bytes=bytes_),),
        )
        for plan in plans
        for ref, bytes_ in plan.claims()
    }


def busy(rate: float, *, queued: int = 0, window_s: float = 60.0) -> Load:
    """Requests of 500 prompt and 200 output tokens at that rate."""
    return Load(
        data="busy",
        window_s=window_s,
        arrived_per_s=rate,
        prompt_tokens=500,
        output_tokens=200,
        queued=queued,
    )


IDLE: Final = Load(data="idle", window_s=60.0)
SILENT: Final = Load(data="no-data", window_s=60.0)


def look_at(
    deployment: Deployment,
    load: Load,
    *plans: Plan,
    fleet: Fleet = FLEET,
    held: Mapping[DeviceRef, DeviceReservations] | None = None,
    long: Load | None = None,
    entry: RouteEntry | None = None,
) -> Look:
    """One look at a deployment that runs these plans; `held`: what others hold besides."""
    view = View(
        now_s=EPOCH_S,
        deployment=deployment,
        entry=entry or entry_of(deployment, *plans),
        fleet=fleet,
        short=load,
        long=long or load,
    )
    return look(view, {**(held or {}), **held_by(deployment.name, *plans)})


def changed(
    changes: Mapping[str, str | Device], fleet: Fleet = FLEET, *, revision: int = 2
) -> Fleet:
    """The fleet after devices `node/device` or whole nodes changed: to a state, or to the device given."""
    of_device: dict[DeviceRef, str | Device] = {}
    for what, change in changes.items():
        node, _, device = what.partition("/")
        for ref in fleet.refs():
            if ref.node == node and device in ("", ref.device):
                of_device[ref] = change
    after = without(fleet, twenty_seven_spec(), of_device)
    return Fleet(nodes=tuple(n.model_copy(update={"revision": revision}) for n in after.nodes))


def on_notice(node: str, leaves_at_s: float, fleet: Fleet = FLEET) -> Fleet:
    """The fleet with a node that will be taken."""
    found = fleet.node(node)
    assert found is not None
    sentence = "is to be preempted"
    changes: dict[str, str | Device] = {
        f"{node}/{device.device}": device.model_copy(
            update={"leaves_at_s": leaves_at_s, "closed": sentence}
        )
        for device in found.devices
    }
    return changed(changes, fleet)


def only(fleet: Fleet, *nodes: str) -> Fleet:
    """Some nodes of a fleet."""
    return Fleet(nodes=tuple(node for node in fleet.nodes if node.node in nodes))


def used_by(found: Look) -> set[str]:
    """Nodes that the best candidate uses."""
    return {node for plan in found.candidates[0].gear.plans for node in plan.nodes}


class Stand:
    """A planner on a world, and what others would say to it."""

    def __init__(self, *deployments: Deployment, fleet: Fleet = FLEET) -> None:
        self.world = World()
        for deployment in deployments:
            self.world.write("deployments", deployment.name, deployment.canonical_json())
        self.put_fleet(fleet)
        self.mounted = self.world.mount("planner", "planner", Planner, hears=HEARS, watches=WATCHES)

    def put_fleet(self, fleet: Fleet) -> None:
        """The monitor writes every node."""
        for node in fleet.nodes:
            self.put_node(node)

    def put_node(self, node: Node) -> None:
        """The monitor writes one node."""
        self.world.write("fleet", node.node, node.canonical_json())

    def run(self, deployment: Deployment, *plans: Plan, entry: RouteEntry | None = None) -> None:
        """The executor has put these plans in force."""
        for ref, held in held_by(deployment.name, *plans).items():
            self.world.write("reservations", ref.key, held.canonical_json())
        self.put_entry(entry or entry_of(deployment, *plans))

    def put_entry(self, entry: RouteEntry) -> None:
        """The executor writes a route entry."""
        self.world.write("routes", entry.deployment, entry.canonical_json())

    def release(self, *plans: Plan) -> None:
        """The executor releases what plans held."""
        for plan in plans:
            for ref in plan.devices:
                empty = DeviceReservations(device=ref)
                self.world.write("reservations", ref.key, empty.canonical_json())

    def report(self, deployment: Deployment, arrived: int, *, router: str = "router-1") -> None:
        """A router says what came within five seconds."""
        self.world.say(load_of(deployment, arrived, router=router), self.world.now_s)

    def reports(self, deployment: Deployment, arrived: int, seconds: float) -> None:
        """The same for a while."""
        for _ in range(int(seconds / 5)):
            self.report(deployment, arrived)
            self.world.run_for(5.0)

    def change_fleet(
        self,
        fleet: Fleet,
        sentence: str,
        *,
        urgent: bool = True,
        left: tuple[DeviceRef, ...] = (),
    ) -> FleetChanged:
        """The monitor writes a fleet and says so."""
        self.put_fleet(fleet)
        message = fleet_changed(
            fleet.revision, sentence, self.world.now_s, urgent=urgent, left=left
        )
        self.world.say(message)
        return message

    def proposals(self, deployment: Deployment | None = None) -> list[CandidatesProposed]:
        """What the planner said, oldest first."""
        said = self.world.post.of(CandidatesProposed)
        return [p for p in said if deployment is None or p.deployment == deployment.name]

    def baseline(self, deployment: Deployment) -> Baseline | None:
        """What is resolved for the hatch."""
        value = self.world.buckets.get("baselines", deployment.name).value
        return None if value is None else Baseline.model_validate_json(value)


def load_of(
    deployment: Deployment,
    arrived: int,
    *,
    router: str = "router-1",
    finished: int | None = None,
    window_s: float = 5.0,
    plans: Iterable[PlanLoad] | None = None,
    queued: int = 0,
    ttft_p95_ms: float | None = None,
) -> LoadObserved:
    """A report of requests of 500 prompt and 200 output tokens."""
    done = arrived if finished is None else finished
    one = PlanLoad(plan="p-one", running=0, finished=done, failed=0, output_tokens=200 * done)
    return LoadObserved(
        router=router,
        deployment=deployment.name,
        window_s=window_s,
        arrived=arrived,
        queued=queued,
        parked=0,
        prompt_tokens=500 * arrived,
        ttft_p95_ms=ttft_p95_ms,
        plans=tuple(plans) if plans is not None else (one,),
    )


def fleet_changed(
    revision: int,
    sentence: str,
    at_s: float,
    *,
    urgent: bool = True,
    left: tuple[DeviceRef, ...] = (),
) -> FleetChanged:
    """What the monitor says of a revision."""
    return FleetChanged(
        revision=revision,
        changes=tuple(DeviceChange(device=ref, what="left") for ref in left),
        sentence=sentence,
        urgent=urgent,
        at_s=at_s,
        seen_s=at_s - 0.5,
        trace_id=trace_id("fleet", revision),
        span_id=span_id("fleet", revision),
    )
