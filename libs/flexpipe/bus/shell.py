"""The shell: mounts one machine on the bus, keeps its order, runs its timer, acts on its effects.

Services make one a machine. It decides nothing. The law it keeps:

* one input at a time; its effects in order; outcomes of writes (`Stored`) next, before any other input;
* the rest of an effect list is not performed once a write in it conflicts;
* the journal has an input before the bus sees anything that it led to, but for what no stream keeps (the tel lane):
  that is said at once, waits for nothing, and is lost where the bus is away;
* a message is acked after it was handled and what it led to is stored; a repeat within memory is acked unseen;
* a crash on a message rolls the machine back; the third on the same message makes it a dead letter; any other crash,
  and a broken invariant, ends the shell and with it the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType

from faststream.nats import NatsMessage

from flexpipe.bus import envelope
from flexpipe.bus.clock import Clock
from flexpipe.bus.connection import Bus
from flexpipe.bus.crew import Crew
from flexpipe.bus.deadletters import CRASHES_LIMIT, DeadLetters
from flexpipe.bus.ears import Ear
from flexpipe.bus.hearing import Hearing, by_stream, passing
from flexpipe.bus.intake import Intake, Verdict, Waiting
from flexpipe.bus.memory import MachineMemory
from flexpipe.bus.outbox import Outbox, is_stored
from flexpipe.bus.overhearing import Overhearing
from flexpipe.bus.seen import SeenIds, place_of
from flexpipe.bus.timer import Timer
from flexpipe.bus.watch import COMPARE_EVERY_S, Watch
from flexpipe.events.catalog import Lane
from flexpipe.kernel.errors import BrokenInvariant, FlexPipeError, InvalidInput, Unavailable
from flexpipe.kernel.machine import (
    Delivered,
    Effect,
    Effects,
    Entry,
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

LOG = logging.getLogger("flexpipe.bus")

NAK_WAIT_S = 0.2
FLUSH_LIMIT_S = 5.0
"""A stopping shell waits this long for its outbox; what did not leave was not acked and comes again."""
STORED_LIMIT = 1000
"""Writes answered by writes without any other input between: more is a machine that argues with itself."""

Perform = Callable[[Effect], Awaitable[None]]


class MachineCrash(BrokenInvariant):
    """A machine raised on something that is no message, so that skipping it would mean nothing."""


async def _perform_nothing(effect: Effect) -> None:
    raise BrokenInvariant(f"nobody performs {type(effect).__name__}: give the shell `perform`")


class MachineShell:
    """`async with shell:` runs it. Raises BrokenInvariant out of the block where the machine must not go on."""

    def __init__(
        self,
        bus: Bus,
        *,
        machine: Machine,
        service: str,
        name: str,
        hears: Sequence[Hearing] = (),
        watches: Sequence[str] = (),
        perform: Perform = _perform_nothing,
        measure: Callable[[Measure], None] = lambda _: None,
        spans: Callable[[Span], None] = lambda _: None,
        journaled: bool = False,
        resume: bool = False,
        clock: Clock | None = None,
        compare_every_s: float = COMPARE_EVERY_S,
    ) -> None:
        self._bus = bus
        self._machine = machine
        self._durable = f"{service}-{name}"
        self._hears = tuple(hears)
        self._watches = tuple(watches)
        self._perform = perform
        self._measure = measure
        self._spans = spans
        self._resume = resume
        self._clock = clock or bus.clock
        self._compare_every_s = compare_every_s
        self._memory = MachineMemory(bus, machine, service, name, is_kept=journaled)
        self._intake = Intake()
        self._outbox = Outbox(
            send_lines=self._memory.send_lines,
            send_message=bus.publish,
            send_snapshot=self._memory.send_snapshot,
        )
        self._memory.outbox = self._outbox
        self._dead = DeadLetters(bus, service, name)
        self._seen = SeenIds()
        self._known: dict[tuple[str, str], int] = {}  # revisions fed by `Started` and `Stored`
        self._ears: list[Ear] = []
        self._passing = contextlib.AsyncExitStack()
        self._timer = Timer(self._clock, self._wake)
        self._now_s = 0.0
        self._crew = Crew()
        self._runner: asyncio.Task[None] | None = None

    # -- what services use ---------------------------------------------------------------------------------------

    async def feed(self, event: Input) -> None:
        """Hand over an input from outside the bus; returns when it was handled. Waits while the queue is full.

        Raises Unavailable where the shell stops first. Never await it inside `perform`: start a task.
        """
        if self._runner is not None and asyncio.current_task() is self._runner:
            raise BrokenInvariant("perform awaited feed: the shell would wait for itself")
        await (await self._intake.put(event))

    async def __aenter__(self) -> MachineShell:
        self._crew.enter()
        try:
            await self._start()
            self._crew.obey()
        except BaseException as error:
            await self._end(error)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end(error)

    # -- start and stop ------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._now_s = self._clock.now_s()
        self._crew.start(self._outbox.run())
        self._seen.add(*await self._memory.begin(self._now_s, resume=self._resume))
        await self._dead.load()
        watches = [
            Watch(
                self._bus.main,
                bucket,
                self._on_watched,
                self._compare_every_s,
                on_reset=self._on_reset,
            )
            for bucket in self._watches
        ]
        entries: list[Entry] = []
        for watch in watches:
            entries.extend(await watch.first())
        started = await self._intake.put(Started(entries=tuple(entries)))
        self._runner = self._crew.start(self._run())
        self._crew.start(self._timer.run())
        await started
        for watch in watches:
            self._crew.start(watch.run())
        await self._open_ears()

    async def _open_ears(self) -> None:
        for stream, hears in by_stream(self._hears).items():
            is_urgent = hears[0].lane is Lane.URGENT
            ear = Ear(
                self._bus.link(hears[0].lane),
                stream=stream,
                durable=self._durable,
                hears=hears,
                on_message=self._on_urgent if is_urgent else self._on_usual,
            )
            await ear.open()
            self._ears.append(ear)
            self._crew.start(ear.guard())
        if hears := passing(self._hears):
            overhearing = await self._passing.enter_async_context(self._bus.overhear(hears))
            self._crew.start(self._on_passing(overhearing))

    async def _end(self, error: BaseException | None) -> None:
        self._crew.begin_leaving()
        if error is None and self._crew.failure is None:
            await self._flush()
        await self._crew.cancel()
        await self._intake.close(Unavailable(f"{self._durable} has stopped"))
        await self._close_ears()
        if self._crew.failure is not None:
            raise self._crew.failure

    async def _flush(self) -> None:
        """Stop listening, let what was decided leave, keep a last snapshot."""
        await self._close_ears()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_LIMIT_S):
                await self._memory.keep()
                await self._outbox.reached(self._outbox.mark)

    async def _close_ears(self) -> None:
        for ear in self._ears:
            await ear.close()
        await self._passing.aclose()

    # -- one input at a time -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            waiting = await self._intake.take()
            try:
                verdict = await self._take(waiting)
            except BaseException as error:
                if not waiting.done.done():
                    waiting.done.set_exception(Unavailable(f"{self._durable} stopped: {error}"))
                    waiting.done.exception()
                raise
            if not waiting.done.done():
                waiting.done.set_result(verdict)

    async def _take(self, waiting: Waiting) -> Verdict:
        event = waiting.event
        if isinstance(event, Delivered):
            if event.message_id in self._seen:
                return Verdict.HANDLED
            if self._dead.crashes_of(event.message_id) >= CRASHES_LIMIT:
                return Verdict.SKIPPED
        if isinstance(event, Watched) and event.entry.revision < self._known.get(
            place_of(event.entry), 0
        ):
            return Verdict.HANDLED  # the machine has seen newer, as the outcome of its own write
        try:
            effects = await self._decide(event)
        except BrokenInvariant as error:
            await self._note_crash(event, error)
            raise
        except Exception as error:
            if not isinstance(event, Delivered):
                raise MachineCrash(f"{type(event).__name__}: {error!r}") from error
            LOG.exception("%s crashed on %s %s", self._durable, event.type, event.message_id)
            self._memory.roll_back()
            return await self._note_crash(event, error)
        if isinstance(event, Delivered):
            self._seen.add(event.message_id)
        try:
            await self._act(effects)
        except Exception as error:
            # Some of its effects are out: no way back but a new process, which is told of this crash.
            await self._note_crash(event, error)
            if isinstance(error, FlexPipeError):
                raise
            raise MachineCrash(f"effects of {type(event).__name__}: {error!r}") from error
        return Verdict.HANDLED

    async def _decide(self, event: Input) -> Effects:
        """Feed the machine and put the journal line in front of everything that follows."""
        if isinstance(event, Stored | Started):
            self._known.update((place_of(entry), entry.revision) for entry in event.entries)
        self._now_s = max(
            self._now_s, self._clock.now_s()
        )  # time never runs backwards for a machine
        return await self._memory.feed(self._now_s, event)

    async def _act(self, effects: Effects) -> None:
        """Perform effects; feed outcomes of writes back, in order, until there are none."""
        outcomes = deque(await self._perform_list(effects))
        fed = 0
        while outcomes:
            fed += 1
            if fed > STORED_LIMIT:
                raise BrokenInvariant(f"{fed} writes led to one another without an end")
            answer = await self._decide(outcomes.popleft())
            outcomes.extend(await self._perform_list(answer))

    async def _perform_list(self, effects: Effects) -> list[Stored]:
        if effects.wake_at_s is not None:
            self._timer.wish(effects.wake_at_s)
        outcomes: list[Stored] = []
        for effect in effects.do:
            match effect:
                case Publish():
                    await self._say(effect)
                case Put() | PutAll():
                    outcomes.append(await self._write(effect))
                    if outcomes[-1].outcome == "conflict":
                        break
                case Measure():
                    self._measure(effect)
                case Span():
                    self._spans(effect)
                case _:
                    await self._perform(effect)
        return outcomes

    async def _say(self, effect: Publish) -> None:
        if is_stored(effect):
            await self._outbox.put(effect)
            return
        try:
            await self._bus.publish(effect)
        except InvalidInput as error:
            LOG.error("cannot be said, dropped: %s", error)

    async def _write(self, effect: Put | PutAll) -> Stored:
        """What was said before must be stored before; then write, through any outage."""
        await self._outbox.reached(self._outbox.mark)
        while True:
            try:
                if isinstance(effect, Put):
                    return await self._bus.put(effect)
                return await self._bus.put_all(effect)
            except Unavailable as error:
                LOG.warning("%s waits to write: %s", self._durable, error)

    async def _wake(self) -> None:
        await (await self._intake.put(Woken(), urgent=True))

    # -- what comes from the bus ---------------------------------------------------------------------------------

    async def _on_watched(self, entry: Entry) -> None:
        await self._intake.put(Watched(entry=entry))

    async def _on_reset(self, entry: Entry) -> None:
        LOG.error(
            "bucket %s lost its store: %s is back at revision %d", *place_of(entry), entry.revision
        )
        self._known.pop(place_of(entry), None)
        await self._intake.put(Watched(entry=entry))

    async def _on_passing(self, overhearing: Overhearing) -> None:
        """One at a time; a machine that is busy loses the oldest, never its place."""
        async for event in overhearing:
            await (await self._intake.put(event))

    async def _on_usual(self, message: NatsMessage) -> None:
        await self._on_message(message, is_urgent=False)

    async def _on_urgent(self, message: NatsMessage) -> None:
        await self._on_message(message, is_urgent=True)

    async def _on_message(self, message: NatsMessage, *, is_urgent: bool) -> None:
        raw = message.raw_message
        fallback_id = f"{raw.metadata.stream}:{raw.metadata.sequence.stream}"
        try:
            event = envelope.open_envelope(
                raw.headers,
                raw.data,
                fallback_id=fallback_id,
                subject=raw.subject,
                stored_at_s=raw.metadata.timestamp.timestamp(),
            )
        except InvalidInput as error:
            await self._bury(message, fallback_id, str(error))
            return
        verdict = await (await self._intake.put(event, urgent=is_urgent))
        match verdict:
            case Verdict.HANDLED:
                await self._outbox.reached(self._outbox.mark)
                await message.ack()
            case Verdict.CRASHED:
                await message.nack(delay=NAK_WAIT_S)
            case Verdict.SKIPPED:
                await self._bury(message, event.message_id, f"crashed {CRASHES_LIMIT} times")

    async def _bury(self, message: NatsMessage, message_id: str, reason: str) -> None:
        raw = message.raw_message
        LOG.error("%s: dead letter %s on %s: %s", self._durable, message_id, raw.subject, reason)
        await self._dead.bury(
            subject=raw.subject, message_id=message_id, body=raw.data, reason=reason
        )
        await message.ack()

    async def _note_crash(self, event: Input, error: Exception) -> Verdict:
        if not isinstance(event, Delivered):
            return Verdict.CRASHED
        try:
            crashes = await self._dead.crashed(event.message_id, repr(error))
        except Unavailable:
            crashes = self._dead.crashes_of(event.message_id)
        return Verdict.SKIPPED if crashes >= CRASHES_LIMIT else Verdict.CRASHED
