"""Gears, candidates, refusals and the live screen, read from a real bus."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios

import pytest

from flexpipe.events.hatch import DeploymentPinned
from flexpipe.events.route import LoadObserved
from flexpipe.model.outlook import Load
from flexpipe.model.route import Pin
from flexpipe.testing.builders import a_deployment, a_gear
from flexpipe.testing.fleets import twenty_seven
from integration.cli.conftest import Terminal
from integration.cli.peers import Peers
from unit.cli.loopworld import DEEP, DEPLOYMENT, WIDE, baseline, declined, entry, proposal, record

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LIMIT_S = 30.0


async def furnish(peers: Peers) -> None:
    """One deployment, pinned, with a shift in flight, a baseline, a proposal and a load."""
    await peers.put_fleet(twenty_seven())
    await peers.put("operator", "deployments", "chat", DEPLOYMENT)
    pin = Pin(reason="bad night", by="anna", at_s=3600.0)
    await peers.put("executor", "routes", "chat", entry(WIDE, pin=pin, in_flight=2))
    await peers.put("executor", "shifts", "chat.2", record(a_gear(WIDE, DEEP)))
    await peers.put("planner", "baselines", "chat", baseline(None, reason="no block of 8"))
    await peers.say("planner", proposal())
    load = LoadObserved(
        router="r1",
        deployment="chat",
        window_s=5.0,
        arrived=10,
        queued=1,
        parked=0,
        ttft_p95_ms=420.0,
        plans=(),
    )
    await peers.say("router", load)


async def test_gears_join_route_prediction_shift_pin_and_baseline(
    peers: Peers, terminal: Terminal
) -> None:
    await furnish(peers)
    document = await terminal.document("gears")
    (gear,) = document["gears"]
    assert gear["deployment"] == "chat"
    assert gear["entry"]["pin"]["reason"] == "bad night"
    assert gear["places"] == {WIDE.id: "a.4-0"}
    assert gear["outlook"]["good_tokens_per_s"] == 1234.0
    assert gear["running"]["phase"] == "canary"
    assert gear["baseline"]["gear"] is None
    said = await terminal.run("gears", "chat")
    assert "FITS NOWHERE on fleet revision 1: no block of 8" in said.words
    assert "pinned by anna at 01:00:00.000: bad night" in said.words


async def test_a_view_of_one_deployment_leaves_out_the_others(
    peers: Peers, terminal: Terminal
) -> None:
    for name in ("chat", "code"):
        await peers.put("operator", "deployments", name, a_deployment(name))
        await peers.say("planner", proposal(name))
        await peers.say("estimator", declined(name))
    for command, key in (("gears", "gears"), ("candidates", "proposals"), ("declined", "declined")):
        every = await terminal.document(command)
        one = await terminal.document(command, "code")
        assert [each["deployment"] for each in every[key]] == ["chat", "code"]
        assert [each["deployment"] for each in one[key]] == ["code"]
        said = await terminal.run(command, "nobody")
        assert (said.code, said.out) == (2, "")
        assert "apply it first; there are: chat, code" in said.err


async def test_candidates_are_those_of_the_newest_proposal(
    peers: Peers, terminal: Terminal
) -> None:
    older = proposal().model_copy(update={"proposal": "prop-0", "trigger": "older"})
    await peers.say("planner", older, proposal())
    document = await terminal.document("candidates")
    (newest,) = document["proposals"]
    assert newest["proposal"] == "prop-1"
    assert newest["rejected"][0]["reason"].startswith("pcie carries")
    said = await terminal.run("candidates")
    assert "block c1 came back" in said.words
    assert "older" not in said.words


async def test_candidates_tell_no_data_from_no_traffic(peers: Peers, terminal: Terminal) -> None:
    await peers.put("operator", "deployments", "chat", DEPLOYMENT)
    for data, says in (("no-data", "no router was heard"), ("idle", "no traffic over 60 s")):
        load = Load.model_validate({"data": data, "window_s": 60.0})
        await peers.say("planner", proposal().model_copy(update={"load": load, "trigger": data}))
        assert f"load: {says}" in (await terminal.run("candidates")).words.replace("no data: ", "")


async def test_declined_gives_the_last_refusals_oldest_first(
    peers: Peers, terminal: Terminal
) -> None:
    await peers.put("operator", "deployments", "chat", DEPLOYMENT)
    await peers.say("estimator", *(declined(at_s=float(at_s)) for at_s in range(1, 6)))
    document = await terminal.document("declined", "--last", "2")
    assert [each["at_s"] for each in document["declined"]] == [4.0, 5.0]
    said = await terminal.run("declined", "chat")
    assert said.words.count("gain 12500 is not more than 14000 tokens") == 5
    assert "> 1.4" in said.words
    assert (await terminal.document("declined", "--minutes", "0"))["declined"] == []


async def test_views_of_an_empty_bus_say_who_has_not_spoken(terminal: Terminal) -> None:
    for command, says in (
        ("fleet", "no node is known"),
        ("gears", "nothing is declared"),
        ("candidates", "no planner has spoken yet"),
        ("declined", "nothing was declined"),
        ("watch --once", "no events yet"),
    ):
        said = await terminal.run(*command.split())
        assert said.code == 0
        assert says in said.words


async def test_events_are_sentences_with_their_time(peers: Peers, terminal: Terminal) -> None:
    await peers.say("planner", proposal())
    await peers.say("estimator", declined())
    pinned = DeploymentPinned(deployment="chat", reason="bad night", by="anna")
    await peers.say("executor", pinned)
    said = await terminal.run("events")
    lines = [line.partition("  ")[2] for line in said.out.splitlines()]
    assert [line.split("  ")[0] for line in lines] == [
        "CandidatesProposed",
        "ShiftDeclined",
        "DeploymentPinned",
    ]
    assert lines[2] == "DeploymentPinned  chat is pinned by anna: bad night"
    documents = [
        json.loads(line) for line in (await terminal.run("events", "--json")).out.splitlines()
    ]
    assert [each["type"] for each in documents] == [line.split("  ")[0] for line in lines]
    assert all(each["at_s"] > 0 for each in documents)


async def test_one_frame_of_the_screen_has_everything(peers: Peers, terminal: Terminal) -> None:
    await furnish(peers)
    said = await terminal.run("watch", "--once")
    assert said.code == 0
    for part in ("fleet revision 1", "420 ms", "shift 2 in flight", "FITS NOWHERE", "anna"):
        assert part in said.words
    document = await terminal.document("watch")
    assert set(document) == {"fleet", "held", "gears", "loads", "events", "trouble"}
    assert [each["type"] for each in document["events"]] == ["CandidatesProposed"]
    assert document["loads"][0]["load"]["ttft_p95_ms"] == 420.0


async def started(
    environment: dict[str, str], *words: str, stdout: int
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flexpipe.cli", *words),
        env={**os.environ, **environment, "PYTHONUNBUFFERED": "1", "TERM": "xterm"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Interrupted as by Ctrl-C: its exit code and its complaints."""
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    return process.returncode, err.decode()


async def test_in_a_pipe_the_screen_is_one_frame_and_then_a_line_an_event(
    peers: Peers, environment: dict[str, str]
) -> None:
    await furnish(peers)
    process = await started(environment, "watch", stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        seen = ""
        while "CandidatesProposed" not in seen:  # the last line of the frame
            seen += (await process.stdout.readline()).decode()
        await peers.say("estimator", declined())
        while "no shift (hysteresis)" not in seen:
            seen += (await process.stdout.readline()).decode()
    assert "fleet revision 1" in seen
    code, err = await ended(process)
    assert (code, err) == (0, "")


async def test_on_a_terminal_the_screen_is_drawn_again_and_left_as_it_was(
    peers: Peers, environment: dict[str, str]
) -> None:
    await furnish(peers)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    os.set_blocking(ours, False)
    process = await started(environment, "watch", stdout=theirs)
    os.close(theirs)
    seen = b""

    async def until(text: str) -> None:
        nonlocal seen
        async with asyncio.timeout(LIMIT_S):
            while text.encode() not in seen:
                try:
                    seen += os.read(ours, 1 << 16)
                except BlockingIOError:
                    await asyncio.sleep(0.02)

    try:
        await until("fleet revision 1")
        await peers.put("planner", "baselines", "chat", baseline(a_gear(WIDE)))
        await until("baseline tp4 fits")
        await peers.say("estimator", declined())
        await until("no shift (hysteresis)")
        code, err = await ended(process)
        assert (code, err) == (0, "")
        await until("\x1b[?1049l")  # back to the screen that was there before
    finally:
        os.close(ours)
