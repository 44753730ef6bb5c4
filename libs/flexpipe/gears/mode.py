"""What a gear mode is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.plan import Plan


class GearMode(Protocol):
    """One way of laying a model over devices."""

    @property
    def name(self) -> str:
        """Its name for people."""
        ...

    def takes(self, tp: int, pp: int) -> bool:
        """Whether this mode is the one for that tensor-parallel width and pipeline depth."""
        ...

    def plan(
        self,
        deployment: Deployment,
        devices: Sequence[DeviceRef],
        *,
        tp: int,
        pp: int,
        counts: Sequence[int] | None,
        fleet: Fleet = ...,
    ) -> Plan:
        """The plan over these devices in global rank order; `counts` are layers a stage (None: see `build_plan`)."""
        ...
