"""Fencing: every command, route entry and engine start carries (deployment, term, shift, step)."""

from __future__ import annotations

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.names import Name


class Fence(Frozen):
    """`term` grows with each leader, `shift` with each shift of the deployment, `step` with each command of a shift.

    Compared within one deployment, in that order. A target keeps the highest it accepted before it acts.
    """

    deployment: Name
    term: int
    shift: int
    step: int

    @property
    def order(self) -> tuple[int, int, int]:
        """What is compared."""
        return (self.term, self.shift, self.step)

    def __str__(self) -> str:
        return f"{self.deployment}:{self.term}.{self.shift}.{self.step}"

    @property
    def header(self) -> str:
        """Its form in an HTTP header: `term.shift.step`."""
        return f"{self.term}.{self.shift}.{self.step}"
