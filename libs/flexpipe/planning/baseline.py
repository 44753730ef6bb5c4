"""The gear that the escape hatch forces, resolved on the newest fleet. Called by the planner's machine.

What runs already is taken first, serving plans before retiring ones, so that pulling the hatch starts nothing where
nothing needs to be started; free blocks come second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from flexpipe.gears.notation import described, resolve_gear
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef, Fleet
from flexpipe.model.gear import EMPTY_GEAR, Gear, PlanShare
from flexpipe.model.outlook import Load
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState, RoutedPlan, RouteEntry
from flexpipe.model.shift import DeviceReservations
from flexpipe.performance.outlook import plan_outlook
from flexpipe.planning.proposal import is_alive

_FORM: Final = re.compile(r"^(?:(?P<weight>\d+(?:\.\d+)?)\*)?(?:tp(?P<tp>\d+))?(?:pp(?P<pp>\d+))?$")
"""A part of a notation that names neither devices nor layers: any plan of that form is it."""
NOTHING_KNOWN: Final = Load(data="no-data", window_s=0.0)
"""Plans are compared by what they carry of usual requests: the hatch must not change with the load of a minute."""
_ORDER: Final = (PlanState.ACTIVE, PlanState.FROZEN, PlanState.CANARY, PlanState.RETIRING)


def resolve(
    deployment: Deployment,
    entry: RouteEntry | None,
    fleet: Fleet,
    held: Mapping[DeviceRef, DeviceReservations],
) -> tuple[Gear | None, str | None]:
    """(gear, None), or (None, what is missing). A plan that is about to go is it only where nothing else can be."""
    if deployment.baseline.strip() == "empty":
        return EMPTY_GEAR, None
    running = _running(deployment, entry, fleet)
    staying = [plan for plan in running if not fleet.goes(plan.devices)]
    gear, missing = _resolved(deployment, fleet, held, list(staying))
    if gear is None and len(staying) < len(running):
        gear, missing = _resolved(deployment, fleet, held, running)
    return gear, missing


def _resolved(
    deployment: Deployment,
    fleet: Fleet,
    held: Mapping[DeviceRef, DeviceReservations],
    running: list[Plan],
) -> tuple[Gear | None, str | None]:
    used = {ref: each.total_bytes for ref, each in held.items()}
    shares: dict[str, PlanShare] = {}
    missing: list[str] = []
    for part in deployment.baseline.replace(" ", "").split("+"):
        share = _share_of_running(part, deployment, fleet, running)
        if share is None:
            missing.append(part)
            continue
        running.remove(share.plan)
        shares[share.plan.id] = share
    try:
        for part in missing:
            for share in resolve_gear(part, deployment, fleet, used).shares:
                shares[share.plan.id] = share
                for ref, need in share.plan.claims():
                    used[ref] = used.get(ref, 0) + need
    except InvalidInput as fault:
        return None, f"{fault.field} {fault.value}: {fault.fix}"
    return Gear(shares=tuple(shares[id_] for id_ in sorted(shares))), None


def _running(deployment: Deployment, entry: RouteEntry | None, fleet: Fleet) -> list[Plan]:
    """Plans of the entry that are alive, serving ones first, the one that carries most before others of its form."""
    alive = [each for each in (entry.plans if entry else ()) if is_alive(each.plan, fleet)]

    def place(routed: RoutedPlan) -> tuple[int, float, str]:
        carries = plan_outlook(routed.plan, deployment, NOTHING_KNOWN).good_requests_per_s
        return (_ORDER.index(routed.state), -carries, routed.plan.id)

    return [each.plan for each in sorted(alive, key=place)]


def _share_of_running(
    part: str, deployment: Deployment, fleet: Fleet, running: list[Plan]
) -> PlanShare | None:
    form = _FORM.match(part)
    if form is not None and (form["tp"] or form["pp"]):
        wanted = (int(form["tp"] or 1), int(form["pp"] or 1))
        found = next((plan for plan in running if (plan.tp, plan.pp) == wanted), None)
        weight = float(form["weight"] or 1.0)
        return None if found is None else PlanShare(plan=found, weight=weight)
    share = described(part, deployment, fleet)
    if share is None:
        return None
    found = next((plan for plan in running if _is_laid_like(plan, share.plan)), None)
    return None if found is None else PlanShare(plan=found, weight=share.weight)


def _is_laid_like(plan: Plan, meant: Plan) -> bool:
    """What else a plan says (paths, capacity) follows the fleet as it was when it was laid."""
    counts = [[stage.layers.count for stage in each.stages] for each in (plan, meant)]
    return plan.devices == meant.devices and plan.tp == meant.tp and counts[0] == counts[1]
