"""How the nodes of one engine find each other: one TCP connection from each node to node 0.

A node says which engine and rank it is; node 0 welcomes all of them once all are there. From then on
the connection is the only bond: its end is the other side's death.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

RETRY_S = 0.1
MAX_LINE_BYTES = 4096


class RendezvousFailed(Exception):
    """The nodes did not come together; ``str(error)`` is one line."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a node says of itself; all but ``node_rank`` must be the same everywhere."""

    plan: str
    layout: str
    nnodes: int
    node_rank: int

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class Gathering:
    """Node 0's side. ``on_loss(node_rank)`` is called for a node that goes away after `gather`."""

    def __init__(self, hello: Hello, address: tuple[str, int], on_loss: Callable[[int], None]):
        self._hello = hello
        self._address = address
        self._on_loss = on_loss
        self._peers: dict[int, asyncio.StreamWriter] = {}
        self._complete = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def gather(self, timeout_s: float) -> None:
        """Wait for all nodes. Raises RendezvousFailed after ``timeout_s`` or if the port is taken."""
        host, port = self._address
        try:
            self._server = await asyncio.start_server(self._meet, host, port, limit=MAX_LINE_BYTES)
        except OSError as error:
            raise RendezvousFailed(f"cannot listen on {host}:{port}: {error.strerror}") from None
        try:
            await asyncio.wait_for(self._complete.wait(), timeout_s)
        except TimeoutError:
            missing = sorted(set(range(1, self._hello.nnodes)) - set(self._peers))
            raise RendezvousFailed(f"nodes {missing} did not arrive in {timeout_s:g} s") from None
        for _, writer in sorted(self._peers.items()):
            writer.write(b"welcome\n")

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._peers.values():
            writer.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        refusal, rank = await self._judge(reader)
        if refusal:
            writer.write(f"refused: {refusal}\n".encode())
            writer.close()
            return
        self._peers[rank] = writer
        if len(self._peers) == self._hello.nnodes - 1:
            self._complete.set()
        with suppress(OSError, ValueError):
            while await reader.read(MAX_LINE_BYTES):
                pass
        writer.close()
        if self._complete.is_set():
            self._on_loss(rank)
        else:
            del self._peers[rank]

    async def _judge(self, reader: asyncio.StreamReader) -> tuple[str, int]:
        """Why the caller is not one of ours ("" if it is), and its node rank."""
        try:
            line = await asyncio.wait_for(reader.readline(), timeout=5.0)
            said = Hello(**json.loads(line))
        except (TimeoutError, OSError, ValueError, TypeError):
            return "unreadable hello", 0
        mine = self._hello
        if (said.plan, said.layout, said.nnodes) != (mine.plan, mine.layout, mine.nnodes):
            return f"this is plan {mine.plan!r}, {mine.layout} over {mine.nnodes} nodes", 0
        if said.node_rank not in range(1, mine.nnodes):
            return f"no node rank {said.node_rank!r}", 0
        if said.node_rank in self._peers or self._complete.is_set():
            return f"node rank {said.node_rank} is there already", 0
        return "", said.node_rank


@dataclass(frozen=True, slots=True)
class Bond:
    """A welcomed node's connection to node 0."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def until_lost(self) -> None:
        """Return when node 0 is gone."""
        with suppress(OSError):
            while await self.reader.read(MAX_LINE_BYTES):
                pass


async def join(hello: Hello, address: tuple[str, int], timeout_s: float) -> Bond:
    """Find node 0, retrying while it is not up. Raises RendezvousFailed after ``timeout_s``."""
    host, port = address
    try:
        async with asyncio.timeout(timeout_s):
            bond = await _connect(host, port)
            bond.writer.write(hello.line())
            answer = (await bond.reader.readline()).decode(errors="replace").strip()
    except TimeoutError:
        raise RendezvousFailed(f"no welcome from {host}:{port} in {timeout_s:g} s") from None
    except OSError as error:
        raise RendezvousFailed(f"node 0 at {host}:{port}: {error}") from None
    if answer != "welcome":
        raise RendezvousFailed(f"node 0 at {host}:{port}: {answer or 'closed the connection'}")
    return bond


async def _connect(host: str, port: int) -> Bond:
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=MAX_LINE_BYTES)
        except OSError:
            await asyncio.sleep(RETRY_S)
        else:
            return Bond(reader, writer)
