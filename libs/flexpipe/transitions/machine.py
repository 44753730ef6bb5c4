"""The executor as a machine: it takes orders and reports, and moves every open shift one persisted step at a time.

Its state is what the buckets say and the inputs since. One call makes at most one write of a record or a route entry;
the outcome comes back before anything else, and the next call goes on from there. So "persist, then act" is the order
of effects, and a restart finds every shift at the entrance of a step.
"""

from __future__ import annotations

from flexpipe.events.catalog import parse
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
from flexpipe.model.shift import Phase
from flexpipe.transitions import conduct, losses, recovery
from flexpipe.transitions.answers import absorb
from flexpipe.transitions.books import Books
from flexpipe.transitions.case import Case
from flexpipe.transitions.conduct import How
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
    boot: Boot
    now_s: float


class Executor:
    """The only writer of route entries, shift records and reservations. Made empty; `Started` tells it the world."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._books = Books()
        self._flights: dict[tuple[str, int], Flight] = {}
        self._applied: dict[tuple[str, str], int] = {}  # (deployment, router) → route revision
        self._pending: list[str] = []  # writes whose outcome is still to come, in order
        self._writer: tuple[str, int] | None = None  # the flight that made them
        self._resuming: set[tuple[str, int]] = set()  # flights to be taken up anew
        self._orders: list[_Waiting] = []
        self._losses: list[Loss] = []
        self._boot = Boot.NOT_STARTED
        self._now_s = 0.0

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input. Raises BrokenInvariant where another leader or impossible state shows itself."""
        self._now_s = now_s
        match event:
            case Started():
                self._forget()
                self._now_s = now_s
                for entry in event.entries:
                    self._books.learn(entry)
                self._flights = recovery.open_flights(self._books)
                self._resuming = set(self._flights)
                self._boot = Boot.TERMS
            case Watched():
                recovery.learn(event.entry, self._books)
            case Stored():
                self._stored(event)
            case Delivered():
                self._hear(parse(event.type, event.message))
            case Woken():
                pass
            case _:
                raise BrokenInvariant(f"the executor does not know {type(event).__name__}")
        out = Outbox(self._books)
        while not self._pending and self._turn(out):
            self._pending = list(out.writes)
        return Effects(do=tuple(out.effects), wake_at_s=self._next_wake())

    # -- taking in ------------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        match message:
            case OrderShift():
                until_s = self._now_s + OVERTAKEN_LIMIT_S
                self._orders.append(_Waiting(order=message, until_s=until_s))
            case RouteApplied():
                router = (message.deployment, message.router)
                self._applied[router] = max(self._applied.get(router, 0), message.revision)
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
                for key in sorted(self._flights):
                    self._flights[key] = absorb(self._flights[key], message)

    def _superseded(self, message: CommandSuperseded) -> None:
        """A target that has accepted a higher term obeys another executor: this one must not go on."""
        name, highest = message.fence.deployment, message.highest
        entry = self._books.route(name)
        records = [f.record.term for key, f in self._flights.items() if key[0] == name]
        term = max([0 if entry is None else entry.term, *records])
        if highest.term > term:
            raise BrokenInvariant(
                f"{message.target} obeys term {highest.term} of {name}, this executor leads term {term}"
            )
        asked = self._flights.get((name, message.fence.shift))
        if asked is not None and not asked.holds_slot and STEPS[asked.progress.stage].moves:
            # The router hands over for a later shift: what it still has here breaks off and is replayed at the stop.
            asked = asked.noted(f"router {message.target} follows shift {highest.shift} already")
            answered = asked.progress.with_answer(message.target)
            self._flights[asked.key] = asked.model_copy(update={"progress": answered})
        key = (name, highest.shift)
        if key in self._flights and highest.step > self._flights[key].record.step:
            self._flights[key] = self._flights[key].with_record(step=highest.step)

    def _stored(self, stored: Stored) -> None:
        for entry in stored.entries:
            self._books.learn(entry)
        if stored.write_id not in self._pending:
            return
        if stored.outcome == "written":
            self._pending.remove(stored.write_id)
            return
        # The rest of that list was not performed: nothing more of it will be heard.
        self._pending.clear()
        recovery.check_leadership(stored, self._books, self._flights)
        if self._boot is not Boot.DONE:
            raise BrokenInvariant("somebody else wrote while this executor took over")
        if self._writer is not None and self._writer in self._flights:
            record = self._books.record(*self._writer)
            if record is None:
                raise BrokenInvariant(f"shift {self._writer} could not be recorded")
            self._flights[self._writer] = Flight.of(record)
            self._resuming.add(self._writer)

    # -- going on -------------------------------------------------------------------------------

    def _turn(self, out: Outbox) -> bool:
        """Do the first thing that is due. False where nothing is."""
        self._writer = None
        if self._boot is Boot.NOT_STARTED:
            return False
        if self._boot is not Boot.DONE:
            self._boot = recovery.take_over(self._boot, self._books, self._flights, out)
            return True
        return (
            self._take_order(out)
            or self._take_loss(out)
            or self._resume(out)
            or self._rescue(out)
            or self._go_on(out)
        )

    def _take_order(self, out: Outbox) -> bool:
        waiting = next((each for each in self._orders if self._is_due(each)), None)
        if waiting is None:
            return False
        self._orders.remove(waiting)
        order = waiting.order
        cases = self._cases()
        if known(order, self._books, cases):
            return True
        answer = consider(order, self._now_s, self._books, cases)
        match answer:
            case Taken():
                self._begin(answer, out)
            case reason:
                refused = ShiftRefused(
                    deployment=order.order.deployment, order_id=order.order_id, reason=reason
                )
                out.say(refused)
        return True

    def _is_due(self, waiting: _Waiting) -> bool:
        """Whether this machine knows what the order rests on, or has waited for it long enough."""
        seen = waiting.order.seen
        known = all(self._books.revision(each.bucket, each.key) >= each.revision for each in seen)
        return known or self._now_s >= waiting.until_s

    def _take_loss(self, out: Outbox) -> bool:
        for index, loss in enumerate(self._losses):
            case = losses.concerned(loss, self._cases())
            if case is not None and case.record.phase is Phase.COMMITTING:
                continue  # it is decided within this very moment; then the plan is somebody else's
            del self._losses[index]
            if case is not None:
                self._lose(case, loss, out)
            elif loss.started:
                flight = losses.outside(loss, self._now_s, self._books)
                if flight is not None:
                    self._keep(conduct.begin(self._case(flight), out))
            return True
        return False

    def _rescue(self, out: Outbox) -> bool:
        """Let in again what still runs of a gear that is otherwise lost."""
        cases = self._cases()
        for entry in self._books.routes():
            order = losses.rescue(entry, self._now_s, self._books, cases)
            if order is None or known(order, self._books, cases):
                continue
            answer = consider(order, self._now_s, self._books, cases)
            if isinstance(answer, Taken):
                self._begin(answer, out)
                return True
        return False

    def _begin(self, taken: Taken, out: Outbox) -> None:
        self._keep(conduct.begin(self._case(taken.flight), out))
        for flight in taken.ceding:
            self._flights[flight.key] = flight
            out.put("shifts", flight.record.key, flight.stored())

    def _lose(self, case: Case, loss: Loss, out: Outbox) -> None:
        if loss.plan in case.progress.lost:
            return
        if losses.is_undoing(loss, case):
            why = Undo(loss.sentence, loss.log_tail, lost=(loss.plan,))
            self._keep(conduct.undo(case, out, why))
            return
        lost = tuple(sorted({*case.progress.lost, loss.plan}))
        moves = STEPS[case.progress.stage].moves
        owed = case.progress.owed if moves else tuple(sorted({*case.progress.owed, loss.plan}))
        flight = case.flight.with_progress(lost=lost, owed=owed).noted(loss.sentence)
        stay = Go(case.record.phase, case.progress.stage)
        self._keep(conduct.enter(case.after(flight), out, stay, How.AMENDED))

    def _resume(self, out: Outbox) -> bool:
        if not self._resuming:
            return False
        key = min(self._resuming)
        self._resuming.discard(key)
        case = self._case(recovery.relieved(self._flights[key], self._flights))
        stay = Go(case.record.phase, case.progress.stage)
        self._keep(conduct.enter(case, out, stay, How.RESUMED))
        return True

    def _go_on(self, out: Outbox) -> bool:
        for key in sorted(self._flights):
            case = self._case(self._flights[key])
            if case.progress.stage is Stage.FREEZE and not case.progress.freeze_revision:
                self._flights[key] = case.flight.with_progress(freeze_revision=case.revision)
                case = self._case(self._flights[key])
            if self._advance(case, out):
                return True
        return False

    def _advance(self, case: Case, out: Outbox) -> bool:
        if case.progress.unsent:
            self._keep(conduct.send(case, out))
            return True
        if case.progress.owed:
            self._keep(conduct.tell_lost(case, out))
            return True
        danger = peril(case) if case.record.phase in UNDOABLE_PHASES else None
        turn: Turn | None = danger or STEPS[case.progress.stage].judge(case)
        match turn:
            case None:
                return False
            case Go():
                self._keep(conduct.enter(case, out, turn))
            case Again(note):
                stay = Go(case.record.phase, case.progress.stage, (note,))
                self._keep(conduct.enter(case, out, stay, How.AGAIN))
            case Undo():
                self._keep(conduct.undo(case, out, turn))
            case Reserve(changes):
                self._writer = case.flight.key
                out.put_all("reservations", changes)
            case Close(reason):
                conduct.close(case, out, reason)
                del self._flights[case.flight.key]
        return True

    # -- own state ------------------------------------------------------------------------------

    def _keep(self, flight: Flight) -> None:
        self._flights[flight.key] = flight
        self._writer = flight.key

    def _case(self, flight: Flight) -> Case:
        name = flight.record.deployment
        applied = {key[1]: self._applied[key] for key in sorted(self._applied) if key[0] == name}
        return Case(now_s=self._now_s, flight=flight, books=self._books, applied=applied)

    def _cases(self) -> dict[tuple[str, int], Case]:
        return {key: self._case(self._flights[key]) for key in sorted(self._flights)}

    def _next_wake(self) -> float | None:
        deadlines: list[float | None] = [f.progress.deadline_s for f in self._flights.values()]
        deadlines += [waiting.until_s for waiting in self._orders]
        return min((each for each in deadlines if each is not None), default=None)

    def snapshot(self) -> str:
        """Everything the machine knows, as canonical JSON."""
        return _Snapshot(
            entries=self._books.entries(),
            flights=tuple(self._flights[key] for key in sorted(self._flights)),
            applied=tuple((*key, self._applied[key]) for key in sorted(self._applied)),
            pending=tuple(self._pending),
            writer=self._writer,
            resuming=tuple(sorted(self._resuming)),
            orders=tuple(self._orders),
            losses=tuple(self._losses),
            boot=self._boot,
            now_s=self._now_s,
        ).canonical_json()

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot."""
        state = _Snapshot.model_validate_json(snapshot)
        self._forget()
        for entry in state.entries:
            self._books.learn(entry)
        self._flights = {flight.key: flight for flight in state.flights}
        self._applied = {(name, router): rev for name, router, rev in state.applied}
        self._pending = list(state.pending)
        self._writer = state.writer
        self._resuming = set(state.resuming)
        self._orders = list(state.orders)
        self._losses = list(state.losses)
        self._boot = state.boot
        self._now_s = state.now_s
