"""Blocks of ports on a plan's first node: which are taken, and the lowest that is free."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from flexpipe.model.fleet import PORTS_PER_PLAN, Node
from flexpipe.transitions.books import Books
from flexpipe.transitions.case import Case


def taken_ports(books: Books, cases: Iterable[Case], node: str) -> set[int]:
    """Starts of the blocks that plans of route entries and open records use on a node."""
    taken = set()
    for entry in books.routes():
        for routed in entry.plans:
            port = urlsplit(routed.front).port
            if routed.plan.nodes[0] == node and port is not None:
                taken.add(port)
    for case in cases:
        taken |= {seat.front_port for seat in case.seats if case.front_of(seat.plan) == node}
    return taken


def free_block(node: Node, taken: set[int]) -> int | None:
    """The lowest start of a free block, or None where all are taken."""
    starts = (node.first_port + index * PORTS_PER_PLAN for index in range(node.port_blocks))
    return next((start for start in starts if start not in taken), None)
