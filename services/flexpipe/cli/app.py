"""The commands. Each parses, calls one function and prints; errors are one line without a traceback."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from flexpipe.cli import looking, ordering, views
from flexpipe.cli.context import operator_bus
from flexpipe.cli.declare import read_deployment
from flexpipe.cli.embedded import Embedded, run_up
from flexpipe.cli.exits import exits
from flexpipe.cli.fleetcommands import fleet_app
from flexpipe.cli.loopcommands import loop_app
from flexpipe.cli.options import SHIFT_LIMIT_S, AsJson, OfDeployment, run
from flexpipe.cli.printing import console, event_line, finish, show, teller
from flexpipe.kernel.errors import InvalidInput

app = typer.Typer(
    name="flexpipe",
    help="Serves LLMs on GPU clusters that are never whole.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
journal_app = typer.Typer(help="The input journal of deciding machines.", no_args_is_help=True)
app.add_typer(fleet_app, name="fleet")
app.add_typer(loop_app)
app.add_typer(journal_app, name="journal")


@app.command()
def apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="Deployment file (TOML).")],
    *,
    wait: Annotated[bool, typer.Option(help="Wait until it serves.")] = True,
    as_json: AsJson = False,
) -> None:
    """Declare a deployment; where it does not serve yet, start it on its baseline."""
    deployment = read_deployment(file)

    async def work() -> None:
        async with operator_bus() as bus:
            serving = any(
                route.deployment == deployment.name and route.plans
                for route in await looking.read_routes(bus)
            )
            if serving:
                changed = await ordering.store_deployment(bus, deployment)
                stored = "stored" if changed else "unchanged"
                show(
                    {"deployment": deployment.name, "changed": changed, "shift": None},
                    f"{deployment.name} serves already; {stored}",
                    as_json=as_json,
                )
                return
            gear = await ordering.resolve_for(bus, deployment, deployment.baseline)
            await ordering.store_deployment(bus, deployment)  # what fits nowhere is not declared
            trigger = f"first start of {deployment.name} on {deployment.baseline}"
            told = await ordering.order_shift(
                bus,
                deployment.name,
                gear,
                trigger,
                teller(as_json=as_json),
                wait_s=SHIFT_LIMIT_S if wait else None,
            )
            finish(told, as_json=as_json)

    run(work())


@app.command()
def shift(
    which: Annotated[
        str, typer.Argument(help="A deployment (with --to), or the number of a shift to look at.")
    ],
    to: Annotated[
        str | None, typer.Option("--to", help="Gear to shift to, such as tp1 or 'pp2@cpu0,cpu1'.")
    ] = None,
    deployment: OfDeployment = None,
    *,
    wait: Annotated[bool, typer.Option(help="Wait for the outcome.")] = True,
    as_json: AsJson = False,
) -> None:
    """Shift a deployment to another gear (`shift NAME --to GEAR`), or look at one shift (`shift N`)."""

    async def look(number: int) -> None:
        async with operator_bus() as bus:
            record = await looking.read_shift(bus, number, deployment)
            show(record, views.shift_view(record), as_json=as_json)

    async def order(gear_words: str) -> None:
        async with operator_bus() as bus:
            gear = await ordering.resolve(bus, which, gear_words)
            told = await ordering.order_shift(
                bus,
                which,
                gear,
                f"ordered by hand: {gear_words}",
                teller(as_json=as_json),
                wait_s=SHIFT_LIMIT_S if wait else None,
            )
            finish(told, as_json=as_json)

    if to is not None:
        run(order(to))
    elif which.isdecimal():
        run(look(int(which)))
    else:
        raise InvalidInput("shift", which, "add --to GEAR, or give the number of a shift")


@app.command()
def stop(
    deployment: str,
    *,
    wait: Annotated[bool, typer.Option(help="Wait for the outcome.")] = True,
    as_json: AsJson = False,
) -> None:
    """Stop serving a deployment: running sequences finish, later requests are refused."""

    async def work() -> None:
        async with operator_bus() as bus:
            told = await ordering.order_shift(
                bus,
                deployment,
                await ordering.resolve(bus, deployment, "empty"),
                "stopped by hand",
                teller(as_json=as_json),
                wait_s=SHIFT_LIMIT_S if wait else None,
            )
            finish(told, as_json=as_json)

    run(work())


@app.command()
def status(*, as_json: AsJson = False) -> None:
    """What serves now, and what each device holds."""

    async def work() -> None:
        async with operator_bus() as bus:
            routes = await looking.read_routes(bus)
            fleet = await looking.read_fleet(bus)
            held = await looking.read_reservations(bus)
        document = {"routes": routes, "fleet": fleet, "reservations": held}
        show(document, views.status_view(routes, fleet, held, time.time()), as_json=as_json)

    run(work())


@app.command()
def shifts(deployment: OfDeployment = None, *, as_json: AsJson = False) -> None:
    """All shifts, oldest first."""

    async def work() -> None:
        async with operator_bus() as bus:
            records = await looking.read_shifts(bus, deployment)
        show({"shifts": records}, views.shifts_view(records), as_json=as_json)

    run(work())


@app.command()
def events(
    *,
    minutes: Annotated[float, typer.Option(help="How far back.", min=0, max=43_200)] = 60.0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes.")] = False,
    as_json: AsJson = False,
) -> None:
    """The event log, a line each."""

    async def work() -> None:
        since_s = time.time() - minutes * 60
        async with operator_bus() as bus:
            if follow:
                async with bus.listen(looking.logged_events(), since_s=since_s) as deliveries:
                    async for delivered in deliveries:
                        event_line(delivered, as_json=as_json)
            else:
                async for delivered in looking.history(bus, looking.logged_events(), since_s):
                    event_line(delivered, as_json=as_json)

    run(work())


@app.command()
def trace(
    number: Annotated[int, typer.Argument(help="Number of the shift.")],
    deployment: OfDeployment = None,
    *,
    as_json: AsJson = False,
) -> None:
    """The one trace of a shift, as a tree."""

    async def work() -> None:
        async with operator_bus() as bus:
            record = await looking.read_shift(bus, number, deployment)
            spans = await looking.read_spans(bus, record.order.trace_id)
        show(
            {"trace_id": record.order.trace_id, "spans": spans},
            views.trace_view(spans),
            as_json=as_json,
        )

    run(work())


@app.command(name="run")
def run_service(
    service: Annotated[
        str,
        typer.Argument(help="agent, estimator, executor, monitor, planner, router or worker."),
    ],
    *,
    exit_with_parent: Annotated[
        bool,
        typer.Option(help="Stop when standard input ends (how `flexpipe up` holds its services)."),
    ] = False,
) -> None:
    """Run one service in the foreground; settings come from the environment."""
    from flexpipe.cli.serving import run_in_foreground  # noqa: PLC0415 - services load much that other commands do not

    run_in_foreground(service, exit_with_parent=exit_with_parent)


@app.command()
def up(
    *,
    engine: Annotated[str, typer.Option(help="sglang or emulated.")] = "sglang",
    port: Annotated[int, typer.Option(help="The router's port.", min=1, max=65_535)] = 8000,
    fleet: Annotated[
        Path | None,
        typer.Option(help="A fleet file: its nodes instead of one, and nothing deployed yet."),
    ] = None,
) -> None:
    """Embedded NATS, all services and the example deployment on this machine, until interrupted."""
    from flexpipe.cli.demo import deploy_example  # noqa: PLC0415

    async def deploy(instance: Embedded) -> None:
        if fleet is None:
            await deploy_example(engine, instance, console.print)

    run(run_up(engine, console, port=port, fleet=fleet, deploy=deploy))


@app.command()
def demo(
    *,
    engine: Annotated[str, typer.Option(help="sglang or emulated.")] = "sglang",
    as_json: AsJson = False,
) -> None:
    """A live gear shift under running streams, and the account of it."""
    from flexpipe.cli.demo import run_demo  # noqa: PLC0415

    raise typer.Exit(run(run_demo(engine, console, as_json=as_json)))


@app.command()
def schemas(
    folder: Annotated[Path, typer.Argument(help="Where to write.")] = Path("schemas"),
    *,
    check: Annotated[bool, typer.Option(help="Only compare.")] = False,
) -> None:
    """Write the schemas of everything said on the bus, from the catalogue."""
    from flexpipe.bus.schemas import differences, write  # noqa: PLC0415

    if not check:
        write(folder)
        return
    different = differences(folder)
    if different:
        raise InvalidInput(
            "schemas", ", ".join(different), "run `make schemas` and commit the result"
        )


@journal_app.command()
def export(
    service: Annotated[
        str,
        typer.Argument(help="agent, estimator, executor, monitor, planner, router or worker."),
    ],
    name: Annotated[
        str,
        typer.Argument(
            help="Which one, such as node-a; the service's own name where there is one."
        ),
    ],
    file: Annotated[Path, typer.Argument(help="Where to (JSON lines).")],
    *,
    as_json: AsJson = False,
) -> None:
    """Write the journal of one machine to a file."""
    from flexpipe.cli.replaying import export_file  # noqa: PLC0415 - machines load much that other commands do not

    async def work() -> None:
        async with operator_bus() as bus:
            lines = await export_file(bus, service, name, file)
        document = {"lines": lines, "file": str(file.absolute())}
        show(document, Text(f"{lines} lines → {file}"), as_json=as_json)

    run(work())


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A file of `flexpipe journal export`.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Feed a journal to a fresh machine and compare every decision, byte for byte. Exit 1 where one differs."""
    from flexpipe.cli.replaying import replay_file  # noqa: PLC0415

    report = replay_file(file)
    show(
        report, f"{report.events} inputs, {len(report.differing)} decisions differ", as_json=as_json
    )
    if report.differing:
        raise typer.Exit(1)


def main() -> None:
    """The entry point of every command."""
    # Services log by a configuration of their own. A command says what went wrong itself, once, in one line.
    logging.getLogger("flexpipe").addHandler(logging.NullHandler())
    with exits():
        app()
