"""Gear mode `aggregated`: one stage holds all layers, tensor-parallel over one block."""

from __future__ import annotations

from collections.abc import Sequence

from flexpipe.gears.layout import NO_FLEET, build_plan
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.plan import Plan


class Aggregated:
    """TP only, within one block that carries it."""

    name = "aggregated"

    def takes(self, tp: int, pp: int) -> bool:
        """Any width at depth one."""
        return tp >= 1 and pp == 1

    def plan(
        self,
        deployment: Deployment,
        devices: Sequence[DeviceRef],
        *,
        tp: int,
        pp: int,
        counts: Sequence[int] | None,
        fleet: Fleet = NO_FLEET,
    ) -> Plan:
        """See `GearMode.plan`."""
        return build_plan(deployment, tp=tp, pp=pp, devices=devices, counts=counts, fleet=fleet)


AGGREGATED = Aggregated()
