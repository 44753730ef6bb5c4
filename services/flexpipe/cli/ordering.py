"""What the command line asks for: deployments into their bucket, orders onto the command lane, and their outcome."""

from __future__ import annotations

import asyncio
import getpass
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from flexpipe.bus.connection import Bus
from flexpipe.bus.hearing import Hearing
from flexpipe.cli.looking import declared, read_fleet, read_reservations
from flexpipe.events import catalog, plan, shift
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.gears.notation import resolve_gear
from flexpipe.kernel.errors import Refused, Unavailable
from flexpipe.kernel.ids import trace_id
from flexpipe.kernel.machine import Delivered, Put
from flexpipe.model.deployment import Deployment
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.gear import Gear
from flexpipe.model.shift import ShiftOrder

ACCEPT_LIMIT_S = 15.0
"""An executor answers an order in milliseconds; after this none is there."""

Outcome = shift.ShiftCompleted | shift.ShiftRolledBack | shift.ShiftAbandoned
Told = Callable[[Message], None]
T = TypeVar("T")


async def store_deployment(bus: Bus, deployment: Deployment) -> bool:
    """Put it into its bucket; False where the same was there. Raises Refused if somebody else wrote at this moment."""
    entry = await bus.read("deployments", deployment.name)
    value = deployment.canonical_json()
    if entry.value == value:
        return False
    stored = await bus.put(
        Put(
            write_id=uuid.uuid4().hex,
            bucket="deployments",
            key=deployment.name,
            value=value,
            expected=entry.revision,
        )
    )
    if stored.outcome == "conflict":
        raise Refused(
            f"deployment {deployment.name} was changed by somebody else just now; apply again"
        )
    return True


async def resolve(bus: Bus, name: str, notation: str) -> Gear:
    """The gear that the words name for a deployment, on the fleet and the reservations of this moment."""
    return await resolve_for(bus, await declared(bus, name), notation)


async def resolve_for(bus: Bus, deployment: Deployment, notation: str) -> Gear:
    """The same for a deployment that need not be declared yet."""
    held: dict[DeviceRef, int] = {
        each.device: each.total_bytes for each in await read_reservations(bus)
    }
    return resolve_gear(notation, deployment, await read_fleet(bus), held)


@asynccontextmanager
async def ordered(
    bus: Bus, deployment: str, target: Gear, trigger: str
) -> AsyncIterator[tuple[shift.ShiftOrdered, AsyncIterator[Message]]]:
    """Send an order; inside the block: the acceptance and everything said about the deployment's shifts from then on.

    Raises Refused with the executor's reason, Unavailable where no executor answers.
    """
    order_id = uuid.uuid4().hex
    order = ShiftOrder(
        deployment=deployment,
        target=target,
        trigger=trigger,
        by=whoever(),
        ordered_at_s=time.time(),
        trace_id=trace_id(deployment, order_id),
    )
    command = shift.OrderShift(
        order_id=order_id, order=order, seen=await _seen(bus, deployment, target)
    )
    async with bus.listen(about_shifts(deployment)) as deliveries:
        await bus.publish(publish(command, order_id))
        told = messages_of(deliveries)
        yield await _accepted(told, order_id), told


async def order_shift(
    bus: Bus, deployment: str, target: Gear, trigger: str, tell: Told, *, wait_s: float | None
) -> Outcome | shift.ShiftOrdered:
    """Order a shift and, unless `wait_s` is None, wait for its outcome. Raises Refused or Unavailable."""
    async with ordered(bus, deployment, target, trigger) as (accepted, told):
        tell(accepted)
        if wait_s is None:
            return accepted
        return await until_outcome(told, accepted.shift, tell, wait_s)


async def until_outcome(
    told: AsyncIterator[Message], number: int, tell: Told, limit_s: float
) -> Outcome:
    """Read on until the shift of that number has ended for its clients. Raises Unavailable at the limit."""

    async def read() -> Outcome:
        async for message in told:
            if not isinstance(message, shift.ShiftEvent) or message.shift != number:
                continue
            tell(message)
            if isinstance(message, Outcome):
                return message
        raise Unavailable("the event log ended")

    return await within(
        read(), limit_s, f"shift {number} did not end within {limit_s:g} s; it goes on"
    )


async def set_device(bus: Bus, ref: DeviceRef, *, present: bool, at_once: bool = False) -> None:
    """Tell a node's worker that a device is taken away (`at_once`: what runs there is killed) or given back."""
    command = plan.WithdrawDevice(
        node=ref.node,
        fence=Fence(deployment="fleet", term=0, shift=0, step=0),
        device=ref.device,
        present=present,
        at_once=at_once,
    )
    await bus.publish(publish(command, uuid.uuid4().hex))


async def within(wait: Awaitable[T], limit_s: float, otherwise: str) -> T:
    """Await with a limit that speaks: raises Unavailable(otherwise)."""
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await wait
    except TimeoutError as error:
        if not limit.expired():
            raise  # somebody else's limit: not ours to explain
        raise Unavailable(otherwise) from error


async def _seen(bus: Bus, deployment: str, target: Gear) -> tuple[shift.Seen, ...]:
    """What the order rests on: the deployment, and the nodes of the target's plans."""
    nodes = sorted({node for plan in target.plans for node in plan.nodes})
    entries = [await bus.read("deployments", deployment)]
    entries += [await bus.read("fleet", node) for node in nodes]
    return tuple(
        shift.Seen.model_validate(
            {"bucket": each.bucket, "key": each.key, "revision": each.revision}
        )
        for each in entries
    )


def about_shifts(deployment: str) -> tuple[Hearing, ...]:
    """Everything said on the event log about the shifts of a deployment."""
    return tuple(
        Hearing(said.message, key=deployment)
        for said in catalog.MESSAGES
        if said.message.__module__ == shift.__name__ and said.lane is catalog.Lane.EVT
    )


async def messages_of(deliveries: AsyncIterator[Delivered]) -> AsyncIterator[Message]:
    """Deliveries as the messages they carry."""
    async for delivered in deliveries:
        yield catalog.parse(delivered.type, delivered.message)


async def _accepted(told: AsyncIterator[Message], order_id: str) -> shift.ShiftOrdered:
    async def read() -> shift.ShiftOrdered:
        async for message in told:
            match message:
                case shift.ShiftOrdered() if message.order_id == order_id:
                    return message
                case shift.ShiftRefused() if message.order_id == order_id:
                    raise Refused(message.reason)
                case _:
                    continue
        raise Unavailable("the event log ended")

    return await within(
        read(), ACCEPT_LIMIT_S, f"no executor answered within {ACCEPT_LIMIT_S:g} s; is it running?"
    )


def whoever() -> str:
    """Who types: what an order and a pin are signed with."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "operator"
