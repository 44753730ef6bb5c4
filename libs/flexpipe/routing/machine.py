"""The router's brain: which sequence goes to which plan, who waits, who moves, and what is said of it.

Mounted by the router service, by the virtual-clock harness and by replay. It sees counts, never tokens, and it is
the only one that asks for `Dispatch`: once a route entry is in force here, no later dispatch goes to a plan that it
does not admit, and only then is `RouteApplied` said.
"""

from __future__ import annotations

import json

from pydantic import TypeAdapter

from flexpipe.events.catalog import parse
from flexpipe.events.route import MoveSequences
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.frozen import canonical_json
from flexpipe.kernel.machine import (
    Delivered,
    Effects,
    Input,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.routing import admission, attempts, moving, reports, routes
from flexpipe.routing.effects import RereadRoutes
from flexpipe.routing.inputs import (
    AttemptFailed,
    ClientGone,
    FirstToken,
    ProbeAnswered,
    ReportsPaced,
    RequestArrived,
    RouteLearned,
    RouterStopping,
    SequenceCut,
    SequenceEnded,
    TokensCounted,
)
from flexpipe.routing.places import Places
from flexpipe.routing.state import DeploymentState, SequenceState, Stage, State, Turn

DISCONNECTED = "disconnected"
"""The finish of a sequence whose client hung up."""

_STATE: TypeAdapter[State] = TypeAdapter(State)


class Routing:
    """One router's machine. `url` is where clients reach it, written to the roster."""

    WATCHES = ("routes", "deployments", "roster")
    HEARS = (MoveSequences,)

    def __init__(self, router: str, url: str) -> None:
        self._state = State(router=router, url=url)
        self._places = Places()

    def handle(self, now_s: float, event: Input) -> Effects:
        """Take one input. Raises BrokenInvariant for what can only be a fault of ours."""
        turn = Turn(state=self._state, places=self._places, now_s=now_s)
        for name in self._take(turn, event):
            self._settle(turn, self._state.deployments[name])
        reports.load_due(turn)
        return Effects(do=tuple(turn.do), wake_at_s=self._wake_at_s(turn))

    def snapshot(self) -> str:
        """Everything it knows."""
        return canonical_json(_STATE.dump_python(self._state, mode="json"))

    def restore(self, snapshot: str) -> None:
        """Become the machine that gave this snapshot."""
        self._state = _STATE.validate_python(json.loads(snapshot))
        self._state.in_order_of_arrival()
        self._places = Places()
        for sequence in self._state.sequences.values():
            self._places.enter(sequence)

    # -- inputs -------------------------------------------------------------------------------

    def _take(self, turn: Turn, event: Input) -> tuple[str, ...]:
        """Note what happened; gives the deployments to be settled."""
        state = self._state
        match event:
            case RequestArrived():
                admission.arrive(turn, event)
                return (event.deployment,) if event.deployment in state.deployments else ()
            case FirstToken() | SequenceCut() | AttemptFailed():
                return self._heard(turn, event)
            case SequenceEnded() | ClientGone():
                return self._ended(turn, event)
            case TokensCounted():
                self._counted(turn, event)
            case Watched() | RouteLearned():
                return self._shown(turn, event)
            case Delivered():
                return self._delivered(turn, event)
            case Stored():
                self._stored(turn, event)
            case Started():
                self._started(turn, event)
            case ProbeAnswered():
                attempts.probed(turn, event)
            case ReportsPaced() | RouterStopping():
                self._told(turn, event)
            case Woken():
                pass
            case _:
                raise BrokenInvariant(f"the router has no use for {type(event).__name__}")
        return tuple(sorted(state.deployments))

    def _told(self, turn: Turn, event: ReportsPaced | RouterStopping) -> None:
        """The process has its say."""
        match event:
            case ReportsPaced():
                reports.pace(turn, event.load_every_s)
            case RouterStopping():
                self._state.stopping = True

    def _shown(self, turn: Turn, event: Watched | RouteLearned) -> tuple[str, ...]:
        """A bucket or a gate showed what it holds."""
        match event:
            case Watched():
                name = routes.watched(turn, event.entry)
            case RouteLearned():
                name = routes.learned(turn, event.entry)
        routes.serve_models(turn)
        return () if name is None else (name,)

    def _heard(
        self, turn: Turn, event: FirstToken | SequenceCut | AttemptFailed
    ) -> tuple[str, ...]:
        """Word of an attempt; that of an epoch gone by concerns nobody."""
        sequence = self._state.sequences.get(event.sequence)
        if sequence is None:
            return ()
        if not attempts.at_engine(sequence, event.epoch):
            if isinstance(event, FirstToken):
                attempts.began_late(turn, sequence)
            return ()
        reports.note_tokens(turn, sequence, event.tokens)
        match event:
            case FirstToken():
                self._first_token(turn, sequence, event)
            case SequenceCut():
                if sequence.stage is not Stage.CUTTING:
                    raise BrokenInvariant(
                        f"sequence {sequence.id} was cut, but nobody asked for it"
                    )
                moving.let_go(turn, sequence)
            case AttemptFailed():
                if sequence.stage is Stage.CUTTING:
                    moving.let_go(turn, sequence)
                else:
                    attempts.failed(turn, sequence, event)
        return (sequence.deployment,)

    def _first_token(self, turn: Turn, sequence: SequenceState, event: FirstToken) -> None:
        assert sequence.plan is not None
        if sequence.stage is Stage.DISPATCHED:
            turn.place(sequence, Stage.STREAMING)
        sequence.begun = True
        sequence.waiting_since_s = None
        sequence.counted_at_s = turn.now_s
        attempts.works(turn, turn.deployment(sequence.deployment), sequence.plan)
        reports.note_first_token(turn, sequence)
        if sequence.stage is Stage.STREAMING:
            moving.arrived(turn, sequence, event.pause_ms)

    def _ended(self, turn: Turn, event: SequenceEnded | ClientGone) -> tuple[str, ...]:
        sequence = self._state.sequences.get(event.sequence)
        if sequence is None:
            return ()
        finish = event.finish if isinstance(event, SequenceEnded) else DISCONNECTED
        reports.note_tokens(turn, sequence, event.tokens)
        moving.left(turn, sequence, finish)
        turn.remove(sequence)
        reports.note_closed(turn, sequence, finish, event.segments)
        return (sequence.deployment,)

    def _counted(self, turn: Turn, event: TokensCounted) -> None:
        for count in event.counts:
            sequence = self._state.sequences.get(count.sequence)
            if sequence is not None:
                reports.note_tokens(turn, sequence, count.tokens)
        moving.counted(turn)
        if self._state.load_asked_at_s is not None:
            reports.say_load(turn)

    def _delivered(self, turn: Turn, event: Delivered) -> tuple[str, ...]:
        order = parse(event.type, event.message)
        if not isinstance(order, MoveSequences):
            raise BrokenInvariant(f"the router does not hear {event.type}")
        return (moving.command(turn, order, event.message_id, event.traceparent),)

    def _started(self, turn: Turn, event: Started) -> None:
        """Sequences of an earlier life went with their connections; fences are kept."""
        state = self._state
        state.life = f"{turn.now_s:.6f}"
        state.since_s = turn.now_s
        state.stopping = False
        for sequence in tuple(state.sequences.values()):
            turn.remove(sequence)
        state.load_at_s = turn.now_s + state.load_every_s
        state.load_asked_at_s = None
        state.served = ""
        for name in sorted(state.deployments):
            fresh = DeploymentState(name=name, window_since_s=turn.now_s)
            fresh.highest = state.deployments[name].highest
            state.deployments[name] = fresh
        for entry in sorted(event.entries, key=lambda each: (each.bucket, each.key)):
            routes.watched(turn, entry)
        routes.serve_models(turn)
        seats = [each for each in event.entries if each.bucket == "roster"]
        if not any(each.key == state.router and each.value is not None for each in seats):
            routes.take_seat(turn, 0)

    def _stored(self, turn: Turn, event: Stored) -> None:
        """The seat was written: the routes are read anew. A seat that somebody holds is ours as well."""
        held = [each for each in event.entries if each.key == self._state.router]
        if event.outcome == "conflict" and held and held[0].value is None:
            routes.take_seat(turn, held[0].revision)
        else:
            turn.ask(RereadRoutes())

    # -- after every input --------------------------------------------------------------------

    def _settle(self, turn: Turn, deployment: DeploymentState) -> None:
        """Let everything that can go on go on."""
        moving.cut_timeouts(turn, deployment)
        attempts.probes_due(turn, deployment)
        attempts.orphans_due(turn, deployment)
        admission.drain(turn, deployment)
        moving.advance(turn, deployment)
        admission.expire(turn, deployment)

    def _wake_at_s(self, turn: Turn) -> float | None:
        state = self._state
        times = [] if state.load_at_s is None else [state.load_at_s]
        if state.load_asked_at_s is not None:
            times = [state.load_asked_at_s + reports.COUNT_LIMIT_S]
        for name in sorted(state.deployments):
            times.extend(moving.wake_at_s(turn, state.deployments[name]))
            times.extend(attempts.wake_at_s(turn, state.deployments[name]))
        return min(times, default=None)
