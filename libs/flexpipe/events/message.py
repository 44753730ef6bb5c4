"""The base of everything said on the bus.

One rule joins class name, type, subject and schema file. Words of the class name, lower case:
an event is noun + participle (`ShiftRolledBack` → `shift`, `rolled-back`), a command is verb + noun (`StartPlan` →
`plan`, `start`). Type `flexpipe.<noun>.<word>`, subject `flexpipe.<lane>.<noun>.<word>.<key>`, schema
`schemas/<noun>.<word>.json`.
"""

from __future__ import annotations

import re

from pydantic import ConfigDict

from flexpipe.kernel.frozen import Frozen


class Message(Frozen):
    """A tolerant reader (unknown fields are ignored), a strict writer (nothing undeclared is written)."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    def bus_key(self) -> str:
        """What the message is about: the last part of its subject. A bus name, or several joined by dots."""
        raise NotImplementedError


class Event(Message):
    """A fact about the past. Nobody is obliged to act on it."""


class Command(Message):
    """An order to one doer, fenced and idempotent."""


def words(cls: type[Message]) -> tuple[str, str]:
    """(noun, participle or verb) of a message class."""
    parts = [part.lower() for part in re.findall(r"[A-Z][a-z0-9]*", cls.__name__)]
    if issubclass(cls, Command):
        return "-".join(parts[1:]), parts[0]
    return parts[0], "-".join(parts[1:])


def type_name(cls: type[Message]) -> str:
    """The CloudEvents type, `flexpipe.<noun>.<word>`."""
    return "flexpipe." + ".".join(words(cls))
