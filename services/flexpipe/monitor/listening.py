"""Signs of life as the monitor's service hears them: beats and tokens as they pass, and the echo of its own voice.

Called by `app`. It judges nothing: it collects, and feeds the brain four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from flexpipe.bus import Bus, Hearing
from flexpipe.bus.crew import running
from flexpipe.bus.overhearing import Overhearing
from flexpipe.events.catalog import parse
from flexpipe.events.fleet import HostHeartbeat, NodeHeartbeat, PlanAnswered
from flexpipe.fragments.inputs import Heard
from flexpipe.kernel.errors import Unavailable

SIGNS: Final = (NodeHeartbeat, HostHeartbeat, PlanAnswered)

FEED_EVERY_S: Final = 0.25
"""Half a beat: what the judgement of silence is late at most. Each becomes a line of the journal."""

ECHO_EVERY_S: Final = 0.5
ECHO_LIMIT_S: Final = 1.0
"""A round trip takes a millisecond; one that takes this long proves that nothing is to be judged."""

PLANS_BOUND: Final = 4096
"""Plans that answered between two feeds: more than routers could name."""

Feed = Callable[[Heard], Awaitable[None]]


class Signs:
    """What was heard since it was last taken."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._beats: dict[str, tuple[int, float]] = {}
        self._hosts: set[str] = set()
        self._plans: set[str] = set()
        self._echo_s: float | None = None

    def take(self) -> Heard:
        """Everything since the last time, with ages as of now."""
        now_s = self._bus.clock.now_s()
        heard = Heard(
            beats={
                node: (counter, max(0, round((now_s - at_s) * 1000)))
                for node, (counter, at_s) in sorted(self._beats.items())
            },
            host_beats=tuple(sorted(self._hosts)),
            answered=tuple(sorted(self._plans)),
            echo_at_s=self._echo_s,
        )
        self._beats.clear()
        self._hosts.clear()
        self._plans.clear()
        return heard

    async def collect(self, passing: Overhearing) -> None:
        """Take in what passes, for ever."""
        async for delivered in passing:
            match parse(delivered.type, delivered.message):
                case NodeHeartbeat(node=node, counter=counter):
                    self._beats[node] = (counter, self._bus.clock.now_s())
                case HostHeartbeat(node=node):
                    self._hosts.add(node)
                case PlanAnswered(plans=plans) if len(self._plans) < PLANS_BOUND:
                    self._plans.update(plans)
                case _:
                    pass

    async def echo(self) -> None:
        """Speak to the server and note when that which came back had been said, for ever."""
        while True:
            said_s = self._bus.clock.now_s()
            with contextlib.suppress(Unavailable):
                await self._bus.echo(ECHO_LIMIT_S)
                self._echo_s = said_s
            await asyncio.sleep(ECHO_EVERY_S)


@asynccontextmanager
async def listening(bus: Bus, feed: Feed) -> AsyncIterator[None]:
    """Collect and feed while the block runs. Raises Unavailable or Refused where the bus will not let us hear."""
    signs = Signs(bus)

    async def go_on() -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            await feed(signs.take())
            due_s = max(due_s + FEED_EVERY_S, loop.time())
            await asyncio.sleep(due_s - loop.time())

    async with (
        bus.overhear([Hearing(each) for each in SIGNS]) as passing,
        running(signs.collect(passing), signs.echo(), go_on()),
    ):
        yield
