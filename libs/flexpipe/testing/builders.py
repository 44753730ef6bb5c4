"""Small values for tests and examples: nodes, a deployment, plans on named devices, gears, orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexpipe.events.shift import OrderShift
from flexpipe.kernel.ids import trace_id
from flexpipe.model.deployment import Deployment, EngineSettings, ModelFacts, ModelRef, Policy
from flexpipe.model.fleet import Device, DeviceRef, Node
from flexpipe.model.gear import Gear, PlanShare
from flexpipe.model.plan import LayerRange, Plan, Stage
from flexpipe.model.shift import ShiftOrder

GB: Final = 1_000_000_000
LAYERS: Final = 8
DEVICE_BYTES: Final = 10 * GB
MODEL_BYTES: Final = 4 * GB
"""Two copies of the model fit on one device, three do not."""

QUICK_POLICY: Final = Policy(
    engine_start_limit_s=20.0,
    canary_requests=4,
    canary_limit_s=6.0,
    canary_synthetic_after_s=1.0,
    freeze_ack_limit_s=1.0,
    hand_over_limit_s=4.0,
    retiring_limit_s=8.0,
    release_limit_s=3.0,
)
"""All limits short, so that a test in virtual time visits each of them within seconds."""


def a_node(
    name: str, devices: int = 3, *, memory_bytes: int = DEVICE_BYTES, port_blocks: int = 16
) -> Node:
    """A node with CPU slots `cpu0`, `cpu1`, …"""
    return Node(
        node=name,
        address="127.0.0.1",
        port_blocks=port_blocks,
        devices=tuple(
            Device(device=f"cpu{index}", kind="cpu", memory_bytes=memory_bytes, core=index)
            for index in range(devices)
        ),
    )


def a_deployment(name: str = "toy", policy: Policy = QUICK_POLICY) -> Deployment:
    """A deployment of a model of eight layers on emulated engines."""
    facts = ModelFacts(
        layers=LAYERS,
        heads=8,
        kv_heads=4,
        head_dim=8,
        hidden=64,
        vocab=512,
        context_tokens=2048,
        weights_bytes=MODEL_BYTES,
        tied_embeddings=False,
        architecture="LlamaForCausalLM",
    )
    return Deployment(
        name=name,
        model=ModelRef(name=name, path=f"/models/{name}", facts=facts),
        engine=EngineSettings(kind="emulated", form="emulated"),
        policy=policy,
    )


def device(text: str) -> DeviceRef:
    """`node/device` as a reference."""
    node, _, name = text.partition("/")
    return DeviceRef(node=node, device=name)


def a_plan(*devices: str, tp: int = 1, model: str = "toy", copy_bytes: int = MODEL_BYTES) -> Plan:
    """A plan over these devices in rank order: stages of `tp` devices, layers cut evenly."""
    refs = [device(text) for text in devices]
    stages = len(refs) // tp
    ends = [LAYERS * (index + 1) // stages for index in range(stages)]
    return Plan(
        model=model,
        engine="emulated",
        stages=tuple(
            Stage(
                layers=LayerRange(first=ends[index - 1] if index else 0, end=ends[index]),
                devices=tuple(refs[index * tp : (index + 1) * tp]),
                rank_bytes=copy_bytes // len(refs),
            )
            for index in range(stages)
        ),
    )


def a_gear(*plans: Plan, weights: Sequence[float] = ()) -> Gear:
    """A gear of these plans; weights are 1 where none are given."""
    given = weights or [1.0] * len(plans)
    shares = [PlanShare(plan=p, weight=w) for p, w in zip(plans, given, strict=True)]
    return Gear(shares=tuple(sorted(shares, key=lambda share: share.plan.id)))


def an_order_to(target: Gear, order_id: str, *, deployment: str = "toy", at_s: float) -> OrderShift:
    """An order as the command line sends it."""
    return OrderShift(
        order_id=order_id,
        order=ShiftOrder(
            deployment=deployment,
            target=target,
            trigger=f"a test wants {target.label}",
            by="test",
            ordered_at_s=at_s,
            trace_id=trace_id("order", deployment, order_id),
        ),
    )
