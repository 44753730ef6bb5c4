"""The escape hatch by command: downshift, cancel and unpin on the urgent lane, and what becomes of them.

Called by the commands of those names. It needs an executor and a resolved baseline, neither planner nor estimator.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

from flexpipe.bus.connection import Bus
from flexpipe.bus.hearing import Hearing
from flexpipe.cli import looking, ordering
from flexpipe.events.hatch import Urgent, UrgentAnswered
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.shift import ShiftEvent
from flexpipe.kernel.errors import Refused, Unavailable
from flexpipe.kernel.frozen import Frozen

ANSWER_LIMIT_S = ordering.ACCEPT_LIMIT_S
"""An executor answers an urgent command before anything else, in milliseconds."""


class Pulled(Frozen):
    """What became of an urgent command."""

    answer: UrgentAnswered  # the last one
    ended: ordering.Outcome | None = None  # of the last shift that came to its end meanwhile


async def send(
    bus: Bus, command: Urgent, tell: ordering.Told, *, follow_s: float | None = None
) -> Pulled:
    """Say an urgent command and wait for the executor's answer; with `follow_s` also until what is under way is done.

    Raises InvalidInput for a deployment that nobody declared, Refused with the executor's reason, Unavailable at a
    limit.
    """
    name = command.deployment
    await looking.declared(bus, name)
    order = publish(command, uuid.uuid4().hex)
    hears = (*ordering.about_shifts(name), Hearing(UrgentAnswered, name))
    async with bus.listen(hears) as deliveries:
        await bus.publish(order)
        told = ordering.messages_of(deliveries)
        pulled = await ordering.within(
            _answered(told, order.message_id, tell),
            ANSWER_LIMIT_S,
            f"no executor answered within {ANSWER_LIMIT_S:g} s; is it running?",
        )
        while follow_s is not None and pulled.answer.outcome == "under-way":
            pulled = await ordering.within(
                _answered(told, order.message_id, tell),
                follow_s,
                f"{pulled.answer.verb} of {name} is not done within {follow_s:g} s; it goes on",
            )
    return pulled


async def _answered(told: AsyncIterator[Message], message_id: str, tell: ordering.Told) -> Pulled:
    """The next answer to one message; what shifts of the deployment go through until then is told on."""
    ended: ordering.Outcome | None = None
    async for message in told:
        if isinstance(message, UrgentAnswered) and message.message_id == message_id:
            if message.outcome == "refused":
                raise Refused(message.says)
            tell(message)
            return Pulled(answer=message, ended=ended)
        if isinstance(message, ShiftEvent):
            tell(message)
            ended = message if isinstance(message, ordering.Outcome) else ended
    raise Unavailable("the event log ended")
