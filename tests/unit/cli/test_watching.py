"""One frame of the live screen: everything an operator looks for, on one page."""

from __future__ import annotations

import pytest
from rich.console import Console

from flexpipe.cli import loopview, watching
from flexpipe.events.message import Message
from flexpipe.events.outgoing import publish
from flexpipe.events.route import LoadObserved, PlanLoad
from flexpipe.events.shift import ShiftOrdered
from flexpipe.kernel.machine import Delivered
from flexpipe.model.fleet import Fleet
from flexpipe.model.route import Pin
from flexpipe.testing.builders import a_gear
from flexpipe.testing.fleets import twenty_seven
from unit.cli.loopworld import (
    DEEP,
    DEPLOYMENT,
    NOW_S,
    WIDE,
    baseline,
    entry,
    proposal,
    record,
)
from unit.cli.pages import page, row_of, words


def load(router: str, p95_ms: float | None, at_s: float = NOW_S - 1) -> watching.HeardLoad:
    said = LoadObserved(
        router=router,
        deployment="chat",
        window_s=5.0,
        arrived=10,
        queued=1,
        parked=1,
        ttft_p95_ms=p95_ms,
        plans=(PlanLoad(plan=WIDE.id, running=3, finished=2, failed=0, output_tokens=9),),
    )
    return watching.HeardLoad(at_s=at_s, load=said)


def picture(
    *loads: watching.HeardLoad, fleet: Fleet | None = None, events: int = 0, pinned: bool = False
) -> watching.Picture:
    pin = Pin(reason="bad night", by="anna", at_s=1.0) if pinned else None
    shown = twenty_seven() if fleet is None else fleet
    gears = loopview.gear_pictures(
        [DEPLOYMENT],
        [entry(WIDE, in_flight=2, pin=pin)],
        records=[record(a_gear(WIDE, DEEP))],
        proposals=[proposal()],
        baselines=[baseline(a_gear(WIDE))],
        fleet=shown,
    )
    lines = tuple(
        watching.Line(at_s=float(i), type="ShiftOrdered", says=f"number {i}.")
        for i in range(events)
    )
    return watching.Picture(fleet=shown, held=(), gears=gears, loads=loads, events=lines)


def test_a_frame_shows_fleet_blocks_gear_shift_pin_and_baseline() -> None:
    text = words(watching.frame(picture(pinned=True), NOW_S), 120)
    for part in (
        "fleet revision 1: 27 of 27 devices there",
        "nvswitch a: 12 × H100-SXM5-80GB, 12 free, largest free a (12)",
        "chat: tp4 active on a.4-0",
        "chat: shift 2 in flight: tp4 →",
        "canary for 2.5 s",
        "chat: pinned by anna",
        "chat: baseline tp4 fits",
    ):
        assert part in text


def test_what_is_not_open_is_listed() -> None:
    fleet = twenty_seven()
    node = fleet.node("b3")
    assert node is not None
    gone = fleet.with_node(node.model_copy(update={"state": "lost"}))
    assert "not open: b3 lost" in words(watching.frame(picture(fleet=gone), NOW_S))
    assert "not open" not in words(watching.frame(picture(), NOW_S))


def test_load_is_the_sum_over_routers_and_the_worst_tail() -> None:
    text = page(watching.frame(picture(load("r1", 300.0), load("r2", 420.0)), NOW_S), 100)
    assert row_of(text, "│ chat ").endswith("4.00 6 4 420 ms 210 ms")


def test_no_requests_are_a_zero_and_silent_routers_are_no_data() -> None:
    quiet = page(watching.frame(picture(load("r1", None)), NOW_S), 100)
    assert row_of(quiet, "│ chat ").endswith("2.00 3 2 – 210 ms")
    silent = page(watching.frame(picture(load("r1", 1.0, at_s=NOW_S - 16)), NOW_S), 100)
    assert row_of(silent, "│ chat ").endswith("no data – – – 210 ms")


def test_the_last_events_scroll_in_the_room_that_is_left() -> None:
    text = page(watching.frame(picture(events=40), NOW_S))
    assert "number 39." in text
    assert "number 27." not in text


@pytest.mark.parametrize("height", [24, 40, 80])
def test_a_screen_is_full_and_never_overfull(height: int) -> None:
    screen = Console(width=120, height=height, force_terminal=False)
    shown = watching.frame(picture(load("r1", 1.0), events=100), NOW_S, screen)
    lines = page(shown, 120).splitlines()
    assert len(lines) == height
    assert "number 99." in lines[-1]


def test_on_a_screen_an_event_is_one_line() -> None:
    long = watching.Line(at_s=1.0, type="ShiftDeclined", says="why " * 100)
    shown = picture().model_copy(update={"events": (long,)})
    screen = Console(width=80, height=40, force_terminal=False)
    lines = page(watching.frame(shown, NOW_S, screen)).splitlines()
    assert lines[-1].startswith("00:00:01.000")
    assert lines[-1].endswith("…")
    assert words(watching.frame(shown, NOW_S)).count("why") == 100


def test_a_picture_that_may_be_old_says_so() -> None:
    old = picture().model_copy(update={"trouble": "the bus does not answer: this is what was"})
    assert "the bus does not answer" in words(watching.frame(old, NOW_S))


def test_an_empty_instance_has_a_frame_too() -> None:
    empty = watching.Picture(fleet=Fleet(), held=(), gears=(), loads=(), events=())
    assert "no events yet" in words(watching.frame(empty, NOW_S))


def delivered(message: Message, at_s: float) -> Delivered:
    said = publish(message, at_s)
    return Delivered(
        type=said.type, message=said.message, message_id=said.message_id, sent_at_s=at_s
    )


def test_events_become_lines_and_loads_do_not() -> None:
    memory = watching.Memory()
    ordered = ShiftOrdered(
        deployment="chat", shift=2, order_id="o", source_gear="g", target_gear="h", trigger="t"
    )
    line = memory.hear(delivered(ordered, 12.0))
    assert line == watching.Line(at_s=12.0, type="ShiftOrdered", says="chat shift 2 ordered: t")
    assert memory.hear(delivered(load("r1", None).load, 13.0)) is None


def test_of_the_planner_s_looks_only_those_that_an_event_asked_for_scroll_by() -> None:
    memory = watching.Memory()
    assert proposal().urgent
    assert memory.hear(delivered(proposal(), 12.0)) is not None
    routine = proposal().model_copy(update={"urgent": False, "trigger": "cycle"})
    assert memory.hear(delivered(routine, 13.0)) is None


def test_a_frame_says_whose_figures_are_emulated() -> None:
    text = words(watching.frame(picture(), NOW_S), 120)
    assert "figures of chat (emulated, time scale 1)" in text
