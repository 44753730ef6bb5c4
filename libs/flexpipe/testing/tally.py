"""The smallest machine that shows the whole protocol: it counts orders and refuses every one of them.

Tests of the shell run it; newcomers can read it as an example. Ordered to `crash` or to be `broken`, it raises.
"""

from __future__ import annotations

from flexpipe.events import catalog
from flexpipe.events.outgoing import publish
from flexpipe.events.shift import OrderShift, ShiftRefused
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Entry,
    Input,
    Measure,
    Publish,
    Put,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.model.gear import EMPTY_GEAR
from flexpipe.model.shift import ShiftOrder

NAP_S = 0.2


class Nudged(Input):
    """Something outside the bus asks for attention."""

    text: str


class Ring(Effect):
    """A domain effect: the service does it, not the bus."""

    text: str


class State(Frozen):
    """All that a tally knows."""

    orders: tuple[str, ...] = ()
    nudges: tuple[str, ...] = ()
    revisions: dict[str, int] = {}
    conflicts: int = 0
    naps: int = 0


class Tally:
    """Counts orders by deployment, keeps the count in `routes`, and says each refusal with its number."""

    def __init__(self) -> None:
        self.state = State()

    def handle(self, now_s: float, event: Input) -> Effects:
        """One input."""
        match event:
            case Delivered():
                return self._order(now_s, event)
            case Nudged(text=text):
                self._set(nudges=(*self.state.nudges, text))
                return Effects(do=(Ring(text=text),))
            case Stored(outcome=outcome, entries=entries):
                self._set(conflicts=self.state.conflicts + (outcome == "conflict"))
                self._note(entries)
            case Started(entries=entries):
                self._note(entries)
            case Watched(entry=entry):
                self._note((entry,))
            case Woken():
                self._set(naps=self.state.naps + 1)
                return Effects(do=(Measure(name="naps_total", value=self.state.naps),))
        return Effects()

    def snapshot(self) -> str:
        """Its state."""
        return self.state.canonical_json()

    def restore(self, snapshot: str) -> None:
        """That state."""
        self.state = State.model_validate_json(snapshot)

    def _order(self, now_s: float, event: Delivered) -> Effects:
        message = catalog.parse(event.type, event.message)
        assert isinstance(message, OrderShift)
        self._set(
            orders=(*self.state.orders, message.order_id)
        )  # before it raises: to be rolled back
        if message.order_id == "crash":
            raise ValueError("ordered to crash")
        if message.order_id == "broken":
            raise BrokenInvariant("ordered to be broken")
        deployment = message.order.deployment
        count = len(self.state.orders)
        put = Put(
            write_id=f"{event.message_id}.route",
            bucket="routes",
            key=deployment,
            value=f'{{"orders":{count}}}',
            expected=self.state.revisions.get(deployment, 0),
        )
        return Effects(
            do=(put, self._refusal(message, event, count)),
            wake_at_s=now_s + NAP_S,
        )

    def _refusal(self, message: OrderShift, event: Delivered, count: int) -> Publish:
        refused = ShiftRefused(
            deployment=message.order.deployment,
            order_id=message.order_id,
            reason=f"order {count}",
        )
        return publish(refused, event.message_id, traceparent=event.traceparent)

    def _note(self, entries: tuple[Entry, ...]) -> None:
        revisions = {entry.key: entry.revision for entry in entries if entry.bucket == "routes"}
        self._set(revisions=self.state.revisions | revisions)

    def _set(self, **changes: object) -> None:
        self.state = self.state.model_copy(update=changes)


def an_order(order_id: str, deployment: str = "toy", traceparent: str | None = None) -> Publish:
    """An order for a tally."""
    order = ShiftOrder(
        deployment=deployment,
        target=EMPTY_GEAR,
        trigger="a test",
        by="test",
        ordered_at_s=0.0,
        trace_id="0" * 32,
    )
    return publish(OrderShift(order_id=order_id, order=order), order_id, traceparent=traceparent)
