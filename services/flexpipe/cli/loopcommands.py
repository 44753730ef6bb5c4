"""The commands of the loop: what it sees and decides, and the hatch. Each parses, calls one function and prints."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from pydantic import ValidationError

from flexpipe.cli import hatch, looking, loopview, ordering, watching
from flexpipe.cli.context import operator_bus
from flexpipe.cli.options import SHIFT_LIMIT_S, AsJson, OneDeployment, run
from flexpipe.cli.printing import console, show, teller
from flexpipe.events.hatch import CancelShift, DownshiftDeployment, UnpinDeployment, Urgent
from flexpipe.events.planning import CandidatesProposed, ShiftDeclined
from flexpipe.kernel.errors import InvalidInput

DECLINES_SHOWN = 20
"""By default: the last five minutes of a deployment at the usual cycle."""
DECLINES_LIMIT = 1000
DAY_MINUTES = 1440.0

loop_app = typer.Typer()

Reason = Annotated[str, typer.Option("--reason", help="Kept with the pin, and on the event log.")]


@loop_app.command()
def gears(deployment: OneDeployment = None, *, as_json: AsJson = False) -> None:
    """Gears in force: plans, shares, places, predictions, shift in flight, pin, and whether the baseline fits."""

    async def work() -> tuple[loopview.GearPicture, ...]:
        async with operator_bus() as bus:
            if deployment is not None:
                await looking.declared(bus, deployment)
            pictures = await watching.read_gears(bus)
        return tuple(each for each in pictures if deployment in (None, each.deployment))

    pictures = run(work())
    show({"gears": pictures}, loopview.gears_view(pictures, time.time()), as_json=as_json)


@loop_app.command()
def candidates(deployment: OneDeployment = None, *, as_json: AsJson = False) -> None:
    """The newest proposal of each deployment: load, gears that the fleet allows, and what was rejected and why."""

    async def work() -> None:
        async with operator_bus() as bus:
            if deployment is not None:
                await looking.declared(bus, deployment)
            proposals = await looking.newest(bus, CandidatesProposed, deployment)
            fleet = await looking.read_fleet(bus)
            deployments = await looking.read_deployments(bus)
        view = loopview.candidates_view(proposals, fleet, deployments)
        show({"proposals": proposals}, view, as_json=as_json)

    run(work())


@loop_app.command()
def declined(
    deployment: OneDeployment = None,
    *,
    last: Annotated[int, typer.Option("--last", help="How many.")] = DECLINES_SHOWN,
    minutes: Annotated[float, typer.Option(help="How far back.")] = DAY_MINUTES,
    as_json: AsJson = False,
) -> None:
    """Why no shift was ordered: guard, reason and numbers of each refusal, oldest first."""
    if not 1 <= last <= DECLINES_LIMIT:
        raise InvalidInput("--last", last, f"from 1 to {DECLINES_LIMIT}")
    if not 0 <= minutes <= 30 * DAY_MINUTES:
        raise InvalidInput("--minutes", minutes, "from 0 to 43200: the event log keeps 30 days")

    async def work() -> None:
        async with operator_bus() as bus:
            deployments = await looking.read_deployments(bus)
            if deployment is not None:
                await looking.declared(bus, deployment)
            since_s = time.time() - minutes * 60
            said = await looking.recent(bus, ShiftDeclined, deployment, since_s=since_s, last=last)
        show({"declined": said}, loopview.declined_view(said, deployments), as_json=as_json)

    run(work())


@loop_app.command()
def downshift(
    deployment: str,
    *,
    reason: Reason = "",
    wait: Annotated[bool, typer.Option(help="Wait until the baseline is in force.")] = True,
    as_json: AsJson = False,
) -> None:
    """The hatch: force the baseline gear and pin it, until `flexpipe unpin`. Exit 1 where it is not in force."""
    follow_s = SHIFT_LIMIT_S if wait else None
    _urgent(DownshiftDeployment, deployment, reason, follow_s=follow_s, as_json=as_json)


@loop_app.command()
def cancel(deployment: str, *, reason: Reason = "", as_json: AsJson = False) -> None:
    """Undo the shift in flight, where it can still be undone. Pins nothing."""
    _urgent(CancelShift, deployment, reason, follow_s=None, as_json=as_json)


@loop_app.command()
def unpin(deployment: str, *, reason: Reason = "", as_json: AsJson = False) -> None:
    """Let the automation act again."""
    _urgent(UnpinDeployment, deployment, reason, follow_s=None, as_json=as_json)


def _urgent(
    cls: type[Urgent], deployment: str, reason: str, *, follow_s: float | None, as_json: bool
) -> None:
    try:
        command = cls(deployment=deployment, by=ordering.whoever(), reason=reason)
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        value = {"deployment": deployment, "reason": reason}.get(field)
        fix = {"deployment": "apply it first", "reason": "at most 500 characters"}.get(field, "")
        raise InvalidInput(field, value, fix) from error

    async def work() -> hatch.Pulled:
        async with operator_bus() as bus:
            return await hatch.send(bus, command, teller(as_json=as_json), follow_s=follow_s)

    pulled = run(work())
    if as_json:
        show(pulled, as_json=True)


@loop_app.command()
def watch(
    *,
    once: Annotated[bool, typer.Option("--once", help="One frame, and out.")] = False,
    as_json: AsJson = False,
) -> None:
    """A live screen: fleet, gears, shifts, load and the last events. Ctrl-C leaves it."""

    async def work() -> None:
        async with operator_bus() as bus:
            if as_json:
                show(await watching.look(bus), as_json=True)
            elif once:
                console.print(watching.frame(await watching.look(bus), time.time()))
            else:
                await watching.follow(bus, console)

    try:
        run(work())
    except KeyboardInterrupt:
        return
