"""Instances side by side never share ports, though engines and services listen long after the ports were chosen."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from itertools import pairwise

import pytest

from flexpipe.cli import ports
from flexpipe.cli.ports import (
    ENGINE_PORTS,
    PLANS_A_NODE,
    PORTS_A_NODE,
    engine_ports,
    free_port,
    instance_ports,
    require_free,
)
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.model.fleet import PORTS_PER_PLAN

CLIENT_PORTS = 32_768
"""From here on the kernel gives ports to clients."""


def test_ranges_that_are_held_at_once_do_not_overlap() -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(engine_ports(nodes)) for nodes in (1, 2, 3, 1)]
        firsts = sorted(first for each in held for first in each)
        assert all(after - before >= PORTS_A_NODE for before, after in pairwise(firsts))


def test_two_instances_of_nine_nodes_and_some_of_one_fit_side_by_side() -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(instance_ports(nodes)) for nodes in (9, 9, 1, 1, 1, 1)]
        engines = [
            port
            for each in held
            for first in each.engines
            for port in range(first, first + PLANS_A_NODE * PORTS_PER_PLAN)
        ]
        services = [each.service() for each in held for _ in range(len(each.engines) * 3 + 6)]
        assert len(set(engines + services)) == len(engines) + len(services)
        assert max(engines + services) < CLIENT_PORTS


def test_service_ports_are_an_instances_own_until_it_is_left() -> None:
    with instance_ports(1) as ports:
        given = [ports.service() for _ in range(31)]
        with pytest.raises(Unavailable, match="31 ports are given out"):
            ports.service()
        with instance_ports(1) as others:
            assert others.service() not in given
        for port in given:
            require_free(port)
    assert len(set(given)) == 31


def test_a_service_port_that_a_stranger_took_is_passed_over() -> None:
    with instance_ports(1) as ports, socket.socket() as stranger:
        first = ports.service()
        stranger.bind(("127.0.0.1", first + 1))
        stranger.listen()
        assert ports.service() == first + 2


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


def test_nine_nodes_stay_below_the_ports_that_the_kernel_gives_to_clients() -> None:
    assert ENGINE_PORTS[-1] + 9 * PORTS_A_NODE < CLIENT_PORTS


def test_a_port_that_is_listened_on_is_refused_by_its_number() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        with pytest.raises(InvalidInput, match=str(taken)):
            require_free(taken)
    require_free(free_port())
