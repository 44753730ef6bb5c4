"""A router's clients and connections in virtual time: what the real machine of `routing` acts on in a world.

Plays `flexpipe.router` with the real ledger over the engines of `world_engines`: one attempt at a time, the one before
closed first, tokens judged by plan and epoch. What became of every stream stays readable after the router's death.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from flexpipe.engines import gate as gates
from flexpipe.kernel.machine import Effect, Input, Watched
from flexpipe.routing import effects, inputs
from flexpipe.routing.inputs import FailureKind
from flexpipe.routing.ledger import Accepted, SequenceLedger, broken_laws
from flexpipe.testing.world import World
from flexpipe.testing.world_engines import ORACLE, STEP_S, Engines

CONNECT_S: Final = 0.003
CUT_AGAIN_S: Final = 0.7
CUT_TRIES: Final = 4


@dataclass
class Stream:
    """One client's request, from its arrival to its end."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    resumable: bool
    ledger: SequenceLedger | None = None
    order: effects.Dispatch | None = None
    cutting: int | None = None
    first_of: int = 0
    begun: bool = False
    last_s: float | None = None
    finish: str | None = None
    pauses_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """As the machine is told; nothing is counted on the relay path."""
        return len(self.ledger) if self.ledger is not None and self.resumable else 0

    @property
    def rid(self) -> str:
        """The engine's name for the attempt in force."""
        return f"{self.id}.{0 if self.order is None else self.order.epoch:06d}"

    def verdicts(self) -> list[str]:
        """What is wrong with it: the ledger's law, and the oracle at every token."""
        found = list(self.faults)
        if self.ledger is None:
            return found
        entry = self.ledger.entry()
        found += broken_laws(entry)
        if list(entry.tokens) != ORACLE.continuation(self.prompt, len(entry.tokens)):
            found.append(f"{self.id}: its tokens are not those of the oracle")
        if self.finish == "length" and len(entry.tokens) != self.max_tokens:
            found.append(f"{self.id}: ended with {len(entry.tokens)} of {self.max_tokens} tokens")
        return found


class Streams:
    """All streams of one router, over its lives."""

    def __init__(self, world: World, engines: Engines, router: str, deployment: str) -> None:
        self.router = router
        self.all: dict[str, Stream] = {}
        self._world = world
        self._engines = engines
        self._deployment = deployment
        self._count = 0
        self._life = 0

    @property
    def open(self) -> list[Stream]:
        """Those whose client still waits."""
        return [stream for stream in self.all.values() if stream.finish is None]

    # -- clients ----------------------------------------------------------------------------------

    def arrive(self, max_tokens: int, *, resumable: bool = True, priority: int = 0) -> Stream:
        """A client asks; refused at once where the router's process is down."""
        self._count += 1
        prompt = tuple(16 + (self._count * 31 + place * 7) % 400 for place in range(12))
        stream = Stream(f"{self.router}-{self._count:04d}", prompt, max_tokens, resumable)
        self.all[stream.id] = stream
        if not self._world.mounts[self.router].up:
            stream.finish = "no router"
            return stream
        self._tell(
            inputs.RequestArrived(
                sequence=stream.id,
                deployment=self._deployment,
                prompt_tokens=len(prompt),
                max_tokens=max_tokens,
                resumable=resumable,
                reason=None if resumable else "tools",
                priority=priority,
            )
        )
        return stream

    def leave(self, stream: Stream) -> None:
        """A client hangs up."""
        if stream.finish is None:
            self._close(stream, "client gone")
            self._tell(inputs.ClientGone(sequence=stream.id, tokens=stream.tokens))

    def crash(self) -> None:
        """The router's process dies: every connection of it breaks."""
        self._world.kill(self.router)
        self._life += 1
        for stream in self.open:
            self._close(stream, "router died")

    # -- the machine ------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> Iterable[tuple[float, Input]]:
        """Do what the machine asks for."""
        match effect:
            case effects.Dispatch() | effects.Cut() | effects.Refuse() | effects.EndWithError():
                stream = self.all[effect.sequence]
                if stream.finish is None:
                    self._instruct(stream, effect)
            case effects.CountTokens():
                counts = tuple(
                    inputs.TokenCount(sequence=key, tokens=self.all[key].tokens)
                    for key in effect.sequences
                    if self.all[key].finish is None
                )
                self._tell(inputs.TokensCounted(counts=counts))
            case effects.Probe():
                self._later(0.01, lambda: self._probe(effect))
            case effects.ServeModels():
                pass
            case effects.RereadRoutes():
                for entry in self._world.buckets.all("routes"):
                    self._tell(Watched(entry=entry))
            case _:
                raise AssertionError(f"no hands for {type(effect).__name__}")
        return ()

    def _instruct(self, stream: Stream, effect: Effect) -> None:
        match effect:
            case effects.Dispatch():
                self._dispatch(stream, effect)
            case effects.Cut():
                self._cut(stream, effect)
            case effects.Refuse():
                if stream.begun and not stream.resumable:
                    stream.faults.append(f"{stream.id}: refused after its client had content")
                self._end(stream, "refused")
            case _:
                self._end(stream, "error")

    def _probe(self, probe: effects.Probe) -> None:
        alive = self._engines.at(probe.front) is not None
        self._tell(inputs.ProbeAnswered(plan=probe.plan, alive=alive))

    # -- one attempt ------------------------------------------------------------------------------

    def _dispatch(self, stream: Stream, order: effects.Dispatch) -> None:
        self._hang_up(stream)
        if stream.begun and not stream.resumable:
            self._end(stream, "error")  # what its client has cannot be continued
            return
        if stream.ledger is None:
            stream.ledger = SequenceLedger(stream.id, stream.prompt, order.plan)
        else:
            stream.ledger.move(order.plan, order.cause)
        if stream.ledger.epoch != order.epoch:
            stream.faults.append(f"{stream.id}: epoch {order.epoch} against the ledger's")
        stream.order, stream.cutting = order, None
        self._later(CONNECT_S, lambda: self._connect(stream, order))

    def _connect(self, stream: Stream, order: effects.Dispatch) -> None:
        if stream.finish is not None or stream.order is not order:
            return
        assert stream.ledger is not None
        engine = self._engines.at(order.front)
        if engine is None:
            self._failed(stream, order, FailureKind.UNREACHABLE, "nobody answers")
            return
        refusal = engine.gate.decide(order.plan, gates.Fence.parse(order.fence), None)
        if refusal is not None:
            entry = engine.gate.state.route_entry
            if entry is not None:
                self._tell(inputs.RouteLearned(entry=entry))
            self._failed(stream, order, FailureKind.GATE, refusal.message, 409)
            return
        left = stream.max_tokens - len(stream.ledger)
        self._engines.generate(
            engine, stream.rid, stream.ledger.continuation(), left, self._reading(stream, order)
        )

    def _reading(
        self, stream: Stream, order: effects.Dispatch
    ) -> Callable[[tuple[int, ...], str | None], None]:
        def read(tokens: tuple[int, ...], finish: str | None) -> None:
            if stream.finish is None and stream.order is order:
                self._read(stream, order, tokens, finish)

        return read

    def _read(
        self, stream: Stream, order: effects.Dispatch, tokens: tuple[int, ...], finish: str | None
    ) -> None:
        ledger = stream.ledger
        assert ledger is not None
        if isinstance(ledger.accept(order.plan, order.epoch, 0, tokens), Accepted):
            self._note(stream, order)
        match finish:
            case "length":
                self._end(stream, "length")
            case "abort" if stream.cutting == order.epoch:
                self._tell(
                    inputs.SequenceCut(sequence=stream.id, epoch=order.epoch, tokens=stream.tokens)
                )
            case "abort" | "broke":
                self._failed(stream, order, FailureKind.BROKE, finish)

    def _note(self, stream: Stream, order: effects.Dispatch) -> None:
        now_s, before_s = self._world.now_s, stream.last_s
        stream.last_s, stream.begun = now_s, True
        if stream.first_of == order.epoch:
            return
        stream.first_of = order.epoch
        if before_s is not None:
            stream.pauses_s.append(now_s - before_s)
        pause_ms = None if before_s is None else (now_s - before_s) * 1e3
        self._tell(
            inputs.FirstToken(
                sequence=stream.id, epoch=order.epoch, tokens=stream.tokens, pause_ms=pause_ms
            )
        )

    def _cut(self, stream: Stream, order: effects.Cut) -> None:
        now = stream.order
        if now is None or now.epoch != order.epoch:
            return
        stream.cutting = order.epoch
        if stream.first_of == order.epoch and stream.resumable:
            self._abort(stream, now, CUT_TRIES)
        elif stream.begun and not stream.resumable:
            self._end(stream, "error")
        else:
            self._hang_up(stream)
            cut = inputs.SequenceCut(sequence=stream.id, epoch=order.epoch, tokens=stream.tokens)
            self._tell(cut)

    def _abort(self, stream: Stream, order: effects.Dispatch, tries: int) -> None:
        if stream.finish is None and stream.order is order and tries:
            self._engines.abort(order.front, stream.rid)
            self._later(CUT_AGAIN_S, lambda: self._abort(stream, order, tries - 1))

    def _failed(
        self,
        stream: Stream,
        order: effects.Dispatch,
        kind: FailureKind,
        reason: str,
        status: int | None = None,
    ) -> None:
        self._tell(
            inputs.AttemptFailed(
                sequence=stream.id,
                epoch=order.epoch,
                kind=kind,
                tokens=stream.tokens,
                reason=reason,
                status=status,
            )
        )

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, stream: Stream, finish: str) -> None:
        epoch = 0 if stream.order is None else stream.order.epoch
        self._close(stream, finish)
        ended = inputs.SequenceEnded(
            sequence=stream.id, epoch=epoch, finish=finish, tokens=stream.tokens
        )
        self._tell(ended)

    def _close(self, stream: Stream, finish: str) -> None:
        self._hang_up(stream)
        stream.finish = finish

    def _hang_up(self, stream: Stream) -> None:
        if stream.order is not None:
            self._engines.hang_up(stream.order.front, stream.rid)

    # -- time ---------------------------------------------------------------------------------------

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        life = self._life
        self._world.after(delay_s, lambda: action() if life == self._life else None)

    def _tell(self, event: Input) -> None:
        self._world.feed(self.router, event)


__all__ = ["STEP_S", "Stream", "Streams"]
