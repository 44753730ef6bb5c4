"""What one call of the machine answers on the urgent lane: the order of effects, before anything that waits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from flexpipe.events.hatch import CancelShift, DownshiftDeployment, UnpinDeployment, Urgent
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.kernel.machine import (
    Delivered,
    Effects,
    Entry,
    Publish,
    Put,
    PutAll,
    Started,
    Stored,
    Woken,
)
from flexpipe.model.deployment import EngineSettings
from flexpipe.model.route import RouteEntry
from flexpipe.testing.builders import a_deployment, a_gear, a_node, a_plan, an_order_to
from flexpipe.transitions import Executor
from flexpipe.transitions.hatch import ASKERS_LIMIT, URGENT_AGE_LIMIT_S

NOW_S = 1000.0
PLAN = a_plan("node-a/cpu1")


def entry(bucket: str, key: str, value: str | None, revision: int = 1) -> Entry:
    return Entry(bucket=bucket, key=key, value=value, revision=revision)


def an_executor() -> Executor:
    """A declared deployment on one node; nothing was ever started."""
    declared = a_deployment().model_copy(
        update={"engine": EngineSettings(kind="emulated", form="cpu")}
    )
    machine = Executor()
    entries = (
        entry("deployments", "toy", declared.canonical_json()),
        entry("fleet", "node-a", a_node("node-a").canonical_json()),
    )
    machine.handle(NOW_S, Started(entries=entries))
    return machine


def said(message: Message, cause: object = 1, sent_at_s: float | None = NOW_S) -> Delivered:
    out = publish(message, cause)
    return Delivered(
        type=out.type, message=out.message, message_id=out.message_id, sent_at_s=sent_at_s
    )


def kinds(effects: Effects) -> list[str]:
    return [getattr(effect, "type", type(effect).__name__) for effect in effects.do]


def stored(put: Put, revision: int = 5) -> Stored:
    there = entry(put.bucket, put.key, put.value, revision)
    return Stored(write_id=put.write_id, outcome="written", entries=(there,))


def perform(machine: Executor, event: Delivered | Stored, revisions: Iterator[int]) -> None:
    """Take an input and all that follows from it, every write going well."""
    for effect in machine.handle(NOW_S, event).do:
        if isinstance(effect, Put | PutAll):
            puts = (effect,) if isinstance(effect, Put) else effect.puts
            there = tuple(entry(p.bucket, p.key, p.value, next(revisions)) for p in puts)
            written = Stored(write_id=effect.write_id, outcome="written", entries=there)
            perform(machine, written, revisions)


DOWNSHIFT = DownshiftDeployment(deployment="toy", by="anna", reason="trouble")


def test_the_pin_is_written_alone_and_nothing_is_said_before_it_is_there() -> None:
    machine = an_executor()
    effects = machine.handle(NOW_S, said(DOWNSHIFT))
    assert kinds(effects) == ["Put"]
    put = effects.do[0]
    assert isinstance(put, Put)
    pinned = RouteEntry.model_validate_json(put.value or "")
    assert pinned.pin is not None
    assert (pinned.pin.by, pinned.pin.reason, pinned.pin.at_s) == ("anna", "trouble", NOW_S)
    following = machine.handle(NOW_S, stored(put))
    assert kinds(following)[:3] == ["DeploymentPinned", "Span", "Put"]


def test_a_pin_that_somebody_was_quicker_than_is_written_again() -> None:
    machine = an_executor()
    put = machine.handle(NOW_S, said(DOWNSHIFT)).do[0]
    assert isinstance(put, Put)
    found = RouteEntry.model_validate_json(put.value or "").model_copy(update={"pin": None})
    there = entry("routes", "toy", found.canonical_json(), 9)
    conflict = Stored(write_id=put.write_id, outcome="conflict", entries=(there,))
    again = machine.handle(NOW_S, conflict).do[0]
    assert isinstance(again, Put)
    assert (again.expected, again.value) == (9, put.value)


def test_an_urgent_command_goes_before_an_order_that_waits() -> None:
    machine = an_executor()
    order = an_order_to(a_gear(PLAN), "one", at_s=NOW_S)
    put = machine.handle(NOW_S, said(DOWNSHIFT)).do[0]
    assert isinstance(put, Put)
    assert machine.handle(NOW_S, said(order)).do == (), "the outcome of a write is awaited"
    following = machine.handle(NOW_S, stored(put))
    assert "ShiftRefused" in kinds(following)
    assert kinds(following).index("DeploymentPinned") < kinds(following).index("ShiftRefused")


@pytest.mark.parametrize("sent_at_s", [None, NOW_S, NOW_S - URGENT_AGE_LIMIT_S])
def test_a_message_of_ten_minutes_or_of_unknown_age_still_counts(sent_at_s: float | None) -> None:
    machine = an_executor()
    assert kinds(machine.handle(NOW_S, said(DOWNSHIFT, sent_at_s=sent_at_s))) == ["Put"]


@pytest.mark.parametrize(
    "command", [DOWNSHIFT, CancelShift(deployment="toy"), UnpinDeployment(deployment="toy")]
)
def test_an_older_one_is_refused_aloud_and_changes_nothing(command: Urgent) -> None:
    machine = an_executor()
    late = said(command, sent_at_s=NOW_S - URGENT_AGE_LIMIT_S - 1)
    effects = machine.handle(NOW_S, late)
    assert kinds(effects) == ["UrgentAnswered", "Measure"]
    answer = effects.do[0]
    assert isinstance(answer, Publish)
    assert '"outcome":"refused"' in answer.message


def test_a_name_that_somebody_mistyped_becomes_no_label() -> None:
    machine = an_executor()
    assert kinds(machine.handle(NOW_S, said(DownshiftDeployment(deployment="tyo")))) == [
        "UrgentAnswered"
    ]


def test_hands_without_number_on_one_hatch_are_bounded() -> None:
    machine, revisions = an_executor(), itertools.count(10)
    for number in range(3 * ASKERS_LIMIT):
        perform(machine, said(DOWNSHIFT, number), revisions)
    hatch = json.loads(machine.snapshot())["hatch"]
    assert (len(hatch["queue"]), len(hatch["owed"])) == (0, ASKERS_LIMIT)


def test_a_machine_restored_in_the_middle_of_a_pull_answers_alike() -> None:
    machine = an_executor()
    put = machine.handle(NOW_S, said(DOWNSHIFT)).do[0]
    assert isinstance(put, Put)
    again = Executor()
    again.restore(machine.snapshot())
    assert again.snapshot() == machine.snapshot()
    assert again.handle(NOW_S, stored(put)) == machine.handle(NOW_S, stored(put))
    assert again.handle(NOW_S, Woken()) == machine.handle(NOW_S, Woken())
