"""The commands of `flexpipe fleet`: show it, and tell an emulated one what happens to it."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.text import Text

from flexpipe.cli import altering, fleetview, looking
from flexpipe.cli.context import operator_bus
from flexpipe.cli.options import AsJson, run
from flexpipe.cli.printing import console, show
from flexpipe.cli.saying import sentence_of
from flexpipe.events.fleet import FleetChanged
from flexpipe.kernel.errors import InvalidInput

DAY_S = 86_400

fleet_app = typer.Typer(help="The fleet, and what happens to an emulated one.")

Targets = Annotated[
    list[str],
    typer.Argument(metavar="TARGET…", help="Nodes, devices (node/device) or blocks."),
]


@fleet_app.callback(invoke_without_command=True)
def fleet(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Racks, nodes and devices: their state, why one is closed, who holds it; and what is free of each block."""
    if context.invoked_subcommand is not None:
        return

    async def work() -> None:
        async with operator_bus() as bus:
            now = await looking.read_fleet(bus)
            held = await looking.read_reservations(bus)
        document = fleetview.fleet_document(now, held)
        show(document, fleetview.fleet_view(now, held, time.time()), as_json=as_json)

    run(work())


@fleet_app.command()
def preempt(targets: Targets, *, as_json: AsJson = False) -> None:
    """Take devices away at once: what runs there is killed."""
    _alter(targets, altering.Alteration(change="preempt"), as_json=as_json)


@fleet_app.command()
def fail(targets: Targets, *, as_json: AsJson = False) -> None:
    """Let devices die; of a whole node, its agent and worker fall silent too."""
    _alter(targets, altering.Alteration(change="fail"), as_json=as_json)


@fleet_app.command()
def restore(targets: Targets, *, as_json: AsJson = False) -> None:
    """Make devices again what was declared."""
    _alter(targets, altering.Alteration(change="restore"), as_json=as_json)


@fleet_app.command()
def notice(
    targets: Targets,
    within_s: Annotated[float, typer.Option("--in", help="Seconds until they are taken.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Give notice that devices will be taken: nothing new is placed on them, and then they go."""
    if not 0 <= within_s <= DAY_S:
        raise InvalidInput("--in", within_s, f"seconds, from 0 to {DAY_S}")
    _alter(targets, altering.Alteration(change="notice", leaves_in_s=within_s), as_json=as_json)


@fleet_app.command()
def degrade(
    targets: Targets,
    factor: Annotated[float, typer.Option("--factor", help="Of nominal bandwidth.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Let the links of devices run at a part of their nominal bandwidth."""
    if not 0 < factor <= 1:
        raise InvalidInput("--factor", factor, "above 0, and at most 1")
    _alter(targets, altering.Alteration(change="degrade", factor=factor), as_json=as_json)


@fleet_app.command()
def reserve(
    targets: Targets,
    tenant: Annotated[str, typer.Option("--tenant", help="For whom.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Reserve devices for another tenant: nothing new is placed on them."""
    if not 0 < len(tenant) <= 100:
        raise InvalidInput("--tenant", tenant, "a name of 1 to 100 characters")
    _alter(targets, altering.Alteration(change="reserve", tenant=tenant), as_json=as_json)


def _alter(targets: list[str], wanted: altering.Alteration, *, as_json: bool) -> None:
    def tell(changed: FleetChanged) -> None:
        if not as_json:
            console.print(Text(sentence_of(changed)), soft_wrap=True)

    async def work() -> altering.Altered:
        async with operator_bus() as bus:
            return await altering.alter(bus, targets, wanted, tell)

    altered = run(work())
    if as_json:
        show(altered, as_json=True)
    elif not altered.changes:
        console.print(Text(f"told; the fleet (revision {altered.revision}) was so already"))
