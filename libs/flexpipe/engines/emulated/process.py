"""One engine process from command line to exit status.

Exit status: 0 after SIGTERM or SIGINT; 2 for a command line that is refused; 1 for a start that
fails, a rank that dies, or a node 0 that goes away. Every failure is one line on stderr.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

from flexpipe.engines.emulated.arguments import EngineArguments, Refused, parse_arguments
from flexpipe.engines.emulated.faults import Fault
from flexpipe.engines.emulated.ranks import Rank, RankGroup, fork_ranks
from flexpipe.engines.emulated.rendezvous import Gathering, Hello, RendezvousFailed, join
from flexpipe.engines.emulated.scheduler import SHUTTING_DOWN, Scheduler
from flexpipe.engines.gate import Gate

if TYPE_CHECKING:
    from starlette.applications import Starlette

STOP_LIMIT_S = 0.6
"""Open connections get this long to take their last event, then they are cut."""

GROUP_SIGNAL_GRACE_S = 0.1
"""A SIGTERM to the whole process group ends the ranks too; our own may arrive just after."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one engine process; returns its exit status."""
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        fault = Fault.from_env()
        gate = _gate(arguments)
    except (Refused, ValueError) as error:
        _say(str(error))
        return 2
    if fault.kind == "start_fails":
        _say("start failed (asked for by FLEXPIPE_EMULATED_FAULT)")
        return 1
    ranks = fork_ranks(arguments.first_rank, arguments.ranks_here)
    try:
        if arguments.node_rank > 0:
            return asyncio.run(_follow(arguments, ranks))
        return asyncio.run(_Leader(arguments, gate, ranks, fault).run())
    except KeyboardInterrupt:
        return 0


def _gate(arguments: EngineArguments) -> Gate:
    plan = {"FLEXPIPE_PLAN_ID": arguments.plan_id} if arguments.plan_id else {}
    return Gate.from_env({**os.environ, **plan})


def _hello(arguments: EngineArguments) -> Hello:
    plan = arguments.plan_id or os.environ.get("FLEXPIPE_PLAN_ID", "")
    return Hello(plan, arguments.layout, arguments.nnodes, arguments.node_rank)


def _say(message: str) -> None:
    print(f"emulated engine: {message}", file=sys.stderr, flush=True)


def _die(message: str) -> NoReturn:
    """End without a word to anybody, as a process does whose device or rank is lost."""
    _say(message)
    os._exit(1)


class _Leader:
    """Node 0: HTTP front, scheduler, rendezvous."""

    def __init__(
        self, arguments: EngineArguments, gate: Gate, ranks: RankGroup, fault: Fault
    ) -> None:
        # Imported here so that ranks, and nodes without a front, are forked small.
        from flexpipe.engines.emulated.front import EngineState  # noqa: PLC0415

        self._arguments = arguments
        self._gate = gate
        self._ranks = ranks
        self._fault = fault
        self._emitted = 0
        self._exit = 0
        self._state = EngineState(rank_pids=ranks.pids, fails_requests=fault.kind == "engine_error")

    async def run(self) -> int:
        import uvicorn  # noqa: PLC0415

        from flexpipe.engines.emulated.front import Front  # noqa: PLC0415

        arguments = self._arguments
        try:
            listener = _listen(arguments.host, arguments.port)
        except OSError as error:
            _say(f"cannot listen on {arguments.host}:{arguments.port}: {error.strerror}")
            return 1
        counting = self._fault.kind == "crash_after_tokens"
        self._scheduler = Scheduler(
            table=arguments.table,
            layout=arguments.layout,
            context_tokens=arguments.context_tokens,
            oracle=arguments.oracle,
            time_scale=arguments.time_scale,
            stream_interval=arguments.stream_interval,
            on_tokens=self._count if counting else None,
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                Front(arguments, self._scheduler, self._state).app(self._gate, self._lifespan),
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="on",
                interface="asgi3",
                log_level="warning",
                access_log=False,
            )
        )
        await self._server.serve(sockets=[listener])
        return self._exit

    @asynccontextmanager
    async def _lifespan(self, _: "Starlette") -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        # Set here, after uvicorn set its own: ours also ends the streams.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, 0)
        self._ranks.watch(self._rank_died)
        async with asyncio.TaskGroup() as tasks:
            batching = tasks.create_task(self._scheduler.run())
            starting = tasks.create_task(self._start())
            try:
                yield
            finally:
                batching.cancel()
                starting.cancel()

    async def _start(self) -> None:
        arguments = self._arguments
        if arguments.dist_init_addr is not None:
            gathering = Gathering(_hello(arguments), arguments.dist_init_addr, self._node_lost)
            try:
                await gathering.gather(arguments.dist_timeout_s)
            except RendezvousFailed as error:
                gathering.close()
                _say(str(error))
                self._stop(1)
                return
        await asyncio.sleep(arguments.table.start_s / arguments.time_scale)
        if self._state.phase == "starting" and self._fault.kind != "never_ready":
            self._state.phase = "up"

    def _stop(self, status: int, why: str = SHUTTING_DOWN) -> None:
        self._exit = max(self._exit, status)
        self._state.phase = "stopping"
        self._scheduler.halt(why, 503)
        self._server.should_exit = True
        asyncio.get_running_loop().call_later(STOP_LIMIT_S, self._cut_connections)

    def _cut_connections(self) -> None:
        self._server.force_exit = True

    def _node_lost(self, node_rank: int) -> None:
        # A group that lost some of its ranks computes nothing more: it ends, which its worker sees.
        if self._state.phase != "stopping":
            _say(f"node {node_rank} is gone")
            self._stop(1, f"node {node_rank} of this engine is gone")

    def _rank_died(self, rank: Rank, status: int) -> None:
        asyncio.get_running_loop().call_later(GROUP_SIGNAL_GRACE_S, self._judge_death, rank, status)

    def _judge_death(self, rank: Rank, status: int) -> None:
        if self._state.phase != "stopping":
            _die(f"rank {rank.rank} (pid {rank.pid}) died with status {status}")

    def _count(self, tokens: int) -> None:
        self._emitted += tokens
        if self._emitted >= self._fault.tokens:
            _die(f"crashed after {self._emitted} tokens (asked for by FLEXPIPE_EMULATED_FAULT)")


async def _follow(arguments: EngineArguments, ranks: RankGroup) -> int:
    """A node without a front: it lives while node 0 and its own ranks do."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[tuple[int, str]] = loop.create_future()

    def finish(status: int, message: str) -> None:
        if not end.done():
            end.set_result((status, message))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, finish, 0, "")
    ranks.watch(lambda rank, status: finish_later(f"rank {rank.rank} died with status {status}"))

    def finish_later(message: str) -> None:
        loop.call_later(GROUP_SIGNAL_GRACE_S, finish, 1, message)

    async def bond() -> None:
        assert arguments.dist_init_addr is not None
        try:
            node0 = await join(
                _hello(arguments), arguments.dist_init_addr, arguments.dist_timeout_s
            )
        except RendezvousFailed as error:
            finish(1, str(error))
            return
        await node0.until_lost()
        finish_later("node 0 is gone")

    bonding = asyncio.create_task(bond())
    status, message = await end
    bonding.cancel()
    if message:
        _say(message)
    return status


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises OSError where the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
