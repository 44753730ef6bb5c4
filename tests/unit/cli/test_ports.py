"""Instances side by side never share engine ports, though engines listen long after the ports were chosen."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from itertools import pairwise

import pytest

from flexpipe.cli import ports
from flexpipe.cli.ports import ENGINE_PORTS, PORTS_A_NODE, engine_ports, free_port, require_free
from flexpipe.kernel.errors import InvalidInput, Unavailable


def test_ranges_that_are_held_at_once_do_not_overlap() -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(engine_ports(nodes)) for nodes in (1, 2, 3, 1)]
        firsts = sorted(first for each in held for first in each)
        assert all(after - before >= PORTS_A_NODE for before, after in pairwise(firsts))


def test_a_range_is_taken_until_its_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    only = 12_000 + os.getpid() % 1_000  # apart from those of instances that run beside this test
    monkeypatch.setattr(ports, "ENGINE_PORTS", range(only, only + 1))
    for _ in range(2):
        with engine_ports(1) as firsts:
            assert firsts == (only,)
            with pytest.raises(Unavailable, match="no free engine ports"), engine_ports(1):
                pass


def test_a_range_where_somebody_listens_is_passed_over() -> None:
    with engine_ports(1) as (first,):
        pass
    with socket.socket() as listener:
        listener.bind(("127.0.0.2", first + 3))
        listener.listen()
        with engine_ports(1) as (other,):
            assert other != first


def test_three_nodes_stay_below_the_ports_that_the_kernel_gives_to_clients() -> None:
    assert ENGINE_PORTS[-1] + 3 * PORTS_A_NODE < 32_768


def test_a_port_that_is_listened_on_is_refused_by_its_number() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        with pytest.raises(InvalidInput, match=str(taken)):
            require_free(taken)
    require_free(free_port())
