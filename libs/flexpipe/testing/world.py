"""A world in virtual time: the bus, buckets and clocks that machines are mounted on in tests.

It keeps the shell's law: one input at a time, effects in order, `Stored` right after the list, the rest of a list
dropped at a conflict, a message acked after everything it led to. Any machine can be killed between two effects; what
it had not acked comes again. Chance enters through a given `random.Random` alone.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from flexpipe.bus.hearing import Hearing
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Input,
    Machine,
    Measure,
    Publish,
    Put,
    PutAll,
    Span,
    Started,
    Stored,
    Watched,
    Woken,
)
from flexpipe.testing.world_bus import Buckets, Post

EPOCH_S = 1_700_000_000.0
"""Where virtual time starts: a plausible epoch, so that no formula profits from small numbers."""
STORED_LIMIT = 1000
"""Writes answered by writes without any other input between: more is a machine that argues with itself."""
INPUTS_LIMIT = 200_000
"""Inputs of one world: more is an endless loop in virtual time."""

Perform = Callable[[Effect], Iterable[tuple[float, Input]]]
"""Performs a domain effect: gives the inputs it leads to, each with its delay in seconds."""


class Killed(Exception):
    """The process of a machine ends here."""


@dataclass
class Line:
    """One input of one life of a machine, and the canonical text of what it answered."""

    now_s: float
    event: Input
    effects: str


@dataclass
class Mounted:
    """One machine on the world, over all its lives."""

    name: str
    service: str
    fresh: Callable[[], Machine]
    hears: tuple[Hearing, ...]
    watches: tuple[str, ...]
    perform: Perform
    machine: Machine | None = None
    lives: list[list[Line]] = field(default_factory=list)
    waiting: deque[Delivered] = field(default_factory=deque)
    wake_at_s: float | None = None
    performed: int = 0  # effects over all lives
    kill_at: int | None = None  # dies right after this many effects
    on_killed: Callable[[], None] = lambda: None

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self.machine is not None

    def hears_message(self, type_: str, key: str) -> bool:
        """Whether a message reaches it."""
        return any(h.message.__name__ == type_ and _matches(h.key, key) for h in self.hears)


class World:
    """See the module. `delays_s`: least and most time a message or a change is on its way."""

    def __init__(
        self,
        chance: random.Random | None = None,
        delays_s: tuple[float, float] = (0.001, 0.001),
    ) -> None:
        self.now_s = EPOCH_S
        self.chance = chance
        self.delays_s = delays_s
        self.buckets = Buckets()
        self.post = Post()
        self.mounts: dict[str, Mounted] = {}
        self.spans: list[Span] = []
        self.measures: list[Measure] = []
        self.checks: list[Callable[[], None]] = []  # run after every input
        self.listeners: list[Callable[[str, Publish], None]] = []  # told of every message at once
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrivals: dict[tuple[str, str], float] = {}
        self._inputs = 0

    # -- setting up -----------------------------------------------------------------------------

    def mount(
        self,
        name: str,
        service: str,
        machine: Callable[[], Machine],
        *,
        hears: Sequence[Hearing] = (),
        watches: Sequence[str] = (),
        perform: Perform = lambda _: (),
    ) -> Mounted:
        """Mount a machine (given as what makes a fresh one) and start it now."""
        mounted = Mounted(name, service, machine, tuple(hears), tuple(watches), perform)
        self.mounts[name] = mounted
        mounted.waiting.extend(self.post.collect(mounted.hears_message))
        self._at(self.now_s, lambda: self.start(name))
        return mounted

    def start(self, name: str) -> None:
        """A new process of a machine: fresh, told everything its buckets hold, then what waits for it."""
        mounted = self.mounts[name]
        mounted.machine = mounted.fresh()
        mounted.lives.append([])
        mounted.wake_at_s = None
        entries = [entry for bucket in mounted.watches for entry in self.buckets.all(bucket)]
        self._take(mounted, Started(entries=tuple(entries)))
        waiting = list(mounted.waiting)
        mounted.waiting.clear()
        for delivered in waiting:
            self._arrive(mounted, delivered)

    def kill(self, name: str) -> None:
        """End the process of a machine now, between two inputs."""
        self.mounts[name].machine = None
        self.mounts[name].wake_at_s = None

    def kill_after_effects(self, name: str, count: int, *, restart_after_s: float = 0.5) -> None:
        """End a process right after its `count`-th effect (over all its lives) and start a new one later."""
        mounted = self.mounts[name]
        mounted.kill_at = count
        mounted.on_killed = lambda: self._at(self.now_s + restart_after_s, lambda: self.start(name))

    # -- what happens from outside ----------------------------------------------------------------

    def say(self, message: Message, *cause: object) -> None:
        """Somebody without a machine (an operator) publishes a message."""
        self._publish("", publish(message, *cause))

    def write(self, bucket: str, key: str, value: str | None) -> None:
        """Somebody without a machine writes a key, whatever is there."""
        put = Put(
            write_id=f"outside {next(self._order)}",
            bucket=bucket,
            key=key,
            value=value,
            expected=self.buckets.get(bucket, key).revision,
        )
        self._stored(put.write_id, (put,))

    def feed(self, name: str, event: Input, after_s: float = 0.0) -> None:
        """An input from outside the bus; lost where the process is not up."""
        self._at(self.now_s + after_s, lambda: self._take_if_up(self.mounts[name], event))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._at(self.now_s + delay_s, action)

    # -- time -------------------------------------------------------------------------------------

    def run_until(self, condition: Callable[[], object], limit_s: float = 600.0) -> None:
        """Let time pass until a condition holds. Raises AssertionError at the limit, or where nothing is left to do."""
        deadline_s = self.now_s + limit_s
        while not condition():
            if not self._agenda:
                raise AssertionError("nothing is left to happen and the condition does not hold")
            if self._agenda[0][0] > deadline_s:
                raise AssertionError(f"the condition does not hold within {limit_s:g} s")
            self._step()

    def run_for(self, seconds: float) -> None:
        """Let this much time pass."""
        end_s = self.now_s + seconds
        while self._agenda and self._agenda[0][0] <= end_s:
            self._step()
        self.now_s = end_s

    def _step(self) -> None:
        at_s, _, action = heapq.heappop(self._agenda)
        self.now_s = max(self.now_s, at_s)
        action()

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at_s, next(self._order), action))

    # -- one input --------------------------------------------------------------------------------

    def _take_if_up(self, mounted: Mounted, event: Input) -> None:
        if mounted.up:
            self._take(mounted, event)

    def _take(self, mounted: Mounted, event: Input) -> None:
        self._inputs += 1
        if self._inputs > INPUTS_LIMIT:
            raise AssertionError(f"more than {INPUTS_LIMIT} inputs: machines are going in circles")
        try:
            outcomes = deque(self._act(mounted, event))
            fed = 0
            while outcomes:
                fed += 1
                if fed > STORED_LIMIT:
                    raise AssertionError(
                        f"{mounted.name}: writes led to one another without an end"
                    )
                outcomes.extend(self._act(mounted, outcomes.popleft()))
        except Killed:
            self.kill(mounted.name)
            if isinstance(event, Delivered):
                mounted.waiting.appendleft(event)
            mounted.on_killed()
        for check in self.checks:
            check()

    def _act(self, mounted: Mounted, event: Input) -> list[Stored]:
        assert mounted.machine is not None
        effects = mounted.machine.handle(self.now_s, event)
        mounted.lives[-1].append(Line(self.now_s, event, effects.canonical_json()))
        self._wish(mounted, effects)
        outcomes: list[Stored] = []
        for effect in effects.do:
            if isinstance(effect, Put | PutAll):
                puts = (effect,) if isinstance(effect, Put) else effect.puts
                outcomes.append(self._stored(effect.write_id, puts))
            else:
                self._perform(mounted, effect)
            mounted.performed += 1
            if mounted.performed == mounted.kill_at:
                raise Killed(mounted.name)
            if outcomes and outcomes[-1].outcome == "conflict":
                break
        return outcomes

    def _wish(self, mounted: Mounted, effects: Effects) -> None:
        at_s = effects.wake_at_s
        if at_s is None or at_s == mounted.wake_at_s:
            return
        mounted.wake_at_s = at_s
        life = len(mounted.lives)

        def wake() -> None:
            if mounted.up and len(mounted.lives) == life and mounted.wake_at_s == at_s:
                mounted.wake_at_s = None
                self._take(mounted, Woken())

        self._at(max(at_s, self.now_s), wake)

    def _perform(self, mounted: Mounted, effect: Effect) -> None:
        match effect:
            case Publish():
                self._publish(mounted.name, effect)
            case Span():
                self.spans.append(effect)
            case Measure():
                self.measures.append(effect)
            case _:
                for delay_s, event in mounted.perform(effect):
                    self.feed(mounted.name, event, delay_s)

    # -- the bus ------------------------------------------------------------------------------------

    def _publish(self, sender: str, message: Publish) -> None:
        if not self.post.accept(self.now_s, sender, message):
            return
        for listener in self.listeners:
            listener(sender, message)
        delivered = Delivered(
            type=message.type,
            message=message.message,
            message_id=message.message_id,
            traceparent=message.traceparent,
            sent_at_s=self.now_s,
        )
        hearing = [m for m in self.mounts.values() if m.hears_message(message.type, message.key)]
        for mounted in hearing:
            self._arrive(mounted, delivered)
        if not hearing:
            self.post.keep(message, delivered)

    def _arrive(self, mounted: Mounted, delivered: Delivered) -> None:
        def arrive() -> None:
            if mounted.up:
                self._take(mounted, delivered)
            else:
                mounted.waiting.append(delivered)

        self._on_its_way(mounted, "messages", arrive)

    def _stored(self, write_id: str, puts: tuple[Put, ...]) -> Stored:
        stored = self.buckets.write(write_id, puts)
        if stored.outcome == "written":
            for entry in stored.entries:
                for mounted in self.mounts.values():
                    if entry.bucket in mounted.watches:
                        event = Watched(entry=entry)
                        self._on_its_way(mounted, entry.bucket, self._taking(mounted, event))
        return stored

    def _taking(self, mounted: Mounted, event: Input) -> Callable[[], None]:
        life = len(mounted.lives)

        def take() -> None:
            if len(mounted.lives) == life:  # a new process has read the bucket itself
                self._take_if_up(mounted, event)

        return take

    def _on_its_way(self, mounted: Mounted, way: str, arrive: Callable[[], None]) -> None:
        """After a delay, but never before what was sent the same way earlier."""
        low, high = self.delays_s
        delay_s = low if self.chance is None else self.chance.uniform(low, high)
        at_s = max(self.now_s + delay_s, self._arrivals.get((mounted.name, way), 0.0))
        self._arrivals[mounted.name, way] = at_s
        self._at(at_s, arrive)


def _matches(pattern: str, key: str) -> bool:
    """NATS wildcards over the parts of a key; `*` alone is every key."""
    if pattern in ("*", ">"):
        return True
    wanted, parts = pattern.split("."), key.split(".")
    if wanted[-1] == ">":
        wanted, parts = wanted[:-1], parts[: len(wanted) - 1]
    return len(wanted) == len(parts) and all(
        want in ("*", part) for want, part in zip(wanted, parts, strict=True)
    )
