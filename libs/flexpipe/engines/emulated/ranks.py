"""The ranks of one node: forked children that do nothing but live, so that one can be killed.

A child ends with its parent, however that ends: it waits on a pipe whose other end only the parent
holds. The parent learns of a child's death the same way, by the child's own pipe.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True, slots=True)
class Rank:
    """One child: its global rank, pid, and a descriptor that reads end-of-file once it is dead."""

    rank: int
    pid: int
    alive_fd: int


@dataclass(frozen=True, slots=True)
class RankGroup:
    """All ranks of this node; ``hold_fd`` is the end whose closing ends them."""

    ranks: tuple[Rank, ...]
    hold_fd: int

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(rank.pid for rank in self.ranks)

    def watch(self, on_death: Callable[[Rank, int], None]) -> None:
        """Call ``on_death(rank, exit status)`` from the running loop when a child dies."""
        loop = asyncio.get_running_loop()
        for rank in self.ranks:
            loop.add_reader(rank.alive_fd, self._reap, rank, on_death)

    def _reap(self, rank: Rank, on_death: Callable[[Rank, int], None]) -> None:
        asyncio.get_running_loop().remove_reader(rank.alive_fd)
        _, status = os.waitpid(rank.pid, 0)
        on_death(rank, os.waitstatus_to_exitcode(status))


def fork_ranks(first: int, count: int) -> RankGroup:
    """Fork ``count`` children, ranks ``first`` and up. Call before any thread or socket is there."""
    wait_fd, hold_fd = os.pipe()
    ranks = []
    for number in range(first, first + count):
        alive_fd, mine_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(hold_fd)
            _live(number, wait_fd)
        os.close(mine_fd)
        os.set_blocking(alive_fd, False)
        ranks.append(Rank(number, pid, alive_fd))
    os.close(wait_fd)
    return RankGroup(tuple(ranks), hold_fd)


def _live(rank: int, wait_fd: int) -> NoReturn:
    # An interrupt reaches the whole terminal group: the parent decides, the pipe tells.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write(f"emulated-rank{rank}")
    with suppress(OSError):
        os.read(wait_fd, 1)
    os._exit(0)
