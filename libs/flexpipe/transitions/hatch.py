"""The escape hatch: what operators say on the urgent lane, carried out before anything else. Called by the machine.

A downshift is a wish that the route entry's pin keeps: whatever happens to shifts, engines or this process, the
executor goes on bringing the baseline in force until the pin is gone. Nothing here waits or writes by itself.
"""

from __future__ import annotations

from typing import Final, Literal

from flexpipe.events.hatch import DeploymentPinned, DeploymentUnpinned, Urgent
from flexpipe.events.outgoing import publish
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import Delivered
from flexpipe.model.route import Pin, RouteEntry
from flexpipe.model.shift import Phase
from flexpipe.transitions import conduct, mishaps
from flexpipe.transitions.board import Board
from flexpipe.transitions.outbox import Outbox
from flexpipe.transitions.progress import Stage
from flexpipe.transitions.step import Go, Undo
from flexpipe.transitions.urgent import (
    Asked,
    answer,
    asked_of,
    new_entry,
    of_pin,
    pin_of,
    span_of,
    undone_by,
)
from flexpipe.transitions.wish import Begins, Fails, InForce, Stand, Turns, Waits, stand

URGENT_AGE_LIMIT_S: Final = 600.0
"""An urgent message that waited longer is nobody's wish any more: who sent it has acted otherwise since."""
STOPS_WAITED: Final = 3
"""Limits of a stop that devices of a retiring plan are waited for, after its last sequences were moved: what takes
longer needs hands."""
ASKERS_LIMIT: Final = 16
"""Downshifts of one deployment that still get their last answer: more hands than that pull no hatch."""


class HatchState(Frozen):
    """What is remembered between two inputs."""

    queue: tuple[Asked, ...] = ()  # not carried out yet, in order
    owed: tuple[Asked, ...] = ()  # downshifts whose last answer is still owed
    waits: tuple[tuple[str, float], ...] = ()  # until when a baseline's devices are waited for


class Hatch:
    """Made empty; `begin` finds what a predecessor left."""

    def __init__(self, state: HatchState | None = None) -> None:
        state = state or HatchState()
        self._queue = list(state.queue)
        self._owed = list(state.owed)
        self._waits = dict(state.waits)
        self._failed: dict[str, tuple[int, bool, Fails]] = {}  # reckoned from these books already

    @property
    def state(self) -> HatchState:
        """For a snapshot."""
        waits = tuple(sorted(self._waits.items()))
        return HatchState(queue=tuple(self._queue), owed=tuple(self._owed), waits=waits)

    def begin(self, board: Board) -> None:
        """Answers that a predecessor may not have given: of downshifts that something is still open of."""
        for entry in board.books.routes():
            pin = entry.pin
            if pin is None or pin.downshift is None:
                continue
            settled = isinstance(self._stand(entry, board), InForce)
            if not settled or board.of(entry.deployment):
                self._owe(of_pin(entry.deployment, pin, pin.downshift))

    def hear(self, command: Urgent, delivered: Delivered, now_s: float) -> None:
        """Take in what an operator said."""
        self._queue.append(asked_of(command, delivered, now_s))

    def next_wake_s(self, now_s: float) -> float | None:
        """When a wait ends."""
        return min((at_s for at_s in self._waits.values() if at_s > now_s), default=None)

    # -- one turn ---------------------------------------------------------------------------------

    def obey(self, board: Board, out: Outbox) -> bool:
        """Carry out the first command, or its next part. False where nothing is due, or it must wait a moment."""
        if not self._queue:
            return False
        asked = self._queue[0]
        entry = board.books.route(asked.deployment)
        if asked.age_s > URGENT_AGE_LIMIT_S:
            limit = f"an urgent command counts for {URGENT_AGE_LIMIT_S:g} s"
            self._end(asked, "refused", f"it was said {asked.age_s:.0f} s ago; {limit}", board, out)
            return True
        if entry is None and board.books.deployment(asked.deployment) is None:
            says = f"deployment {asked.deployment} is not declared"
            self._end(asked, "refused", says, board, out)
            return True
        match asked.verb:
            case "downshift":
                self._pin(asked, entry, board, out)
                return True
            case "cancel":
                return self._cancel(asked, entry, board, out)
            case "unpin":
                self._unpin(asked, entry, board, out)
                return True

    def keep(self, board: Board, out: Outbox) -> bool:
        """Do what brings a pinned baseline nearer, and tell those who asked how it stands."""
        for entry in board.books.routes():
            pin = entry.pin
            if pin is None or pin.downshift is None:
                continue
            now = self._stand(entry, board)
            if self._act(entry, pin, now, board, out) or self._tell(entry, now, board, out):
                return True
        return False

    # -- downshift --------------------------------------------------------------------------------

    def _pin(self, asked: Asked, entry: RouteEntry | None, board: Board, out: Outbox) -> None:
        """Write the pin, and owe the answer once it is there. Twice is once while the first is not lost."""
        pin = None if entry is None else entry.pin
        if entry is None or pin is None or pin.downshift is None:
            self._write(asked, entry or new_entry(asked.deployment, board), pin_of(asked), out)
            return
        if pin.downshift == asked.message_id:
            pinned = DeploymentPinned(deployment=asked.deployment, reason=pin.reason, by=pin.by)
            out.do(publish(pinned, asked.message_id))
            out.do(span_of(asked, board.now_s))
        elif isinstance(self._stand(entry, board), Fails):
            self._waits.pop(asked.deployment, None)
            self._write(asked, entry, pin_of(asked), out)  # it is tried once more
            return
        self._queue.remove(asked)
        self._owe(asked)

    def _act(self, entry: RouteEntry, pin: Pin, now: Stand, board: Board, out: Outbox) -> bool:
        name = entry.deployment
        match now:
            case Turns(case):
                why = Undo(f"downshift by {pin.by}: {pin.reason}")
                board.keep(conduct.undo(case, out, why))
                return True
            case Waits(leaving):
                policy = entry.policy
                limit_s = policy.hand_over_limit_s + STOPS_WAITED * policy.release_limit_s
                self._waits.setdefault(name, board.now_s + limit_s)
                for case in leaving.cleaning:
                    if case.progress.stage is Stage.DRAIN:
                        note = f"its deadline ends now: the baseline of {name} needs its devices"
                        stage = Stage.FORCE if board.books.roster() else Stage.STOP
                        turn = Go(case.record.phase, stage, (note,))
                        board.keep(conduct.enter(case, out, turn))
                        return True
                return False
            case Begins(ready):
                self._waits.pop(name, None)
                mishaps.begin(board, ready.taken, out)
                return True
            case InForce():
                self._waits.pop(name, None)
                return False
            case _:
                return False

    def _tell(self, entry: RouteEntry, now: Stand, board: Board, out: Outbox) -> bool:
        """One who asked and does not know yet how it stands."""
        for asked in self._owed:
            if asked.deployment != entry.deployment:
                continue
            match now:
                case InForce():
                    self._end(asked, "done", now.says, board, out)
                    return True
                case Fails():
                    says = f"{now.says}; {asked.deployment} stays pinned"
                    self._end(asked, "refused", says, board, out)
                    return True
                case _ if not asked.told:
                    self._owed.remove(asked)
                    self._owe(asked.model_copy(update={"told": True}))
                    answer(asked, "under-way", now.says, board, out)
                    return True
        return False

    def _owe(self, asked: Asked) -> None:
        others = [each for each in self._owed if each.message_id != asked.message_id]
        mine = [each for each in others if each.deployment == asked.deployment]
        if len(mine) >= ASKERS_LIMIT:
            others.remove(mine[0])
        self._owed = [*others, asked]

    # -- cancel and unpin -------------------------------------------------------------------------

    def _cancel(self, asked: Asked, entry: RouteEntry | None, board: Board, out: Outbox) -> bool:
        name = asked.deployment
        undone = undone_by(asked, board)
        if undone is not None:  # said again to an executor that took over
            self._end(asked, "under-way", f"shift {undone} is undone", board, out)
            return True
        pin = None if entry is None else entry.pin
        wished = entry is not None and pin is not None and pin.downshift is not None
        if wished and entry and pin and not isinstance(self._stand(entry, board), InForce):
            self._give_up(name, f"cancelled by {asked.by}", board, out)
            self._write(asked, entry, pin.model_copy(update={"downshift": None}), out)
            return True
        case = board.in_slot(name)
        if case is None:
            says = f"no shift of {name} is in flight that could be undone"
            outcome: Literal["done", "refused"] = "refused"
            if asked.written:
                outcome, says = "done", f"the downshift is given up; {name} stays pinned"
            self._end(asked, outcome, says, board, out)
            return True
        shift = case.record.shift
        if case.record.phase in (Phase.RESERVING, Phase.COMMITTING):
            return False  # it is out of it within this very moment
        if case.record.phase is Phase.UNDOING:
            self._end(asked, "under-way", f"shift {shift} is being undone already", board, out)
        elif case.forward_only:
            says = f"shift {shift} goes forward only: {case.source.label} is losing its devices"
            self._end(asked, "refused", says, board, out)
        else:
            flight = case.flight.with_progress(cancelled_by=asked.message_id)
            why = Undo(f"cancelled by {asked.by}" + (f": {asked.reason}" if asked.reason else ""))
            board.keep(conduct.undo(case.after(flight), out, why))
            self._end(asked, "under-way", f"shift {shift} is undone", board, out)
        return True

    def _unpin(self, asked: Asked, entry: RouteEntry | None, board: Board, out: Outbox) -> None:
        name = asked.deployment
        if entry is not None and entry.pin is not None:
            self._write(asked, entry, None, out)
            return
        if asked.written:
            self._give_up(name, f"unpinned by {asked.by}", board, out)
            out.do(publish(DeploymentUnpinned(deployment=name, by=asked.by), asked.message_id))
        says = f"{name} is unpinned" if asked.written else f"{name} is not pinned"
        self._end(asked, "done", says, board, out)

    def _give_up(self, name: str, why: str, board: Board, out: Outbox) -> None:
        """Nobody goes on with a downshift: those who asked for it are told."""
        self._waits.pop(name, None)
        for asked in [each for each in self._owed if each.deployment == name]:
            self._end(asked, "refused", f"{why} before the baseline was in force", board, out)

    # -- words ------------------------------------------------------------------------------------

    def _stand(self, entry: RouteEntry, board: Board) -> Stand:
        """How a baseline stands. One out of reach stays so while no bucket changes: each step is stored there."""
        name, changes = entry.deployment, board.books.changes
        patient = board.now_s < self._waits.get(name, board.now_s + 1)
        known = self._failed.get(name)
        if known is not None and known[:2] == (changes, patient):
            return known[2]
        now = stand(entry, board, patient=patient)
        if isinstance(now, Fails):
            self._failed[name] = (changes, patient, now)
        return now

    def _write(self, asked: Asked, entry: RouteEntry, pin: Pin | None, out: Outbox) -> None:
        """Pin or unpin; the command stays at the head until the entry says so."""
        self._queue[0] = asked.model_copy(update={"written": True})
        text = entry.model_copy(update={"pin": pin}).canonical_json()
        out.put("routes", asked.deployment, text)

    def _end(
        self,
        asked: Asked,
        outcome: Literal["done", "under-way", "refused"],
        says: str,
        board: Board,
        out: Outbox,
    ) -> None:
        """The last answer to a command."""
        same = asked.message_id
        self._queue = [each for each in self._queue if each.message_id != same]
        self._owed = [each for each in self._owed if each.message_id != same]
        answer(asked, outcome, says, board, out)
