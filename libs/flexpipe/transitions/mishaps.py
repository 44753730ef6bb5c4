"""What the machine does when engines or devices are lost: each loss goes to the shift that it concerns, or begins one.

Called by the machine, one turn at a time; each function says whether it did something.
"""

from __future__ import annotations

from flexpipe.model.shift import Phase
from flexpipe.transitions import conduct, losses, reservations
from flexpipe.transitions.board import Board
from flexpipe.transitions.case import Case
from flexpipe.transitions.conduct import How
from flexpipe.transitions.losses import Loss
from flexpipe.transitions.orders import Taken, consider, known
from flexpipe.transitions.outbox import Outbox
from flexpipe.transitions.step import Go, Undo
from flexpipe.transitions.steps import STEPS


def begin(board: Board, taken: Taken, out: Outbox) -> None:
    """Open the record of an order that was taken."""
    board.keep(conduct.begin(board.case(taken.flight), out))
    for flight in taken.ceding:
        board.flights[flight.key] = flight
        out.put("shifts", flight.record.key, flight.stored())


def take_reported(board: Board, reported: list[Loss], out: Outbox) -> bool:
    """Take the first report that can be acted on off the list."""
    for index, loss in enumerate(reported):
        case = losses.concerned(loss, board.cases())
        if case is not None and case.record.phase is Phase.COMMITTING:
            continue  # it is decided within this very moment; then the plan is somebody else's
        del reported[index]
        if case is not None:
            _lose(board, case, loss, out)
        elif loss.started:
            _cut_down(board, loss, out)
        return True
    return False


def take_stranded(board: Board, out: Outbox) -> bool:
    """Plans whose devices left the fleet are lost, whether or not a worker is left to say so."""
    for loss in losses.stranded(board.books):
        case = losses.concerned(loss, board.cases())
        if case is None:
            if _cut_down(board, loss, out):
                return True
        elif not (
            loss.plan in case.progress.lost
            or case.record.phase is Phase.COMMITTING
            or losses.is_undoing(loss, case)  # the peril of its shift says so
        ):
            _lose(board, case, loss, out)
            return True
    return False


def release_stranded(board: Board, out: Outbox) -> bool:
    """End what is reserved on devices that left the fleet."""
    changes = reservations.stranded(board.books)
    if changes:
        out.put_all("reservations", changes)
    return bool(changes)


def rescue(board: Board, out: Outbox) -> bool:
    """Let in again what still runs of a gear that is otherwise lost."""
    cases = board.cases()
    for entry in board.books.routes():
        order = losses.rescue(entry, board.now_s, board.books, cases)
        if order is None or known(order, board.books, cases):
            continue
        answer = consider(order, board.now_s, board.books, cases)
        if isinstance(answer, Taken):
            begin(board, answer, out)
            return True
    return False


def _cut_down(board: Board, loss: Loss, out: Outbox) -> bool:
    flight = losses.outside(loss, board.now_s, board.books)
    if flight is not None:
        board.keep(conduct.begin(board.case(flight), out))
    return flight is not None


def _lose(board: Board, case: Case, loss: Loss, out: Outbox) -> None:
    if loss.plan in case.progress.lost:
        return
    if losses.is_undoing(loss, case):
        why = Undo(loss.sentence, loss.log_tail, lost=(loss.plan,))
        board.keep(conduct.undo(case, out, why))
        return
    lost = tuple(sorted({*case.progress.lost, loss.plan}))
    moves = STEPS[case.progress.stage].moves
    owed = case.progress.owed if moves else tuple(sorted({*case.progress.owed, loss.plan}))
    flight = case.flight.with_progress(lost=lost, owed=owed).noted(loss.sentence)
    stay = Go(case.record.phase, case.progress.stage)
    board.keep(conduct.enter(case.after(flight), out, stay, How.AMENDED))
