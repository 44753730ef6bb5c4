"""Which gear the hatch forces now, and what stands in its way. Called by `hatch`; it writes nothing.

The planner keeps the baseline resolved; where that one does not fit any more, or the planner never came to it, the
declared notation is resolved here against the books. What runs already and has the right form is preferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from flexpipe.events.shift import OrderShift
from flexpipe.gears.notation import described, resolve_gear
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.gear import EMPTY_GEAR, Gear, PlanShare
from flexpipe.model.plan import Plan
from flexpipe.model.route import PlanState, RouteEntry
from flexpipe.model.shift import Phase, Reservation
from flexpipe.transitions import reservations
from flexpipe.transitions.board import Board
from flexpipe.transitions.case import Case
from flexpipe.transitions.orders import Taken, became, consider, thawable
from flexpipe.transitions.telling import gear_of

CLEANING = (Phase.RETIRING, Phase.RELEASING, Phase.UNWINDING)
"""Phases of a shift that is about to give its claimed plans' devices back."""

MEANINGS_LIMIT = 64
"""Parts of notations remembered: a few a pinned deployment."""

Asking = Callable[[Gear], OrderShift]
"""Makes the order for a gear."""


@dataclass(frozen=True)
class Ready:
    """The baseline can begin now."""

    order: OrderShift
    taken: Taken


@dataclass(frozen=True)
class Leaving:
    """It can begin as soon as these shifts have given their plans' devices back."""

    gear: Gear
    cleaning: tuple[Case, ...]


@dataclass(frozen=True)
class NoFit:
    """It cannot be had on this fleet with these reservations."""

    reason: str


class _View(Enum):
    """What counts as free where the notation is resolved."""

    FREE = "nobody holds it"
    BESIDE = "or a plan of the gear in force does, and there is room beside it"
    LATER = "or a plan does that is about to go"


def is_in(gear: Gear, declared: Deployment, board: Board) -> bool:
    """Whether a gear is the baseline: the very one that was resolved, or one of the form that was declared."""
    stored = _stored(declared, board)
    if stored is not None and stored.plans == gear.plans:
        return True
    if declared.baseline.strip() == "empty":
        return not gear.shares
    left = list(gear.plans)
    for part in _parts(declared.baseline):
        meant = _meant(part, declared, board)
        found = None if meant is None else _like(meant, part, left)
        if found is None:
            return False
        left.remove(found)
    return not left


def choose(
    declared: Deployment, entry: RouteEntry, board: Board, asking: Asking, *, patient: bool
) -> Ready | Leaving | NoFit:
    """The baseline that can be had, the resolved one first. `patient`: whether devices are still waited for.

    A plan that runs and is about to go counts only where nothing else can be had.
    """
    fleet, stored, faults = board.books.fleet(), _stored(declared, board), list[str]()
    staying = [plan for plan in _running(entry, board) if not fleet.goes(plan.devices)]
    stays = stored is not None and not any(fleet.goes(plan.devices) for plan in stored.plans)
    tries = [(stored if stays else None, staying), (stored, _running(entry, board))]
    for resolved, running in tries[:1] if tries[0] == tries[1] else tries:
        wait: Leaving | None = None
        for gear in _gears(resolved, declared, entry, board, running=running, faults=faults):
            found = _look(gear, entry, board, asking)
            if isinstance(found, Ready):
                return found
            if isinstance(found, NoFit):
                faults.append(found.reason)
            elif gear is resolved and patient:
                return found
            elif gear is not resolved:
                wait = wait or found
        if wait is not None and patient:
            return wait
    reason = faults[-1] if faults else "its devices were not given back in time"
    return NoFit(f"baseline {declared.baseline} does not fit: {reason}")


def _gears(
    resolved: Gear | None,
    declared: Deployment,
    entry: RouteEntry,
    board: Board,
    *,
    running: list[Plan],
    faults: list[str],
) -> Iterator[Gear]:
    """The resolved baseline, then what the declared notation means in each view; what is missing goes to `faults`."""
    if resolved is not None:
        yield resolved
    for view in _View:
        try:
            yield _resolved(declared, entry, board, view, list(running))
        except InvalidInput as error:
            faults.append(str(error))


def _stored(declared: Deployment, board: Board) -> Gear | None:
    stored = board.books.baseline(declared.name)
    if stored is None or stored.notation != declared.baseline:
        return None
    return stored.gear


def _look(gear: Gear, entry: RouteEntry, board: Board, asking: Asking) -> Ready | Leaving | NoFit:
    """Whether a gear could be ordered at this moment."""
    cases = board.cases()
    source, mine = gear_of(entry), board.of(entry.deployment)
    fresh = [plan.id for plan in gear.plans if source.weight(plan.id) == 0]
    stopping = tuple(
        case
        for case in mine
        if any(plan in case.progress.claims and not thawable(plan, case, entry) for plan in fresh)
    )
    if stopping:
        return Leaving(gear, stopping)
    order = asking(gear)
    answer = consider(order, board.now_s, board.books, cases, forced=True)
    if isinstance(answer, str):
        return NoFit(answer)
    tried = became(order, board.books, cases)
    if tried is not None:
        return NoFit(f"shift {tried.shift} tried it and did not come about: {tried.reason}")
    case = board.case(answer.flight)
    cleaning = [_cleaner(rival, tuple(cases.values())) for rival in reservations.rivals(case)]
    cleaning += [
        _cleaning(cases[ghost.deployment, ghost.shift]) for ghost in reservations.ghosts(case)
    ]
    if cleaning and all(each is not None for each in cleaning):
        keys = {each.flight.key for each in cleaning if each is not None}
        return Leaving(gear, tuple(cases[key] for key in sorted(keys)))
    fault = reservations.obstacle(case)
    return Ready(order, answer) if fault is None else NoFit(fault)


def _cleaner(held: Reservation, cases: tuple[Case, ...]) -> Case | None:
    """The shift that is about to release a plan."""
    for case in cases:
        claims = case.name == held.deployment and held.plan in case.progress.claims
        if claims and _cleaning(case) is not None:
            return case
    return None


def _cleaning(case: Case) -> Case | None:
    return case if case.record.phase in CLEANING else None


def _resolved(
    declared: Deployment, entry: RouteEntry, board: Board, view: _View, running: list[Plan]
) -> Gear:
    """The declared notation on the present fleet. Raises InvalidInput naming what is missing."""
    if declared.baseline.strip() == "empty":
        return EMPTY_GEAR
    fleet, taken = board.books.fleet(), _taken(entry, board, view)
    shares = []
    for part in _parts(declared.baseline):
        meant = described(part, declared, fleet)
        plan = None if meant is None else _like(meant.plan, part, running)
        if meant is None or plan is None:
            share = resolve_gear(part, declared, fleet, taken).shares[0]
            for ref, bytes_ in share.plan.claims():
                taken[ref] = taken.get(ref, 0) + bytes_
        else:
            running.remove(plan)
            share = PlanShare(plan=plan, weight=meant.weight)
        shares.append(share)
    return Gear(shares=tuple(sorted(shares, key=lambda share: share.plan.id)))


def _running(entry: RouteEntry, board: Board) -> list[Plan]:
    """Plans that run and can stay or be let in again: those in force first."""
    kept = [routed.plan for routed in entry.in_state(PlanState.ACTIVE)]
    again = [
        routed.plan
        for routed in entry.in_state(PlanState.RETIRING)
        for case in board.of(entry.deployment)
        if routed.plan.id in case.progress.claims and thawable(routed.plan.id, case, entry)
    ]
    by_id = sorted(kept, key=lambda plan: plan.id), sorted(again, key=lambda plan: plan.id)
    return [*by_id[0], *by_id[1]]


def _taken(entry: RouteEntry, board: Board, view: _View) -> dict[DeviceRef, int]:
    """Bytes that cannot be had, by device: all of it where nothing new may be placed."""
    books, fleet = board.books, board.books.fleet()
    cases = tuple(board.cases().values())
    in_force = {plan.id for plan in gear_of(entry).plans}
    taken: dict[DeviceRef, int] = {}
    for ref in fleet.refs():
        device = fleet.device(ref)
        if device is not None and device.closed is not None:
            taken[ref] = device.memory_bytes
    for held in books.all_held():
        device = fleet.device(held.device)
        if device is None or taken.get(held.device, 0):
            continue
        for each in held.held:
            mine = each.deployment == entry.deployment and each.plan in in_force
            if mine and view is not _View.FREE:
                bytes_ = each.bytes
            elif view is _View.LATER and _cleaner(each, cases) is not None:
                bytes_ = 0
            else:
                bytes_ = device.memory_bytes
            taken[held.device] = taken.get(held.device, 0) + bytes_
    return taken


def _parts(notation: str) -> list[str]:
    return notation.replace(" ", "").split("+")


def _meant(part: str, declared: Deployment, board: Board) -> Plan | None:
    """What a part of the notation describes on a fleet that nobody uses; None where it is too small even then.

    It is asked for after every input while a baseline is pinned, so it is remembered while nothing changes.
    """
    books = board.books
    revision = books.revision("deployments", declared.name)
    key = (part, declared.name, revision, books.fleet_changes)
    if key not in board.meant:
        if len(board.meant) >= MEANINGS_LIMIT:
            board.meant.clear()
        share = described(part, declared, books.fleet())
        board.meant[key] = None if share is None else share.plan
    return board.meant[key]


def _like(meant: Plan, part: str, plans: list[Plan]) -> Plan | None:
    """The first plan of that form; on these very devices where the notation names them."""
    for plan in plans:
        same = _form(plan) == _form(meant)
        if same and ("@" not in part or plan.devices == meant.devices):
            return plan
    return None


def _form(plan: Plan) -> tuple[int, tuple[int, ...]]:
    return plan.tp, tuple(stage.layers.count for stage in plan.stages)
