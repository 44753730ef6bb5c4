"""A machine decides; a shell acts. A machine is a function of state, time and input: it never awaits, reads no clock,
draws no chance, and lets no set or hash order choose. The same objects run in a service, in the virtual-clock harness
and in a replay of the input journal.

Inputs and effects are frozen values with a canonical JSON form, so that a journal can keep the one and a replay can
compare the other byte for byte.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field, SerializeAsAny

from flexpipe.kernel.frozen import Frozen


class Input(Frozen):
    """Anything a machine is fed. `kind` is the class name, kept in the journal beside the value."""

    registry: ClassVar[dict[str, type[Input]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        other = Input.registry.get(cls.__name__)
        if other is not None and other.__module__ != cls.__module__:
            raise TypeError(
                f"{cls.__module__} and {other.__module__} both name an input {cls.__name__}"
            )
        Input.registry[cls.__name__] = cls


class Effect(Frozen):
    """Anything a machine asks for. A shell performs effects in order, one after the other."""


class Woken(Input):
    """The wake-up that the machine asked for has come."""


class Delivered(Input):
    """A bus message. `message` is its JSON body as text and `type` its class name in the catalogue."""

    type: str
    message: str
    message_id: str
    traceparent: str | None = None
    sent_at_s: float | None = None  # when the bus stored it, epoch; None where it did not


class Entry(Frozen):
    """One key of a bucket: JSON text or None where it is absent, at a revision (0 = never written)."""

    bucket: str
    key: str
    value: str | None
    revision: int


class Watched(Input):
    """A bucket key changed (also: each key once at the start of a watch)."""

    entry: Entry


class Started(Input):
    """The shell is up: every key of the buckets the machine declared, read from the leader."""

    entries: tuple[Entry, ...]


class Stored(Input):
    """Outcome of a `Put` or `PutAll`. `entries` holds what is there now: on a conflict, what somebody else wrote."""

    write_id: str
    outcome: Literal["written", "conflict"]
    entries: tuple[Entry, ...]


class Publish(Effect):
    """Put a message on the bus. `key` fills the last part of the subject, `message_id` makes a repeat one message."""

    type: str
    key: str
    message: str
    message_id: str
    traceparent: str | None = None


class Put(Effect):
    """Compare-and-set one bucket key. `value` None deletes; `expected` 0 means that the key must not exist.

    Answered by `Stored(write_id)`.
    """

    write_id: str
    bucket: str
    key: str
    value: str | None
    expected: int


class PutAll(Effect):
    """Compare-and-set several keys of one bucket as one atomic batch: all or none. Answered by `Stored(write_id)`."""

    write_id: str
    puts: Annotated[tuple[Put, ...], Field(min_length=1)]


class Span(Effect):
    """A finished piece of a trace, times in seconds since the epoch. Its ids are derived from causes."""

    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    name: str
    start_s: float
    end_s: float
    attributes: dict[str, str | int | float | bool] = {}
    error: str | None = None
    links: tuple[str, ...] = ()  # traceparents of spans this one touches


class Measure(Effect):
    """A reading for a metric named in the telemetry catalogue; its unit is in the name."""

    name: str
    value: float
    labels: dict[str, str] = {}


class Effects(Frozen):
    """What a machine wants done: effects in order, and when it wants to be woken (None = no wish)."""

    do: tuple[SerializeAsAny[Effect], ...] = ()
    wake_at_s: float | None = None


class Machine(Protocol):
    """The protocol every brain follows."""

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input at `now_s` (seconds since the epoch) and say what to do."""
        ...

    def snapshot(self) -> str:
        """Everything the machine knows, as canonical JSON."""
        ...

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot."""
        ...
