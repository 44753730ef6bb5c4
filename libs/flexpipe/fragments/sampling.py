"""The agent's machine: what is on its nodes, told as full samples and deltas. For declared (emulated) fleets.

Fed with `NodesGiven`, orders that alter a node, and the monitor's requests for the full picture. What was altered
outlives a restart: it is in the snapshot, and notices of preemption are absolute times. It never judges who is alive,
and `closed` of a device is not its to say.

A node that failed as a whole says nothing and does not beat: only `restore` reaches it. When a notice runs out, the
worker of the node is told that the device is gone, as hardware would tell it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from flexpipe.events.catalog import parse
from flexpipe.events.fleet import AlterNode, NodeHeartbeat, NodeSampled, SampleAsked
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import WithdrawDevice
from flexpipe.fragments.declared import NodeSpec
from flexpipe.fragments.inputs import NodesGiven, Remark
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Delivered, Effect, Effects, Input
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import Device

NOTICE_S: Final = 120.0
"""Between a notice and the preemption where the order names no time: what the large clouds give or more than that."""

DEGRADED: Final = 0.25
"""What is left of a link's bandwidth where the order names no factor: an NVLink that fell back to PCIe, roughly."""

TENANT: Final = "another tenant"
ANY_DEPLOYMENT: Final = "fleet"
"""In the fence of a word about a device, which is no step of any shift."""
EARLY_BOUND: Final = 256
"""Messages that may come before `NodesGiven`, which the shell feeds first thing."""


class _Watch(Frozen):
    """One node: as declared, as it is, and what was said of it."""

    spec: NodeSpec
    devices: tuple[Device, ...]
    counter: int = 0
    silent: bool = False  # it failed as a whole


class _Memory(Frozen):
    nodes: tuple[_Watch, ...] = ()  # by name
    early: tuple[Delivered, ...] = ()
    open: bool = False


class Agent:
    """See the module. A fresh one knows nothing: what nodes it is of comes with `NodesGiven`."""

    def __init__(self) -> None:
        self._memory = _Memory()

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input. Notices whose time has come are carried out before it."""
        do: list[Effect] = self._leave(now_s)
        match event:
            case NodesGiven():
                do += self._open(now_s, event)
            case Delivered() if self._memory.open:
                do += self._delivered(now_s, event)
            case Delivered() if len(self._memory.early) < EARLY_BOUND:
                self._change(early=(*self._memory.early, event))
            case _:
                pass  # Started, Woken: time is looked at in every turn
        return Effects(do=tuple(do), wake_at_s=self._next_s())

    def snapshot(self) -> str:
        """Everything the machine knows, as canonical JSON."""
        return self._memory.canonical_json()

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot."""
        self._memory = _Memory.model_validate_json(snapshot)

    @property
    def beats(self) -> tuple[NodeHeartbeat, ...]:
        """A beat for each node that shows signs of life."""
        return tuple(
            NodeHeartbeat(node=watch.spec.node, counter=watch.counter)
            for watch in self._memory.nodes
            if self._memory.open and not watch.silent
        )

    @property
    def failed(self) -> tuple[str, ...]:
        """Nodes that failed as a whole, by name."""
        return tuple(watch.spec.node for watch in self._memory.nodes if watch.silent)

    # -- inputs ---------------------------------------------------------------------------------

    def _open(self, now_s: float, given: NodesGiven) -> list[Effect]:
        """Take up the nodes where the process before left them; devices declared otherwise now start anew."""
        before = {watch.spec.node: watch for watch in self._memory.nodes}
        early = self._memory.early
        specs = sorted(given.nodes, key=lambda spec: spec.node)
        nodes = tuple(_taken_up(spec, before.get(spec.node)) for spec in specs)
        self._memory = _Memory(nodes=nodes, open=True)
        do = self._leave(now_s, quietly=True)
        for watch in self._memory.nodes:
            do += self._say(watch, now_s)
        for event in early:
            do += self._delivered(now_s, event)
        return do

    def _delivered(self, now_s: float, event: Delivered) -> list[Effect]:
        match parse(event.type, event.message):
            case AlterNode() as order:
                return self._alter(now_s, order, event)
            case SampleAsked(node=name):
                watch = self._watch(name)
                return [] if watch is None else self._say(watch, now_s)
            case _:
                return []

    def _alter(self, now_s: float, order: AlterNode, event: Delivered) -> list[Effect]:
        watch = self._watch(order.node)
        if watch is None:
            return [Remark(text=f"{order.node} is not a node of this agent; nothing is changed")]
        known = {device.device for device in watch.devices}
        unknown = sorted(set(order.devices) - known)
        if unknown:
            text = f"node {order.node} has no device {', '.join(unknown)}; nothing is changed"
            return [Remark(text=text)]
        if watch.silent and order.change != "restore":
            text = f"node {order.node} has failed: only restore reaches it; nothing is changed"
            return [Remark(text=text)]
        ordered_s = now_s if event.sent_at_s is None else event.sent_at_s
        named = set(order.devices) or known
        devices = tuple(
            _altered(device, declared, order, ordered_s) if device.device in named else device
            for device, declared in zip(watch.devices, watch.spec.devices, strict=True)
        )
        fails_whole = order.change == "fail" and not order.devices
        silent = fails_whole or (watch.silent and order.change != "restore")
        comes_back = watch.silent and not silent
        return self._become(
            watch.model_copy(update={"devices": devices, "silent": silent}),
            now_s,
            full=comes_back,
        ) + self._leave(now_s)

    def _leave(self, now_s: float, *, quietly: bool = False) -> list[Effect]:
        """Devices whose notice has run out are gone. `quietly`: a full sample says so anyway."""
        do: list[Effect] = []
        for watch in self._memory.nodes:
            leaving = [
                device
                for device in watch.devices
                if device.leaves_at_s is not None and device.leaves_at_s <= now_s
            ]
            if not leaving:
                continue
            devices = (_gone(device) if device in leaving else device for device in watch.devices)
            changed = watch.model_copy(update={"devices": tuple(devices)})
            if quietly:
                self._put(changed)
            else:
                do += self._become(changed, now_s)
            do += [_withdrawal(watch.spec.node, device) for device in leaving]
        return do

    # -- memory and speech ----------------------------------------------------------------------

    def _become(self, watch: _Watch, now_s: float, *, full: bool = False) -> list[Effect]:
        """Keep what a node is now, and say what changed, or all of it."""
        before = self._watch(watch.spec.node)
        assert before is not None
        if watch == before:
            return []
        self._put(watch)
        if full:
            return self._say(watch, now_s)
        pairs = zip(watch.devices, before.devices, strict=True)
        changed = tuple(device for device, was in pairs if device != was)
        return self._say(watch, now_s, changed) if changed else []

    def _say(
        self, watch: _Watch, now_s: float, changed: tuple[Device, ...] | None = None
    ) -> list[Effect]:
        """A full sample, or one of the devices that changed; nothing of a node that is silent."""
        if watch.silent:
            return []
        counter = watch.counter + 1
        self._put(watch.model_copy(update={"counter": counter}))
        sample = NodeSampled(
            node=watch.spec.node,
            counter=counter,
            full=changed is None,
            devices=watch.devices if changed is None else changed,
            fabrics=watch.spec.fabrics,
            rack=watch.spec.rack,
        )
        return [publish(sample, now_s)]

    def _watch(self, name: str) -> _Watch | None:
        return next((watch for watch in self._memory.nodes if watch.spec.node == name), None)

    def _put(self, changed: _Watch) -> None:
        name = changed.spec.node
        nodes = (changed if watch.spec.node == name else watch for watch in self._memory.nodes)
        self._change(nodes=tuple(nodes))

    def _change(self, **fields: object) -> None:
        self._memory = self._memory.model_copy(update=fields)

    def _next_s(self) -> float | None:
        return _soonest(device for watch in self._memory.nodes for device in watch.devices)


def _taken_up(spec: NodeSpec, before: _Watch | None) -> _Watch:
    if before is None:
        return _Watch(spec=spec, devices=spec.devices)
    declared = {device.device: device for device in before.spec.devices}
    left = {device.device: device for device in before.devices}
    devices = tuple(
        left[device.device] if declared.get(device.device) == device else device
        for device in spec.devices
    )
    return _Watch(spec=spec, devices=devices, counter=before.counter, silent=before.silent)


def _altered(device: Device, declared: Device, order: AlterNode, ordered_s: float) -> Device:
    """A device after an order. Doing it twice is doing it once; what is gone has no notice and no links."""
    is_there = device.state == "present"
    match order.change:
        case "preempt":
            return _gone(device) if is_there else device
        case "notice":
            wait_s = NOTICE_S if order.leaves_in_s is None else order.leaves_in_s
            return _with(device, leaves_at_s=ordered_s + wait_s) if is_there else device
        case "fail":
            return _with(device, state="failed", leaves_at_s=None)
        case "degrade":
            factor = DEGRADED if order.factor is None else order.factor
            return _with(device, link_factor=factor) if is_there else device
        case "reserve":
            return _with(device, tenant=order.tenant or TENANT)
        case "restore":
            return declared
        case _:
            assert_never(order.change)


def _gone(device: Device) -> Device:
    return _with(device, state="preempted", leaves_at_s=None)


def _with(device: Device, **fields: object) -> Device:
    return device.model_copy(update=fields)


def _withdrawal(node: str, device: Device) -> Effect:
    """An emulated device ends nothing by itself: its worker does."""
    command = WithdrawDevice(
        node=node,
        fence=Fence(deployment=ANY_DEPLOYMENT, term=0, shift=0, step=0),
        device=device.device,
        present=False,
        at_once=True,
    )
    return publish(command, device.leaves_at_s)


def _soonest(devices: Iterable[Device]) -> float | None:
    times = (device.leaves_at_s for device in devices if device.leaves_at_s is not None)
    return min(times, default=None)
