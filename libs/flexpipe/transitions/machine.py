"""The executor as a machine: it takes orders and reports, and moves every open shift one persisted step at a time.

Its state is what the buckets say and the inputs since. One call makes at most one write of a record or a route entry;
the outcome comes back before anything else, and the next call goes on from there. So "persist, then act" is the order
of effects, and a restart finds every shift at the entrance of a step.
"""

from __future__ import annotations

from flexpipe.events.catalog import parse
from flexpipe.events.hatch import Urgent
from flexpipe.events.message import Message
from flexpipe.events.plan import CommandSuperseded, EngineFailed, EngineLost
from flexpipe.events.route import RouteApplied
from flexpipe.events.shift import OrderShift, ShiftRefused
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.frozen import Frozen
from flexpipe.kernel.machine import (
    Delivered,
    Effects,
    Entry,
    Input,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.transitions import conduct, mishaps, recovery
from flexpipe.transitions.answers import absorb
from flexpipe.transitions.board import Board
from flexpipe.transitions.case import Case
from flexpipe.transitions.conduct import How
from flexpipe.transitions.hatch import Hatch, HatchState
from flexpipe.transitions.losses import Loss
from flexpipe.transitions.orders import Taken, consider, known
from flexpipe.transitions.outbox import Outbox
from flexpipe.transitions.perils import peril
from flexpipe.transitions.progress import UNDOABLE_PHASES, Flight, Stage
from flexpipe.transitions.recovery import Boot
from flexpipe.transitions.step import Again, Close, Go, Reserve, Turn, Undo
from flexpipe.transitions.steps import STEPS

OVERTAKEN_LIMIT_S = 12.0
"""How long an order waits for what it rests on. Watched buckets are compared in full every ten seconds."""


class _Waiting(Frozen):
    """An order not yet considered, and until when it waits for what its sender had seen."""

    order: OrderShift
    until_s: float


class _Snapshot(Frozen):
    entries: tuple[Entry, ...]
    flights: tuple[Flight, ...]
    applied: tuple[tuple[str, str, int], ...]
    pending: tuple[str, ...]
    writer: tuple[str, int] | None
    resuming: tuple[tuple[str, int], ...]
    orders: tuple[_Waiting, ...]
    losses: tuple[Loss, ...]
    hatch: HatchState
    boot: Boot
    now_s: float


class Executor:
    """The only writer of route entries, shift records and reservations. Made empty; `Started` tells it the world."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._board = Board()
        self._pending: list[str] = []  # writes whose outcome is still to come, in order
        self._resuming: set[tuple[str, int]] = set()  # flights to be taken up anew
        self._orders: list[_Waiting] = []
        self._losses: list[Loss] = []
        self._hatch = Hatch()
        self._boot = Boot.NOT_STARTED

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input. Raises BrokenInvariant where another leader or impossible state shows itself."""
        self._board.now_s = now_s
        match event:
            case Started():
                self._start(now_s, event)
            case Watched():
                recovery.learn(event.entry, self._board.books)
            case Stored():
                self._stored(event)
            case Delivered():
                message = parse(event.type, event.message)
                if isinstance(message, Urgent):
                    self._hatch.hear(message, event, now_s)
                else:
                    self._hear(message)
            case Woken():
                pass
            case _:
                raise BrokenInvariant(f"the executor does not know {type(event).__name__}")
        out = Outbox(self._board.books)
        while not self._pending and self._turn(out):
            self._pending = list(out.writes)
        return Effects(do=tuple(out.effects), wake_at_s=self._next_wake())

    # -- taking in ------------------------------------------------------------------------------

    def _start(self, now_s: float, started: Started) -> None:
        self._forget()
        self._board.now_s = now_s
        for entry in started.entries:
            self._board.books.learn(entry)
        self._board.flights = recovery.open_flights(self._board.books)
        self._resuming = set(self._board.flights)
        self._hatch.begin(self._board)
        self._boot = Boot.TERMS

    def _hear(self, message: Message) -> None:
        match message:
            case OrderShift():
                until_s = self._board.now_s + OVERTAKEN_LIMIT_S
                self._orders.append(_Waiting(order=message, until_s=until_s))
            case RouteApplied():
                router = (message.deployment, message.router)
                self._board.applied[router] = max(
                    self._board.applied.get(router, 0), message.revision
                )
            case EngineLost() | EngineFailed():
                self._losses.append(
                    Loss(
                        plan=message.plan,
                        node=message.node,
                        fence=message.fence,
                        reason=message.reason,
                        log_tail=message.log_tail,
                        started=isinstance(message, EngineLost),
                    )
                )
            case CommandSuperseded():
                self._superseded(message)
            case _:
                for key in sorted(self._board.flights):
                    self._board.flights[key] = absorb(self._board.flights[key], message)

    def _superseded(self, message: CommandSuperseded) -> None:
        """A target that has accepted a higher term obeys another executor: this one must not go on."""
        name, highest = message.fence.deployment, message.highest
        entry = self._board.books.route(name)
        records = [f.record.term for key, f in self._board.flights.items() if key[0] == name]
        term = max([0 if entry is None else entry.term, *records])
        if highest.term > term:
            raise BrokenInvariant(
                f"{message.target} obeys term {highest.term} of {name}, this executor leads term {term}"
            )
        asked = self._board.flights.get((name, message.fence.shift))
        if asked is not None and not asked.holds_slot and STEPS[asked.progress.stage].moves:
            # The router hands over for a later shift: what it still has here breaks off and is replayed at the stop.
            asked = asked.noted(f"router {message.target} follows shift {highest.shift} already")
            answered = asked.progress.with_answer(message.target)
            self._board.flights[asked.key] = asked.model_copy(update={"progress": answered})
        key = (name, highest.shift)
        if key in self._board.flights and highest.step > self._board.flights[key].record.step:
            self._board.flights[key] = self._board.flights[key].with_record(step=highest.step)

    def _stored(self, stored: Stored) -> None:
        for entry in stored.entries:
            self._board.books.learn(entry)
        if stored.write_id not in self._pending:
            return
        if stored.outcome == "written":
            self._pending.remove(stored.write_id)
            return
        # The rest of that list was not performed: nothing more of it will be heard.
        self._pending.clear()
        recovery.check_leadership(stored, self._board.books, self._board.flights)
        if self._boot is not Boot.DONE:
            raise BrokenInvariant("somebody else wrote while this executor took over")
        if self._board.writer is not None and self._board.writer in self._board.flights:
            record = self._board.books.record(*self._board.writer)
            if record is None:
                raise BrokenInvariant(f"shift {self._board.writer} could not be recorded")
            self._board.flights[self._board.writer] = Flight.of(record)
            self._resuming.add(self._board.writer)

    # -- going on -------------------------------------------------------------------------------

    def _turn(self, out: Outbox) -> bool:
        """Do the first thing that is due. False where nothing is."""
        self._board.writer = None
        if self._boot is Boot.NOT_STARTED:
            return False
        if self._boot is not Boot.DONE:
            self._boot = recovery.take_over(self._boot, self._board.books, self._board.flights, out)
            return True
        return (
            self._hatch.obey(self._board, out)
            or self._take_order(out)
            or mishaps.take_reported(self._board, self._losses, out)
            or mishaps.take_stranded(self._board, out)
            or self._resume(out)
            or mishaps.release_stranded(self._board, out)
            or mishaps.rescue(self._board, out)
            or self._hatch.keep(self._board, out)
            or self._go_on(out)
        )

    def _take_order(self, out: Outbox) -> bool:
        waiting = next((each for each in self._orders if self._is_due(each)), None)
        if waiting is None:
            return False
        self._orders.remove(waiting)
        order = waiting.order
        cases = self._board.cases()
        if known(order, self._board.books, cases):
            return True
        answer = consider(order, self._board.now_s, self._board.books, cases)
        match answer:
            case Taken():
                mishaps.begin(self._board, answer, out)
            case reason:
                refused = ShiftRefused(
                    deployment=order.order.deployment, order_id=order.order_id, reason=reason
                )
                out.say(refused)
        return True

    def _is_due(self, waiting: _Waiting) -> bool:
        """Whether this machine knows what the order rests on, or has waited for it long enough."""
        seen = waiting.order.seen
        known = all(
            self._board.books.revision(each.bucket, each.key) >= each.revision for each in seen
        )
        return known or self._board.now_s >= waiting.until_s

    def _resume(self, out: Outbox) -> bool:
        if not self._resuming:
            return False
        key = min(self._resuming)
        self._resuming.discard(key)
        case = self._board.case(recovery.relieved(self._board.flights[key], self._board.flights))
        stay = Go(case.record.phase, case.progress.stage)
        self._board.keep(conduct.enter(case, out, stay, How.RESUMED))
        return True

    def _go_on(self, out: Outbox) -> bool:
        for key in sorted(self._board.flights):
            case = self._board.case(self._board.flights[key])
            if case.progress.stage is Stage.FREEZE and not case.progress.freeze_revision:
                self._board.flights[key] = case.flight.with_progress(freeze_revision=case.revision)
                case = self._board.case(self._board.flights[key])
            if self._advance(case, out):
                return True
        return False

    def _advance(self, case: Case, out: Outbox) -> bool:
        if case.progress.unsent:
            self._board.keep(conduct.send(case, out))
            return True
        if case.progress.owed:
            self._board.keep(conduct.tell_lost(case, out))
            return True
        danger = peril(case) if case.record.phase in UNDOABLE_PHASES else None
        turn: Turn | None = danger or STEPS[case.progress.stage].judge(case)
        match turn:
            case None:
                return False
            case Go():
                self._board.keep(conduct.enter(case, out, turn))
            case Again(note):
                stay = Go(case.record.phase, case.progress.stage, (note,))
                self._board.keep(conduct.enter(case, out, stay, How.AGAIN))
            case Undo():
                self._board.keep(conduct.undo(case, out, turn))
            case Reserve(changes):
                self._board.writer = case.flight.key
                out.put_all("reservations", changes)
            case Close(reason):
                conduct.close(case, out, reason)
                del self._board.flights[case.flight.key]
        return True

    # -- own state ------------------------------------------------------------------------------

    def _next_wake(self) -> float | None:
        deadlines: list[float | None] = [
            f.progress.deadline_s for f in self._board.flights.values()
        ]
        deadlines += [waiting.until_s for waiting in self._orders]
        deadlines.append(self._hatch.next_wake_s(self._board.now_s))
        return min((each for each in deadlines if each is not None), default=None)

    def snapshot(self) -> str:
        """Everything the machine knows, as canonical JSON."""
        return _Snapshot(
            entries=self._board.books.entries(),
            flights=tuple(self._board.flights[key] for key in sorted(self._board.flights)),
            applied=tuple((*key, self._board.applied[key]) for key in sorted(self._board.applied)),
            pending=tuple(self._pending),
            writer=self._board.writer,
            resuming=tuple(sorted(self._resuming)),
            orders=tuple(self._orders),
            losses=tuple(self._losses),
            hatch=self._hatch.state,
            boot=self._boot,
            now_s=self._board.now_s,
        ).canonical_json()

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot."""
        state = _Snapshot.model_validate_json(snapshot)
        self._forget()
        for entry in state.entries:
            self._board.books.learn(entry)
        self._board.flights = {flight.key: flight for flight in state.flights}
        self._board.applied = {(name, router): rev for name, router, rev in state.applied}
        self._pending = list(state.pending)
        self._board.writer = state.writer
        self._resuming = set(state.resuming)
        self._orders = list(state.orders)
        self._losses = list(state.losses)
        self._hatch = Hatch(state.hatch)
        self._boot = state.boot
        self._board.now_s = state.now_s
