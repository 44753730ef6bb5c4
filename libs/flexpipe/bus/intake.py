"""What waits in front of a machine: one bounded queue, the urgent lane before everything else. Used by the shell."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from flexpipe.kernel.machine import Input

INTAKE_BOUND = 1024
"""Inputs that may wait. A machine takes about 0.1 ms for one: more waiting than this is a tenth of a second late, and
whoever feeds it (a consumer, an HTTP handler) is better told to wait."""


class Verdict(Enum):
    """What became of an input. `effects` of a handled one may still be on their way out."""

    HANDLED = "handled"
    CRASHED = "crashed"  # to be delivered again
    SKIPPED = "skipped"  # crashed its machine too often: a dead letter


@dataclass(slots=True, eq=False)
class Waiting:
    """One input and the one who waits for it."""

    event: Input
    done: asyncio.Future[Verdict] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Intake:
    """Two queues under one bound each; `take` prefers the urgent one."""

    def __init__(self, bound: int = INTAKE_BOUND) -> None:
        self._bound = bound
        self._urgent: deque[Waiting] = deque()
        self._usual: deque[Waiting] = deque()
        self._changed = asyncio.Event()
        self._closed: Exception | None = None
        self._room = asyncio.Condition()

    async def put(self, event: Input, *, urgent: bool = False) -> asyncio.Future[Verdict]:
        """Queue an input, waiting for room; the future tells what became of it. Raises what it was closed with."""
        queue = self._urgent if urgent else self._usual
        async with self._room:
            while len(queue) >= self._bound and self._closed is None:
                await self._room.wait()
            if self._closed is not None:
                raise self._closed
            waiting = Waiting(event)
            queue.append(waiting)
        self._changed.set()
        return waiting.done

    async def take(self) -> Waiting:
        """The next input."""
        while not (self._urgent or self._usual):
            self._changed.clear()
            await self._changed.wait()
        waiting = self._urgent.popleft() if self._urgent else self._usual.popleft()
        async with self._room:
            self._room.notify_all()
        return waiting

    async def close(self, error: Exception) -> None:
        """Tell everybody who waits, and who comes later, that nothing will be handled any more."""
        async with self._room:
            self._closed = error
            for waiting in (*self._urgent, *self._usual):
                if not waiting.done.done():
                    waiting.done.set_exception(error)
                    waiting.done.exception()  # nobody may be waiting: not worth a warning
            self._urgent.clear()
            self._usual.clear()
            self._room.notify_all()
