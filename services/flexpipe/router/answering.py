"""Which plans' engines gave this router tokens: told on the tel lane, twice a second, where there are any.

Fed by running sequences at every piece that comes, published by one task of `app`. It passes no machine and no
journal: a monitor weighs it against the silence of an agent, and lost is fine.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

from flexpipe.events.fleet import PlanAnswered
from flexpipe.events.outgoing import publish
from flexpipe.kernel.machine import Publish

ANSWERED_EVERY_S: Final = 0.5
"""As often as agents beat: a node is judged on what was heard within a second."""

PLANS_A_MESSAGE: Final = 256
"""What `PlanAnswered` takes."""


class Answering:
    """`note` what comes; `run` until cancelled."""

    def __init__(self, router: str) -> None:
        self._router = router
        self._plans: set[str] = set()
        self._run = uuid.uuid4().hex  # nobody takes a message for a repeat of an earlier life's
        self._counter = count()

    def note(self, plan: str) -> None:
        """An engine of this plan gave tokens."""
        self._plans.add(plan)

    async def run(self, say: Callable[[Publish], Awaitable[None]]) -> None:
        """Tell what was noted since the last time."""
        while True:
            await asyncio.sleep(ANSWERED_EVERY_S)
            plans, self._plans = sorted(self._plans), set()
            for start in range(0, len(plans), PLANS_A_MESSAGE):
                part = tuple(plans[start : start + PLANS_A_MESSAGE])
                answered = PlanAnswered(router=self._router, plans=part)
                await say(publish(answered, self._run, next(self._counter)))
