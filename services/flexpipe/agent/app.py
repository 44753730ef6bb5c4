"""The agent service: the brain that samples, on the bus, with a heartbeat a node. Called by `flexpipe run agent`.

One process may stand for several nodes of an emulated fleet. What was altered by command outlives a restart: the brain
resumes from its snapshot and journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from flexpipe.agent.settings import Settings
from flexpipe.bus import Bus, Hearing, MachineShell, connect
from flexpipe.bus.connection import BEAT_BYTES
from flexpipe.bus.crew import running
from flexpipe.events.fleet import AlterNode, NodeHeartbeat, SampleAsked
from flexpipe.fragments.inputs import NodesGiven, Remark
from flexpipe.fragments.sampling import Agent
from flexpipe.kernel.errors import BrokenInvariant, InvalidInput, Unavailable
from flexpipe.kernel.machine import Effect
from flexpipe.telemetry.health import Readiness, serving_health

HEARS: Final = (AlterNode, SampleAsked)

BEAT_EVERY_S: Final = 0.5
"""The monitor calls a node lost 1.75 s after its last beat: three may be late."""

LARGEST_COUNTER: Final = 999_999_999
"""Of samples: one that changed every second since the start would count this for thirty years."""

_LOG = logging.getLogger(__name__)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Run one agent until `stop`.

    Raises InvalidInput for a fleet file that is not one, Unavailable where the bus does not answer at the start.
    """
    nodes = settings.declared()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(
            connect(settings.bus, service="agent", name=settings.name)
        )
        agent = Agent()
        shell = MachineShell(
            bus,
            machine=agent,
            service="agent",
            name=settings.name,
            hears=tuple(Hearing(each, key=node.node) for node in nodes for each in HEARS),
            perform=_perform,
            journaled=True,
            resume=True,
        )
        async with shell:
            await shell.feed(NodesGiven(nodes=nodes))
            await stack.enter_async_context(beating(bus, agent))
            if settings.http_port:
                ready = _readiness(bus, stop)
                health = serving_health(settings.http_host, settings.http_port, ready)
                await stack.enter_async_context(health)
            _LOG.info("agent is up", extra={"nodes": [node.node for node in nodes]})
            await stop.wait()


@asynccontextmanager
async def beating(bus: Bus, agent: Agent) -> AsyncIterator[None]:
    """Beat for every node that shows life while the block runs, from a task that nothing else holds up.

    Raises InvalidInput, before the block runs, for a node name too long for a beat.
    """
    for beat in agent.beats:
        largest = NodeHeartbeat(node=beat.node, counter=LARGEST_COUNTER)
        if len(largest.canonical_json().encode()) > BEAT_BYTES:
            raise InvalidInput("node", beat.node, f"a beat has {BEAT_BYTES} bytes: a shorter name")

    async def go_on() -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            for beat in agent.beats:
                await bus.beat(beat)
            due_s = max(due_s + BEAT_EVERY_S, loop.time())
            await asyncio.sleep(due_s - loop.time())

    async with running(go_on()):
        yield


async def _perform(effect: Effect) -> None:
    if not isinstance(effect, Remark):
        raise BrokenInvariant(f"no meaning is given to {type(effect).__name__}")
    _LOG.warning(effect.text)


def _readiness(bus: Bus, stop: asyncio.Event) -> Readiness:
    async def ready() -> None:
        if stop.is_set():
            raise Unavailable("the agent is stopping")
        await bus.echo()

    return ready
