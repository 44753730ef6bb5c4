"""Does what the worker's brain asks for: starts and ends groups through the placer, speaks to their fronts.

Given to the shell as `perform`. Long work runs in tasks, at most one of a kind a group (a newer one replaces the
older); each answers with one input. A task that fails in an unforeseen way ends the worker, because the brain would
wait for its answer in vain.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from flexpipe.engines.client import EngineClient
from flexpipe.engines.port import RankGroup
from flexpipe.engines.registry import adapter
from flexpipe.hosting import effects, inputs
from flexpipe.kernel.errors import BrokenInvariant, InvalidInput, Unavailable
from flexpipe.kernel.machine import Effect, Input
from flexpipe.model.fleet import PORTS_PER_PLAN
from flexpipe.worker import probing
from flexpipe.worker.files import write_durably
from flexpipe.worker.placer import Address, NotPlaced, Placed, Placer

Feed = Callable[[Input], Awaitable[None]]


class Hands:
    """`async with hands:` around the shell's run. `python` gives the interpreter of an engine's environment."""

    def __init__(
        self,
        placer: Placer,
        http: httpx.AsyncClient,
        python: Callable[[str], str],
        memory_file: Path,
    ) -> None:
        self._placer = placer
        self._http = http
        self._python = python
        self._memory_file = memory_file
        self._feed: Feed | None = None
        self._placed: dict[str, Placed] = {}
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._tasks = asyncio.TaskGroup()
        self._empty = asyncio.Event()
        self._empty.set()

    def feeds(self, feed: Feed) -> None:
        """Where answers go: the shell's `feed`."""
        self._feed = feed

    async def __aenter__(self) -> Hands:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._running.values():
            task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # What went wrong leaves as itself: whoever runs a service knows one error, not a group of one.
            if error is None or isinstance(error, asyncio.CancelledError):
                raise group.exceptions[0] from None

    async def empty(self) -> None:
        """Returns when no group is left."""
        await self._empty.wait()

    async def perform(self, effect: Effect) -> None:
        """Begin one effect; `Keep` is done when this returns."""
        match effect:
            case effects.Keep():
                await asyncio.to_thread(write_durably, self._memory_file, effect.memory)
            case effects.LaunchRanks():
                self._empty.clear()
                self._begin(effect.group, "launch", self._launch(effect))
            case effects.StopRanks():
                self._end_front_work(effect.group)
                self._begin(effect.group, "stop", self._stop(effect))
            case effects.PollReady():
                self._begin(effect.group, "ready", self._poll_ready(effect))
            case effects.SetGate():
                self._answer(effect, "gate", probing.set_gate(self._client(effect.front), effect))
            case effects.SendPrompts():
                client = self._client(effect.front)
                self._answer(effect, "warm", probing.send_prompts(client, effect))
            case effects.WatchDrain():
                client = self._client(effect.front)
                self._answer(effect, "drain", probing.watch_drain(client, effect))
            case _:
                raise BrokenInvariant(f"the worker has no hands for {type(effect).__name__}")

    # -- tasks --------------------------------------------------------------------------------

    def _begin(self, group: str, what: str, work: Coroutine[Any, Any, None]) -> None:
        older = self._running.pop((group, what), None)
        if older is not None:
            older.cancel()
        task = self._tasks.create_task(work)
        self._running[group, what] = task
        task.add_done_callback(lambda done: self._forget(group, what, done))

    def _forget(self, group: str, what: str, task: asyncio.Task[None]) -> None:
        if self._running.get((group, what)) is task:
            del self._running[group, what]

    def _answer(
        self,
        effect: effects.GroupEffect,
        what: str,
        work: Coroutine[Any, Any, inputs.GroupInput],
    ) -> None:
        async def tell() -> None:
            await self._tell(await work)

        self._begin(effect.group, what, tell())

    async def _tell(self, event: Input) -> None:
        assert self._feed is not None
        with contextlib.suppress(
            Unavailable
        ):  # the shell has stopped: nobody waits for it any more
            await self._feed(event)

    def _end_front_work(self, group: str) -> None:
        for what in ("ready", "gate", "warm", "drain"):
            task = self._running.get((group, what))
            if task is not None:
                task.cancel()

    def _client(self, front: str) -> EngineClient:
        return EngineClient(self._http, front)

    # -- groups -------------------------------------------------------------------------------

    async def _launch(self, effect: effects.LaunchRanks) -> None:
        ranks = effect.ranks
        try:
            spec = adapter(ranks.engine.kind, self._python(ranks.engine.kind)).launch(ranks)
            _require_engine(spec.argv[0])
            placed = await self._placer.place(effect.group, spec, _ports(ranks))
        except (InvalidInput, NotPlaced) as error:
            self._gone(effect.group)
            await self._tell(inputs.LaunchFailed(group=effect.group, reason=str(error)))
            return
        self._placed[effect.group] = placed
        self._begin(effect.group, "exit", self._watch_exit(effect.group, placed))
        await self._tell(inputs.RanksUp(group=effect.group, pid=placed.pid))

    async def _watch_exit(self, group: str, placed: Placed) -> None:
        reason = await placed.ended()
        await self._tell(inputs.RanksExited(group=group, reason=reason, log_tail=placed.log_tail()))

    async def _poll_ready(self, effect: effects.PollReady) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if await probing.poll_ready(self._client(effect.front), effect):
            await self._tell(inputs.FrontReady(group=effect.group))
            return
        placed = self._placed.get(effect.group)
        await self._tell(
            inputs.FrontSilent(
                group=effect.group,
                waited_s=loop.time() - began_s,
                log_tail="" if placed is None else placed.log_tail(),
            )
        )

    async def _stop(self, effect: effects.StopRanks) -> None:
        launch = self._running.get((effect.group, "launch"))
        if launch is not None:
            await asyncio.wait([launch])  # a start that has begun is known before it is ended
        placed = self._placed.get(effect.group)
        left = () if placed is None else await placed.end(effect.grace_s, effect.limit_s)
        if left:
            await self._tell(inputs.RanksLinger(group=effect.group, pids=left))
            return
        self._gone(effect.group)
        await self._tell(inputs.RanksGone(group=effect.group))

    def _gone(self, group: str) -> None:
        self._placed.pop(group, None)
        others = {name for name, what in self._running if what == "launch" and name != group}
        if not self._placed and not others:
            self._empty.set()


def _require_engine(program: str) -> None:
    if not Path(program).exists():
        raise NotPlaced(
            f"{program} is not there: install the engine's environment (`make engine`) or name it "
            "(FLEXPIPE_ENGINE_VENV)"
        )


def _ports(ranks: RankGroup) -> tuple[Address, ...]:
    """The plan's block of ports, where its first process listens. Other nodes only call."""
    if ranks.node_rank > 0:
        return ()
    block = range(ranks.front_port, ranks.front_port + PORTS_PER_PLAN)
    return tuple((ranks.host, port) for port in block)
