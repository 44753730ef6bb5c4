"""The escape hatch: what operators say on the urgent lane, also by hand, and what became of it.

Subjects have the form `flexpipe.urgent.<verb>.<deployment>`; a body typed by hand may be `{}` and needs no header.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flexpipe.events.message import Command, Event
from flexpipe.model.names import Name

Words = Annotated[str, Field(max_length=500)]


class Urgent(Command):
    """What these commands share. `deployment` is the last part of the subject; a body may leave it out."""

    deployment: Name
    by: Words = "an operator"
    reason: Words = ""

    def bus_key(self) -> str:
        return self.deployment


class DownshiftDeployment(Urgent):
    """Force the baseline gear and pin it there until it is unpinned, whatever the automation thinks."""


class CancelShift(Urgent):
    """Undo the shift in flight, where it can still be undone. Pins nothing."""


class UnpinDeployment(Urgent):
    """Let the automation act again."""


class DeploymentPinned(Event):
    """Automation is off for a deployment."""

    deployment: Name
    reason: str
    by: str

    def bus_key(self) -> str:
        return self.deployment


class DeploymentUnpinned(Event):
    """Automation is on again."""

    deployment: Name
    by: str

    def bus_key(self) -> str:
        return self.deployment


class UrgentAnswered(Event):
    """What the executor made of an urgent command. `refused` says so aloud, with the reason."""

    deployment: Name
    verb: Literal["downshift", "cancel", "unpin"]
    message_id: str
    outcome: Literal["done", "under-way", "refused"]
    says: str  # one sentence

    def bus_key(self) -> str:
        return self.deployment
