"""Gear mode `aggregated`: one stage holds all layers, tensor-parallel over one node's devices."""

from __future__ import annotations

from collections.abc import Sequence

from flexpipe.gears.layout import build_plan
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.plan import Plan


class Aggregated:
    """TP only. A tensor-parallel group never leaves its node."""

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
    ) -> Plan:
        """See `GearMode.plan`."""
        require_groups_inside_nodes(devices, tp)
        return build_plan(deployment, tp=tp, pp=pp, devices=devices, counts=counts)


def require_groups_inside_nodes(devices: Sequence[DeviceRef], tp: int) -> None:
    """Raises InvalidInput where a tensor-parallel group would span nodes."""
    for start in range(0, len(devices), tp):
        group = devices[start : start + tp]
        if len({ref.node for ref in group}) > 1:
            raise InvalidInput(
                "devices", ",".join(map(str, group)), "a tensor-parallel group must lie on one node"
            )


AGGREGATED = Aggregated()
