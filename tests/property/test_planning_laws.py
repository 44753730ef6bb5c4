"""Laws of the planner: candidates fit and stand on whole free blocks of a class that carries them, whatever the fleet
looks like; equal input gives equal output, whatever the hash seed and the order in which independent parties are heard.
"""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexpipe.bus.journal import Begin, Fed, effects_digest, effects_text
from flexpipe.bus.replay import replay
from flexpipe.events.planning import CANDIDATES_LIMIT, CandidatesProposed
from flexpipe.kernel.machine import (
    Delivered,
    Effects,
    Entry,
    Input,
    Publish,
    Started,
    Watched,
    Woken,
)
from flexpipe.model.deployment import Deployment, ModelFacts
from flexpipe.model.fleet import Device, DeviceRef, Fleet
from flexpipe.model.outlook import Load
from flexpipe.model.plan import Plan
from flexpipe.model.shift import DeviceReservations, Reservation
from flexpipe.performance.devices import device_facts
from flexpipe.planning import Planner
from flexpipe.planning.layouts import PP_LIMIT
from flexpipe.planning.mixing import PLANS_LIMIT
from flexpipe.planning.planner import FIRST_LOOK_S
from flexpipe.planning.proposal import Look
from flexpipe.planning.ranking import SHOWN_LIMIT
from flexpipe.testing.fleets import twenty_seven_spec, without
from flexpipe.testing.world import EPOCH_S
from unit.planning.bench import (
    FLEET,
    LLAMA_7B,
    LLAMA_70B,
    Stand,
    busy,
    changed,
    entry_of,
    load_of,
    look_at,
    on_notice,
    plan_on,
)

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
REFS = FLEET.refs()

# -- what may be there ------------------------------------------------------------------------------


def _device(ref: DeviceRef) -> Device:
    found = FLEET.device(ref)
    assert found is not None
    return found


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """The fleet of the story after anything happened to any of its devices."""
    fates = ("preempted", "failed", "notice", "tenant", "slow")
    hit = draw(st.dictionaries(st.sampled_from(REFS), st.sampled_from(fates), max_size=16))
    altered: dict[DeviceRef, str | Device] = {}
    for ref, fate in hit.items():
        match fate:
            case "preempted" | "failed":
                altered[ref] = fate
            case "notice":
                leaves = {"leaves_at_s": EPOCH_S + 60, "closed": "is to be preempted"}
                altered[ref] = _device(ref).model_copy(update=leaves)
            case "tenant":
                taken = {"tenant": "batch", "closed": "reserved by batch"}
                altered[ref] = _device(ref).model_copy(update=taken)
            case _:
                factor = draw(st.sampled_from((0.3, 0.6, 0.9)))
                altered[ref] = _device(ref).model_copy(update={"link_factor": factor})
    return without(FLEET, twenty_seven_spec(), altered)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """A model of any sensible shape."""
    heads = draw(st.sampled_from((8, 12, 14, 32, 40, 64)))
    kv_heads = draw(st.sampled_from([n for n in (1, 2, 4, 7, 8, heads) if heads % n == 0]))
    facts = ModelFacts(
        layers=draw(st.integers(1, 96)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        hidden=heads * 128,
        vocab=32_000,
        context_tokens=4096,
        weights_bytes=draw(st.integers(1, 400)) * 1_000_000_000,
        tied_embeddings=draw(st.booleans()),
        architecture="LlamaForCausalLM",
    )
    fraction = draw(st.sampled_from((None, 0.5, 0.9)))
    return LLAMA_7B.model_copy(
        update={
            "model": LLAMA_7B.model.model_copy(update={"facts": facts}),
            "engine": LLAMA_7B.engine.model_copy(update={"memory_fraction": fraction}),
        }
    )


LOADS = st.one_of(
    st.just(Load(data="no-data", window_s=60.0)),
    st.just(Load(data="idle", window_s=60.0)),
    st.builds(busy, st.floats(0.01, 500), queued=st.integers(0, 1000)),
)


@st.composite
def holdings(draw: st.DrawFn) -> dict[DeviceRef, DeviceReservations]:
    """What others hold."""
    held = Reservation(plan="p-other", deployment="other", term=1, shift=1, bytes=1_000_000_000)
    refs = draw(st.lists(st.sampled_from(REFS), max_size=10, unique=True))
    return {ref: DeviceReservations(device=ref, held=(held,)) for ref in refs}


# -- the laws ---------------------------------------------------------------------------------------


def started(found: Look) -> list[Plan]:
    return [
        plan
        for candidate in found.candidates
        for plan in candidate.gear.plans
        if plan.id in candidate.starts
    ]


def lies_on_whole_blocks(plan: Plan, fleet: Fleet) -> bool:
    """Each stage is one block of the fleet, of a class that carries its width."""
    for stage in plan.stages:
        under = [block for block in fleet.blocks if block.devices == stage.devices]
        if not any(block.carries_tp(stage.tp) and block.size == stage.tp for block in under):
            return False
    return True


@QUICK
@given(deployment=deployments(), fleet=fleets(), load=LOADS, held=holdings())
def test_what_is_to_be_started_fits_on_whole_free_blocks_that_carry_it(
    deployment: Deployment,
    fleet: Fleet,
    load: Load,
    held: dict[DeviceRef, DeviceReservations],
) -> None:
    found = look_at(deployment, load, fleet=fleet, held=held)
    facts = deployment.model.facts
    assert facts is not None
    for plan in started(found):
        assert plan.stages[-1].layers.end == facts.layers
        assert plan.pp <= PP_LIMIT
        assert {stage.tp for stage in plan.stages} == {plan.tp}
        assert facts.heads % plan.tp == 0
        assert facts.kv_heads % plan.tp == 0 or plan.tp % facts.kv_heads == 0
        assert lies_on_whole_blocks(plan, fleet)
        assert plan.is_even_over_nodes
        for ref, bytes_ in plan.claims():
            device = fleet.device(ref)
            assert device is not None
            assert fleet.closed(ref) is None
            assert ref not in held
            assert bytes_ <= device.memory_bytes
        for stage in plan.stages:
            assert {fleet.device(ref).model for ref in stage.devices} == {stage.device_model}  # type: ignore[union-attr]
        strengths = [device_facts(stage.device_model).hbm_gb_s for stage in plan.stages]
        assert strengths == sorted(strengths, reverse=True)
    for candidate in found.candidates:
        used = [ref for plan in candidate.gear.plans for ref in plan.devices]
        assert len(used) == len(set(used))
        assert len(candidate.gear.shares) <= PLANS_LIMIT
    assert len(found.candidates) <= min(SHOWN_LIMIT, CANDIDATES_LIMIT)
    assert len({candidate.gear.id for candidate in found.candidates}) == len(found.candidates)
    assert found.candidates or found.nowhere


RUNNING = (plan_on(LLAMA_7B, "a.1-0"), plan_on(LLAMA_7B, "b1"), plan_on(LLAMA_7B, "c1.1-0"))


@QUICK
@given(fleet=fleets(), load=LOADS, count=st.integers(1, 3))
def test_kept_plans_are_those_that_live_and_shrinking_is_never_silent(
    fleet: Fleet, load: Load, count: int
) -> None:
    running = RUNNING[:count]
    found = look_at(LLAMA_7B, load, *running, fleet=fleet)
    now = {plan.id for plan in running}
    alive = {p.id for p in running if all(fleet.device(ref) is not None for ref in p.devices)}
    assert {plan.plan for plan in found.current.outlook.plans} == alive
    for candidate in found.candidates:
        ids = {plan.id for plan in candidate.gear.plans}
        assert set(candidate.starts) == ids - now
        assert ids & now <= alive
        assert ids != alive, "the gear in force is no candidate"
        assert 0 <= candidate.stays_s <= LLAMA_7B.policy.horizon_s
    if load.data == "no-data" and alive == now and not _leaving(running, fleet):
        rate = found.current.outlook.good_requests_per_s
        assert all(c.outlook.good_requests_per_s >= 0.9 * rate for c in found.candidates)


def _leaving(plans: tuple[Plan, ...], fleet: Fleet) -> bool:
    devices = [fleet.device(ref) for plan in plans for ref in plan.devices]
    return any(device is not None and device.leaves_at_s is not None for device in devices)


# -- the same input, the same output ----------------------------------------------------------------


def watched(bucket: str, key: str, value: str, revision: int) -> Watched:
    return Watched(entry=Entry(bucket=bucket, key=key, value=value, revision=revision))


def told(machine: Planner, events: list[Input]) -> list[str]:
    """Proposals and baselines after all of this was heard in one moment."""
    machine.handle(EPOCH_S, Started(entries=()))
    for event in events:
        machine.handle(EPOCH_S, event)
    effects = machine.handle(EPOCH_S + FIRST_LOOK_S, Woken())
    return [each.canonical_json() for each in effects.do]


def a_moment() -> list[Input]:
    """Independent parties: nodes, routers, deployments and their entries."""
    fleet = on_notice("a2", EPOCH_S + 60)
    events: list[Input] = [
        watched("fleet", node.node, node.canonical_json(), 10 + n)
        for n, node in enumerate(fleet.nodes)
    ]
    running = {LLAMA_70B: plan_on(LLAMA_70B, "a.8-0"), LLAMA_7B: plan_on(LLAMA_7B, "b.1-8")}
    for n, (deployment, plan) in enumerate(running.items()):
        name = deployment.name
        events.append(watched("deployments", name, deployment.canonical_json(), 1 + n))
        events.append(watched("routes", name, entry_of(deployment, plan).canonical_json(), 1 + n))
    return events


def reports() -> list[Input]:
    events: list[Input] = []
    for router in ("r1", "r2", "r3"):
        for ago_s in (1.0, 6.0, 11.0):
            for deployment in (LLAMA_70B, LLAMA_7B):
                arrived = int(ago_s) * 7 + len(router)
                message = load_of(deployment, arrived, router=router, ttft_p95_ms=ago_s * 1.1)
                event = Delivered(
                    type="LoadObserved",
                    message=message.canonical_json(),
                    message_id=f"{router} {ago_s} {deployment.name}",
                    sent_at_s=EPOCH_S - ago_s,
                )
                events.append(event)
    return events


EXPECTED = told(Planner(), a_moment() + reports())


@settings(QUICK, max_examples=12)
@given(nodes=st.permutations(a_moment()), loads=st.permutations(reports()))
def test_the_order_in_which_independent_parties_are_heard_does_not_matter(
    nodes: list[Input], loads: list[Input]
) -> None:
    assert told(Planner(), nodes + loads) == EXPECTED
    proposals = [text for text in EXPECTED if "CandidatesProposed" in text]
    assert len(proposals) == 2


TELL = """
import sys
from flexpipe.bus.journal import parse_line, effects_text
from flexpipe.bus.replay import replay
from flexpipe.planning import Planner
lines = sys.stdin.read().splitlines()
machine = Planner()
for line in lines[1:]:
    fed = parse_line(line)
    print(effects_text(machine.handle(fed.now_s, fed.event())))
print(replay(lines, Planner).differing)
print(machine.snapshot())
"""


def a_life() -> list[tuple[float, Input, Effects]]:
    """Some minutes of a planner: load, a notice, a loss, a recovery."""
    stand = Stand(LLAMA_7B, LLAMA_70B)
    big, small = plan_on(LLAMA_70B, "a.8-0"), plan_on(LLAMA_7B, "b.1-8")
    stand.run(LLAMA_70B, big)
    stand.run(LLAMA_7B, small)
    for arrived in (0, 20, 200):
        stand.report(LLAMA_7B, arrived)
        stand.report(LLAMA_70B, arrived, router="router-2")
        stand.world.run_for(5.0)
    stand.change_fleet(on_notice("a2", stand.world.now_s + 60), "a2 is to be preempted")
    stand.world.run_for(5.0)
    stand.change_fleet(changed({"a2": "preempted", "b3": "failed"}, revision=3), "a2 is gone")
    stand.put_entry(entry_of(LLAMA_7B))
    stand.world.run_for(20.0)
    machine = Planner()
    lines = stand.mounted.lives[-1]
    return [(line.now_s, line.event, machine.handle(line.now_s, line.event)) for line in lines]


def journal_of(life: list[tuple[float, Input, Effects]]) -> list[str]:
    lines = [Begin(run="r", service="planner", name="planner", now_s=0.0).canonical_json()]
    for n, (now_s, event, effects) in enumerate(life, start=1):
        fed = Fed(
            run="r",
            n=n,
            now_s=now_s,
            kind=type(event).__name__,
            input=event.model_dump(mode="json"),
            effects=effects_digest(effects),
        )
        lines.append(fed.canonical_json())
    return lines


def told_under(seed: str, lines: list[str]) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", TELL],
        input="\n".join(lines),
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.splitlines()


def test_a_planner_says_the_same_under_two_hash_seeds() -> None:
    life = a_life()
    lines = journal_of(life)
    said = [
        effect
        for _, _, effects in life
        for effect in effects.do
        if isinstance(effect, Publish) and effect.type == CandidatesProposed.__name__
    ]
    assert len(said) >= 6
    assert replay(lines, Planner).differing == ()
    one, two = told_under("1", lines), told_under("2", lines)
    assert one == two
    assert one[:-2] == [effects_text(effects) for _, _, effects in life]
    assert one[-2] == "()"
