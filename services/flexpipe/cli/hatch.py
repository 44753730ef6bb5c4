"""The escape hatch by command: downshift, cancel and unpin on the urgent lane, and what becomes of them.

Called by the commands of those names. It needs an executor and a resolved baseline, neither planner nor estimator.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

from flexpipe.bus.connection import Bus
from flexpipe.bus.hearing import Hearing
from flexpipe.cli import looking, ordering
from flexpipe.events.hatch import DeploymentUnpinned, Urgent, UrgentAnswered
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.planning import Baseline
from flexpipe.events.shift import ShiftEvent
from flexpipe.kernel.errors import Refused, Unavailable
from flexpipe.kernel.frozen import Frozen
from flexpipe.model.route import PlanState, RouteEntry

ANSWER_LIMIT_S = ordering.ACCEPT_LIMIT_S
"""An executor answers an urgent command before anything else, in milliseconds."""


class Pulled(Frozen):
    """What became of an urgent command. `in_force`: whether the baseline serves; None where that was not awaited."""

    answer: UrgentAnswered
    in_force: bool | None = None
    ended: ordering.Outcome | None = None  # the outcome of the shift that was followed


async def send(
    bus: Bus, command: Urgent, tell: ordering.Told, *, follow_s: float | None = None
) -> Pulled:
    """Say an urgent command and wait for the executor's answer; with `follow_s` until the baseline is in force, too.

    Raises InvalidInput for a deployment that nobody declared, Refused with the executor's reason, Unavailable at a
    limit.
    """
    name = command.deployment
    await looking.declared(bus, name)
    order = publish(command, uuid.uuid4().hex)
    hears = (*ordering.about_shifts(name), Hearing(UrgentAnswered, name))
    async with bus.listen((*hears, Hearing(DeploymentUnpinned, name))) as deliveries:
        targets = {*await _baseline_plans(bus, name)}
        await bus.publish(order)
        told = ordering.messages_of(deliveries)
        answer = await ordering.within(
            _answered(told, order.message_id),
            ANSWER_LIMIT_S,
            f"no executor answered within {ANSWER_LIMIT_S:g} s; is it running?",
        )
        if answer.outcome == "refused":
            raise Refused(answer.says)
        tell(answer)
        if follow_s is None:
            return Pulled(answer=answer)
        if answer.outcome == "done":
            return Pulled(answer=answer, in_force=True)
        ended = await ordering.within(
            _until_baseline(bus, name, told, targets, tell),
            follow_s,
            f"the baseline of {name} is not in force within {follow_s:g} s; the downshift goes on",
        )
    entry = await _entry(bus, name)
    targets |= await _baseline_plans(bus, name)
    return Pulled(answer=answer, in_force=_serves(entry, targets), ended=ended)


async def _answered(told: AsyncIterator[Message], message_id: str) -> UrgentAnswered:
    async for message in told:
        if isinstance(message, UrgentAnswered) and message.message_id == message_id:
            return message
    raise Unavailable("the event log ended")


async def _until_baseline(
    bus: Bus,
    name: str,
    told: AsyncIterator[Message],
    targets: set[frozenset[str]],
    tell: ordering.Told,
) -> ordering.Outcome | None:
    """Read on until the baseline serves, or a shift to it has failed; other shifts may end on the way.

    The planner may resolve another baseline meanwhile, and the executor takes the newest: each of them counts.
    """
    ended: ordering.Outcome | None = None
    if _settled(await _entry(bus, name), targets):
        return None
    async for message in told:
        if isinstance(message, DeploymentUnpinned):
            raise Refused(f"{name} was unpinned by {message.by} before its baseline was in force")
        if not isinstance(message, ShiftEvent):
            continue
        tell(message)
        targets |= await _baseline_plans(bus, name)
        if isinstance(message, ordering.Outcome):
            ended = message
            if await _went_to(bus, name, message.shift, targets):
                return ended
        if _settled(await _entry(bus, name), targets):
            return ended
    raise Unavailable("the event log ended")


async def _baseline_plans(bus: Bus, name: str) -> set[frozenset[str]]:
    """The plans of the baseline as it is resolved now; empty where none fits."""
    value = (await bus.read("baselines", name)).value
    gear = None if value is None else Baseline.model_validate_json(value).gear
    return set() if gear is None else {frozenset(plan.id for plan in gear.plans)}


async def _went_to(bus: Bus, name: str, shift: int, targets: set[frozenset[str]]) -> bool:
    record = await looking.read_shift(bus, shift, name)
    return frozenset(plan.id for plan in record.order.target.plans) in targets


async def _entry(bus: Bus, name: str) -> RouteEntry | None:
    value = (await bus.read("routes", name)).value
    return None if value is None else RouteEntry.model_validate_json(value)


def _serves(entry: RouteEntry | None, targets: set[frozenset[str]]) -> bool:
    if entry is None:
        return False
    return frozenset(routed.plan.id for routed in entry.in_state(PlanState.ACTIVE)) in targets


def _settled(entry: RouteEntry | None, targets: set[frozenset[str]]) -> bool:
    return entry is not None and entry.in_flight is None and _serves(entry, targets)
