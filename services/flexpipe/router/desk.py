"""Between the machine and the running sequences: effects in, inputs out, in order.

`perform` is what the shell calls and never waits; `tell` queues an input and never waits; one task feeds them to the
shell. The queue is bounded by the sequences there may be, each of which has a handful of inputs under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

import httpx

from flexpipe.engines.client import EngineClient
from flexpipe.kernel.errors import BrokenInvariant
from flexpipe.kernel.machine import Effect, Entry, Input, Watched
from flexpipe.router.running import House, Running
from flexpipe.router.texts import Texts
from flexpipe.routing.effects import (
    CountTokens,
    Cut,
    Dispatch,
    EndWithError,
    Probe,
    Refuse,
    RereadRoutes,
    ServeModels,
)
from flexpipe.routing.inputs import ProbeAnswered, RequestArrived, TokenCount, TokensCounted
from flexpipe.routing.openai.errors import overloaded
from flexpipe.telemetry.meters import Meters

PROBE_LIMIT_S: Final = 2.0
"""A plan whose `/ready` takes longer is not ready."""

Feed = Callable[[Input], Awaitable[None]]
ReadRoutes = Callable[[], Awaitable[tuple[Entry, ...]]]


class Desk:
    """All running sequences of one router."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        meters: Meters,
        read_routes: ReadRoutes,
        *,
        unread_frames: int,
        silence_limit_s: float,
        sequences_limit: int,
        answered: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.texts = Texts()
        self.meters = meters
        self.house = House(http, self.tell, meters, unread_frames, silence_limit_s, answered)
        self.stopping = False
        self._read_routes = read_routes
        self._limit = sequences_limit
        self._running: dict[str, Running] = {}
        self._inputs: deque[Input] = deque()
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._chores: set[asyncio.Task[None]] = set()

    # -- for the HTTP front -------------------------------------------------------------------

    def check_room(self) -> None:
        """Raises RequestRefused (503) where no further sequence may be held."""
        if self.stopping:
            raise overloaded("this router is stopping; ask another one")
        if len(self._running) >= self._limit:
            raise overloaded(f"this router holds {self._limit} requests already")

    def begin(self, sequence: Running, arrived: RequestArrived) -> None:
        """A sequence begins: the machine hears of it."""
        self._running[sequence.id] = sequence
        self._empty.clear()
        self.tell(arrived)
        self._help(self._forget_when_over(sequence))

    @property
    def count(self) -> int:
        """Sequences held now."""
        return len(self._running)

    def sequences(self) -> tuple[Running, ...]:
        """Them, in order of their arrival."""
        return tuple(self._running.values())

    async def until_empty(self) -> None:
        """Return when the last sequence is over."""
        await self._empty.wait()

    # -- for the machine ----------------------------------------------------------------------

    def tell(self, event: Input) -> None:
        """Queue an input for the machine."""
        self._inputs.append(event)
        self._news.set()

    async def feed(self, feed: Feed) -> None:
        """Feed the machine what is told, one after the other, until cancelled."""
        while True:
            while self._inputs:
                await feed(self._inputs.popleft())
            self._news.clear()
            await self._news.wait()

    async def perform(self, effect: Effect) -> None:
        """Do what the machine asks for. Never waits for anything."""
        match effect:
            case Dispatch() | Cut() | Refuse() | EndWithError():
                self._instruct(effect)
            case CountTokens():
                self.tell(TokensCounted(counts=self._counts(effect.sequences)))
            case ServeModels():
                self.texts.serve(effect.models)
            case Probe():
                self._help(self._probe(effect))
            case RereadRoutes():
                self._help(self._reread())
            case _:
                raise BrokenInvariant(f"the router does not perform {type(effect).__name__}")

    def close(self) -> None:
        """Stop chores and loads."""
        self.texts.close()
        for chore in self._chores:
            chore.cancel()

    def _instruct(self, effect: Dispatch | Cut | Refuse | EndWithError) -> None:
        sequence = self._running.get(effect.sequence)
        if sequence is None:
            return  # its client has gone; the machine hears of that next
        match effect:
            case Dispatch():
                sequence.dispatch(effect)
            case Cut():
                sequence.cut(effect)
            case Refuse():
                sequence.refuse(effect)
            case EndWithError():
                sequence.end_with_error(effect)

    def _counts(self, sequences: tuple[str, ...]) -> tuple[TokenCount, ...]:
        known = ((key, self._running.get(key)) for key in sequences)
        return tuple(
            TokenCount(sequence=key, tokens=each.tokens) for key, each in known if each is not None
        )

    async def _probe(self, probe: Probe) -> None:
        alive = await EngineClient(self.house.http, probe.front).ready(PROBE_LIMIT_S)
        self.tell(ProbeAnswered(plan=probe.plan, alive=alive))

    async def _reread(self) -> None:
        for entry in await self._read_routes():
            self.tell(Watched(entry=entry))

    async def _forget_when_over(self, sequence: Running) -> None:
        await sequence.over.wait()
        self._running.pop(sequence.id, None)
        if not self._running:
            self._empty.set()

    def _help(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._chores.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a chore of the router failed", "exception": error, "task": task}
            )
