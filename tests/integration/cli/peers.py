"""The other services as a test plays them: each writes and says, as its own user, what it owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from flexpipe.bus import Bus, Hearing, MachineShell, connect
from flexpipe.bus.server import EmbeddedServer
from flexpipe.events.catalog import parse
from flexpipe.events.fleet import AlterNode, DeviceChange, FleetChanged
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.plan import WithdrawDevice
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.ids import span_id, trace_id
from flexpipe.kernel.machine import Delivered, Effects, Input, Put
from flexpipe.model.fleet import DeviceRef, Fleet, Host, Node
from flexpipe.testing.recorder import Recorder

React = Callable[[Message, str], Sequence[Message]]
"""What a peer says to a message of this id."""


class Peers:
    """Buses of services, opened when first needed; closed by the stack."""

    def __init__(self, server: EmbeddedServer, stack: AsyncExitStack) -> None:
        self._server = server
        self._stack = stack
        self._buses: dict[str, Bus] = {}

    async def bus(self, service: str) -> Bus:
        """The bus of one service."""
        if service not in self._buses:
            settings = self._server.settings(service)
            opened = connect(settings, service=service, name="main")
            self._buses[service] = await self._stack.enter_async_context(opened)
        return self._buses[service]

    async def put(self, service: str, bucket: str, key: str, value: Frozen | None) -> None:
        """Write one key, whatever was there."""
        bus = await self.bus(service)
        before = await bus.read(bucket, key)
        text = None if value is None else value.canonical_json()
        put = Put(write_id="w", bucket=bucket, key=key, value=text, expected=before.revision)
        assert (await bus.put(put)).outcome == "written"

    async def put_fleet(self, fleet: Fleet) -> None:
        """Every node, as the monitor writes it."""
        for node in fleet.nodes:
            await self.put("monitor", "fleet", node.node, node)

    async def say(self, service: str, *messages: Message) -> None:
        """Publish, in order."""
        bus = await self.bus(service)
        for index, message in enumerate(messages):
            await bus.publish(publish(message, id(self), index))

    async def listening(
        self, service: str, hears: Sequence[type[Message]], react: React = lambda _, __: ()
    ) -> Recorder:
        """A peer that hears these classes, for every key, and answers them."""

        def answer(_: float, event: Input) -> Effects:
            if not isinstance(event, Delivered):
                return Effects()
            said = react(parse(event.type, event.message), event.message_id)
            return Effects(
                do=tuple(
                    publish(message, event.message_id, index) for index, message in enumerate(said)
                )
            )

        machine = Recorder(answer)
        shell = MachineShell(
            await self.bus(service),
            machine=machine,
            service=service,
            name="main",
            hears=tuple(Hearing(kind) for kind in hears),
        )
        await self._stack.enter_async_context(shell)
        return machine


class EmulatedFleet:
    """Agents, workers and monitor in one: what is altered shows in the fleet, at the next revision."""

    def __init__(self, peers: Peers, fleet: Fleet) -> None:
        self.fleet = fleet
        self.altered: list[AlterNode] = []
        self.withdrawn: list[WithdrawDevice] = []
        self._peers = peers
        self._to_show: asyncio.Queue[AlterNode] = asyncio.Queue()

    async def open(self, workers: Sequence[str]) -> None:
        """Write it down and listen. Only nodes of `workers` have one."""
        await self._peers.put_fleet(self.fleet)
        for node in workers:
            host = Host(node=node, address="127.0.0.1", devices=())
            await self._peers.put("worker", "hosts", node, host)
        await self._peers.listening("agent", (AlterNode,), self._alter)
        await self._peers.listening("worker", (WithdrawDevice,), self._withdraw)

    async def show(self) -> None:
        """Be the monitor, until cancelled."""
        while True:
            order = await self._to_show.get()
            node = self.fleet.node(order.node)
            assert node is not None
            after = _after(order, node, self.fleet.revision + 1)
            self.fleet = self.fleet.with_node(after)
            await self._peers.put("monitor", "fleet", node.node, after)
            await self._peers.say("monitor", _changed(order, after))

    def _alter(self, message: Message, _: str) -> tuple[Message, ...]:
        assert isinstance(message, AlterNode)
        self.altered.append(message)
        self._to_show.put_nowait(message)
        return ()

    def _withdraw(self, message: Message, _: str) -> tuple[Message, ...]:
        assert isinstance(message, WithdrawDevice)
        self.withdrawn.append(message)
        return ()


def _after(order: AlterNode, node: Node, revision: int) -> Node:
    changes: dict[str, object] = {
        "preempt": {"state": "preempted"},
        "fail": {"state": "failed"},
        "restore": {"state": "present", "leaves_at_s": None, "tenant": None, "closed": None},
        "notice": {"leaves_at_s": 9e9, "closed": "to be preempted"},
        "degrade": {"link_factor": order.factor},
        "reserve": {"tenant": order.tenant, "closed": f"reserved by {order.tenant}"},
    }
    update = changes[order.change]
    assert isinstance(update, dict)
    devices = tuple(
        each.model_copy(update=update)
        if not order.devices or each.device in order.devices
        else each
        for each in node.devices
    )
    return node.model_copy(update={"devices": devices, "revision": revision})


def _changed(order: AlterNode, node: Node) -> FleetChanged:
    changes = tuple(
        DeviceChange(device=DeviceRef(node=node.node, device=each.device), what="altered")
        for each in node.devices
        if not order.devices or each.device in order.devices
    )
    return FleetChanged(
        revision=node.revision,
        changes=changes,
        sentence=f"{node.node}: {order.change} of {len(changes)}",
        urgent=True,
        at_s=100.25,
        seen_s=100.0,
        trace_id=trace_id(node.node, node.revision),
        span_id=span_id(node.node, node.revision),
    )
