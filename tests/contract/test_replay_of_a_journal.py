"""One journal, two interpreters with two hash seeds: the same effects, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flexpipe.bus.journal import Begin, Fed, effects_digest, effects_text
from flexpipe.bus.replay import replay
from flexpipe.hosting.worker import Worker
from flexpipe.kernel.errors import InvalidInput
from flexpipe.kernel.machine import Delivered, Effects, Entry, Input, Machine, Measure, Started
from flexpipe.testing.tally import Nudged, Tally, an_order
from flexpipe.transitions.machine import Executor

TELL = """
import sys
from flexpipe.bus.journal import parse_line, effects_text
from flexpipe.bus.replay import replay
from flexpipe.testing.{module} import {machine}
lines = sys.stdin.read().splitlines()
machine = {machine}()
for line in lines[1:]:
    fed = parse_line(line)
    print(effects_text(machine.handle(fed.now_s, fed.event())))
print(replay(lines, {machine}).differing)
print(machine.snapshot())
"""


class Moody:
    """A machine with the very fault that a replay is for: a set chooses the order."""

    def handle(self, now_s: float, event: Input) -> Effects:
        words = {f"word-{i}" for i in range(20)}
        return Effects(do=tuple(Measure(name=word, value=now_s) for word in words))

    def snapshot(self) -> str:
        return "{}"

    def restore(self, snapshot: str) -> None:
        pass


def inputs() -> list[Input]:
    entry = Entry(bucket="routes", key="toy", value="{}", revision=3)
    events: list[Input] = [Started(entries=(entry,))]
    for i in range(20):
        order = an_order(f"o-{i}", deployment=("toy", "other")[i % 2])
        events.append(
            Delivered(type="OrderShift", message=order.message, message_id=order.message_id)
        )
        events.append(Nudged(text=f"n-{i}"))
    return events


def journal_of(machine: Machine, events: list[Input]) -> list[str]:
    """What a shell would have written."""
    lines = [Begin(run="r", service="toy", name="one", now_s=0.0).canonical_json()]
    for n, event in enumerate(events, start=1):
        effects = machine.handle(n / 7, event)
        fed = Fed(
            run="r",
            n=n,
            now_s=n / 7,
            kind=type(event).__name__,
            input=event.model_dump(mode="json"),
            effects=effects_digest(effects),
        )
        lines.append(fed.canonical_json())
    return lines


def told_under(seed: str, lines: list[str]) -> str:
    """What a fresh interpreter with this hash seed makes of a journal."""
    return subprocess.run(
        [sys.executable, "-c", TELL.format(module="tally", machine="Tally")],
        input="\n".join(lines),
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_a_replay_gives_the_same_bytes_under_two_hash_seeds() -> None:
    machine = Tally()
    lines = journal_of(machine, inputs())
    one, two = told_under("1", lines), told_under("2", lines)
    assert one == two
    *effects, differing, snapshot = one.splitlines()
    again = Tally()
    assert effects == [
        effects_text(again.handle(n / 7, event)) for n, event in enumerate(inputs(), start=1)
    ]
    assert differing == "()"
    assert snapshot == machine.snapshot()


def test_a_machine_that_lets_a_set_choose_is_found_out() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
import test_replay_of_a_journal as t
print("\\n".join(t.journal_of(t.Moody(), t.inputs()[:3])))
"""
    lines = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    assert len(replay(lines, Moody).differing) == 3


def test_runs_are_fed_to_machines_of_their_own() -> None:
    lines = journal_of(Tally(), inputs())
    second = [line.replace('"run":"r"', '"run":"s"') for line in lines]
    report = replay(lines + second, Tally)
    assert (report.runs, report.events, report.differing) == (2, 2 * len(inputs()), ())


def test_a_run_that_began_from_a_snapshot_is_replayed_from_it() -> None:
    machine = Tally()
    journal_of(machine, inputs())
    begin = Begin(run="r", service="toy", name="one", now_s=9.0, snapshot=machine.snapshot())
    lines = [begin.canonical_json(), *journal_of(machine, inputs())[1:]]
    assert replay(lines, Tally).differing == ()
    fresh = [Begin(run="r", service="toy", name="one", now_s=9.0).canonical_json(), *lines[1:]]
    assert replay(fresh, Tally).differing != ()


def test_lines_that_were_stored_twice_are_fed_once() -> None:
    lines = journal_of(Tally(), inputs())
    report = replay([*lines[:10], *lines[4:]], Tally)
    assert (report.events, report.differing) == (len(inputs()), ())


def test_an_altered_input_shows_from_there_on() -> None:
    lines = journal_of(Tally(), inputs())
    lines[4] = lines[4].replace("o-1", "o-x")
    report = replay(lines, Tally)
    assert report.differing[0].n == 4
    assert report.differing[0].became == effects_digest_of(report.differing[0].effects)


def effects_digest_of(text: str) -> str:
    from flexpipe.kernel.frozen import digest  # noqa: PLC0415

    return digest(text, 32)


@pytest.mark.parametrize("line", ["", "{}", "[]", "not json", '{"line":"fed"}'])
def test_a_line_that_no_shell_wrote_is_refused(line: str) -> None:
    with pytest.raises(InvalidInput):
        replay([line], Tally)


@pytest.mark.parametrize("snapshot", ["junk", "[]", '{"of": "another version"}'])
def test_a_run_that_began_as_another_version_is_refused(snapshot: str) -> None:
    begin = Begin(run="r", service="executor", name="executor", now_s=1.0, snapshot=snapshot)
    for machine in (Executor, Worker):
        with pytest.raises(InvalidInput, match="another version of this machine"):
            replay([begin.canonical_json()], machine)


def test_a_journal_without_its_beginning_is_refused() -> None:
    with pytest.raises(InvalidInput, match="first line of a run"):
        replay(journal_of(Tally(), inputs())[1:], Tally)


def test_no_two_inputs_share_the_name_that_journals_know_them_by() -> None:
    kind = type(
        "Nudged", (Input,), {"__module__": "flexpipe.testing.tally"}
    )  # the very same, read again
    assert Input.registry["Nudged"] is kind
    Input.registry["Nudged"] = Nudged
    with pytest.raises(TypeError, match="both name an input Nudged"):
        type("Nudged", (Input,), {"__module__": "flexpipe.elsewhere"})
    assert Input.registry["Nudged"] is Nudged
