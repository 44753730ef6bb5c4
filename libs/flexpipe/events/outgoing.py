"""How a machine says something: the `Publish` effect of a message. Pure; brains call it, shells send what it gives."""

from __future__ import annotations

from flexpipe.events.message import Message
from flexpipe.kernel.ids import derived_id
from flexpipe.kernel.machine import Publish


def publish(message: Message, *cause: object, traceparent: str | None = None) -> Publish:
    """The effect that says `message` because of `cause` (ids, fences, revisions: whatever led to it).

    Equal message and equal cause give an equal id, and the bus drops an id that it heard within two minutes. Whoever
    must be heard again (a repeated answer to a repeated command) names the new cause, such as that command's id.
    """
    name = type(message).__name__
    body = message.canonical_json()
    key = message.bus_key()
    return Publish(
        type=name,
        key=key,
        message=body,
        message_id=derived_id("publish", name, key, body, *cause),
        traceparent=traceparent,
    )
