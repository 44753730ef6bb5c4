"""Tasks that live as long as a block: one that fails interrupts the block. Used by the shell.

`asyncio.TaskGroup` would do, but for two things: the shell must still work for a moment after a task of it has failed,
and a single failure should leave the block as itself, not inside a group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

LOG = logging.getLogger("flexpipe.bus")

CANCEL_LIMIT_S = 5.0
"""A task that is not gone after so many askings never will be, and must not keep a stopping process alive."""
CANCEL_AGAIN_S = 0.2
"""Up to Python 3.11 `wait_for`, which nats-py uses, can swallow a cancellation; then it is asked again."""


class Crew:
    """Entered by the task that runs the block; left once."""

    def __init__(self) -> None:
        self._block: asyncio.Task[object] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._cancelled_before = 0
        self._is_leaving = False
        self._has_interrupted = False
        self.failure: BaseException | None = None  # the first one

    def enter(self) -> None:
        """From now on a failure interrupts the calling task."""
        self._block = asyncio.current_task()
        self._cancelled_before = self._block.cancelling() if self._block else 0

    def obey(self) -> None:
        """Raise the cancellation that came since `enter` and was swallowed on the way (see `CANCEL_AGAIN_S`)."""
        if self._block is not None and self._block.cancelling() > self._cancelled_before:
            raise asyncio.CancelledError

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run it until the block ends."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_end)
        self._tasks.append(task)
        return task

    def begin_leaving(self) -> None:
        """The block has ended: failures interrupt nobody any more, and our own interruption is taken back."""
        self._is_leaving = True
        if self._has_interrupted and self._block is not None:
            self._has_interrupted = False
            self._block.uncancel()

    async def cancel(self) -> None:
        """Return when every task is gone, or was asked in vain for long enough."""
        left = {task for task in self._tasks if not task.done()}
        asked_s = 0.0
        while left and asked_s < CANCEL_LIMIT_S:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
            asked_s += CANCEL_AGAIN_S
        for task in left:
            LOG.error("%s does not end and is left behind", task.get_coro())

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None or self.failure is not None:
            return
        self.failure = task.exception()
        if not self._is_leaving and self._block is not None:
            self._has_interrupted = self._block.cancel()


@asynccontextmanager
async def running(*works: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run these while the block does. One that fails interrupts the block and leaves it as itself."""
    crew = Crew()
    crew.enter()
    try:
        for work in works:
            crew.start(work)
        yield
    finally:
        crew.begin_leaving()
        await crew.cancel()
        if crew.failure is not None:
            raise crew.failure
