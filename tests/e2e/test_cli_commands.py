"""The command line against a running instance: documents for programs, one line for mistakes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from e2e.shell import Shell
from e2e.stage import Stage, until
from flexpipe.cli import looking

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


async def test_every_view_is_also_one_json_document(stage: Stage) -> None:
    shell = Shell(stage)
    shifted = await shell.document("shift", stage.name, "--to", "pp2")
    assert (shifted["event"], shifted["shift"]) == ("ShiftCompleted", 2)
    await stage.closed(2)
    status = await shell.document("status")
    assert set(status) == {"routes", "fleet", "reservations"}
    fleet = await shell.document("fleet")
    assert set(fleet) == {"revision", "fleet", "reservations", "blocks"}
    gears = await shell.document("gears", stage.name)
    assert [each["deployment"] for each in gears["gears"]] == [stage.name]  # type: ignore[attr-defined]
    assert set(await shell.document("candidates")) == {"proposals"}
    assert set(await shell.document("declined")) == {"declined"}
    assert "gears" in await shell.document("watch")
    assert [each["shift"] for each in (await shell.document("shifts"))["shifts"]] == [1, 2]  # type: ignore[attr-defined]
    record = await shell.document("shift", "2")
    assert record["outcome"] == "completed"
    names = {span["name"] for span in (await shell.document("trace", "2"))["spans"]}  # type: ignore[attr-defined]
    assert {
        "reserving",
        "preparing",
        "canary",
        "freezing",
        "handing-over",
        "retiring",
        "engine start",
    } <= names
    code, out, _ = await shell.run("events", "--json")
    assert code == 0
    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert types.count("ShiftCompleted") == 2
    stopped = await shell.document("stop", stage.name)
    assert stopped["event"] == "ShiftCompleted"


async def test_a_preempted_device_takes_its_plan_along_and_serves_again_when_it_is_back(
    stage: Stage,
) -> None:
    shell = Shell(stage)
    (device,) = (await stage.entry()).plans[0].plan.devices
    altered = await shell.document("fleet", "preempt", str(device))
    assert altered["devices"] == [str(device)]

    async def is_lost() -> bool:
        entry = await stage.entry()
        return not entry.plans and entry.in_flight is None

    await until(is_lost, "the plan on the preempted device is lost")
    assert f"{device.node}/{device.device}" in (await shell.run("watch", "--once"))[1]
    restored = await shell.document("fleet", "restore", str(device))
    assert restored["changes"]

    async def is_open() -> bool:
        return (await looking.read_fleet(stage.bus)).closed(device) is None

    await until(is_open, "the device is open again")
    shifted = await shell.document("shift", stage.name, "--to", f"tp1@{device}")
    assert shifted["event"] == "ShiftCompleted"


async def test_the_whole_trace_of_a_shift_is_one_tree(stage: Stage) -> None:
    document = await Shell(stage).document("trace", "1")
    spans = document["spans"]
    assert isinstance(spans, list)
    ids = {span["span_id"] for span in spans}
    roots = [span for span in spans if span["parent_span_id"] not in ids]
    assert len(roots) == 1
    assert {span["trace_id"] for span in spans} == {document["trace_id"]}


async def test_following_the_event_log_shows_what_comes(stage: Stage) -> None:
    process = await Shell(stage).start("events", "--follow", "--json", "--minutes", "0")
    assert process.stdout is not None
    try:
        outcome = await stage.shift("tp1@cpu1")
        async with asyncio.timeout(30):
            while True:
                event = json.loads(await process.stdout.readline())
                if event["type"] == "PlanRetired" and event["shift"] == outcome.shift:
                    break
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("shift", "emulated", "--to", "tp1"), 1, "in this gear already"),
        (("shift", "emulated", "--to", "tp3"), 2, "must divide the model's 4 attention heads"),
        (("shift", "emulated", "--to", "pp5"), 2, "must not exceed the model's 4 layers"),
        (("shift", "emulated", "--to", "tp1@gpu9"), 2, "no such device in the fleet"),
        (("shift", "nobody", "--to", "tp1"), 2, "apply it first; there are: emulated"),
        (("shift", "99"), 2, "there is none of that number"),
        (("trace", "99"), 2, "there is none of that number"),
        (("stop", "nobody"), 2, "apply it first"),
        (("apply", "-f", "nowhere.toml"), 2, "No such file"),
        (("fleet", "preempt", "node-z/cpu0"), 2, "no such node, node/device or block"),
        (("run", "conductor"), 2, "use one of agent, estimator, executor"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
async def test_a_mistake_is_one_line_and_changes_nothing(
    mistakes: Stage, words: tuple[str, ...], code: int, says: str
) -> None:
    before = await mistakes.entry()
    got, out, err = await Shell(mistakes).run(*words)
    assert (got, out) == (code, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert await mistakes.entry() == before


async def test_a_port_that_is_taken_is_named(stage: Stage, tmp_path: Path) -> None:
    port = stage.instance.router_url.rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flexpipe.cli", "up", "--engine", "emulated", "--port", port),
        env={**os.environ, "FLEXPIPE_HOME": str(tmp_path / "other")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await asyncio.wait_for(process.communicate(), 60.0)
    assert process.returncode == 2
    assert (
        err.decode()
        .splitlines()[-1]
        .startswith(f"flexpipe: port: {port} is not accepted: another program")
    )
