"""What people see fits a terminal and says what matters."""

from __future__ import annotations

import pytest
from rich.console import Console, RenderableType

from flexpipe.cli import printing, views
from flexpipe.events.shift import ShiftRolledBack
from flexpipe.kernel.machine import Delivered, Span
from flexpipe.model.gear import EMPTY_GEAR
from flexpipe.model.sequence import MovedSequence, Verdict
from flexpipe.model.shift import Outcome, Phase, PhaseTiming, ShiftOrder, ShiftRecord
from flexpipe.testing.builders import a_gear, a_plan


def printed(view: RenderableType) -> str:
    """As on a terminal of 80 columns."""
    console = Console(width=80, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(view)
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 80
    return text


def record(**changes: object) -> ShiftRecord:
    order = ShiftOrder(
        deployment="smollm2",
        target=a_gear(),
        trigger="by hand",
        by="anna",
        ordered_at_s=10.0,
        trace_id="a" * 32,
    )
    base = ShiftRecord(
        deployment="smollm2",
        shift=3,
        term=1,
        step=4,
        phase=Phase.CLOSED,
        order=order,
        source=EMPTY_GEAR,
        outcome=Outcome.ROLLED_BACK,
        reason="engine of p-1 on node-a did not become ready within 180 s",
        accepted_at_s=10.0,
        closed_at_s=12.5,
    )
    return base.model_copy(update=changes)


def test_the_list_of_shifts_gives_reasons_whole_words() -> None:
    text = printed(views.shifts_view([record()]))
    assert "rolled back" in text
    assert "did not become ready within 180 s" in " ".join(text.split())


def test_a_long_gear_takes_lines_and_not_the_room_of_the_other_columns() -> None:
    plans = [a_plan(f"node-{letter}/cpu{i}") for letter in "abcdefgh" for i in (0, 1)]
    order = record().order.model_copy(update={"target": a_gear(*plans)})
    text = printed(views.shifts_view([record(order=order)]))
    for column in ("deployment", "shift", "class", "moved", "seconds"):
        assert column in text


def test_an_open_shift_says_where_it_stands() -> None:
    text = printed(views.shifts_view([record(outcome=None, reason=None, phase=Phase.CANARY)]))
    assert "in flight (canary)" in text


def test_one_shift_shows_phases_sequences_notes_and_the_engine_s_last_words() -> None:
    moved = MovedSequence(
        sequence="seq-1",
        verdict=Verdict.REPLAY,
        reason="resumable",
        from_plan="p-1",
        to_plan="p-2",
        tokens=41,
        epoch=2,
        pause_ms=87.4,
    )
    shown = record(
        moved=(moved,),
        timings=(PhaseTiming(phase=Phase.CANARY, start_s=10.0, end_s=11.25),),
        notes=("router-2 did not answer",),
        log_tail="ValueError: no such layer",
    )
    text = printed(views.shift_view(shown))
    for part in (
        "canary",
        "1.250",
        "replay",
        "41",
        "87",
        "router-2 did not answer",
        "no such layer",
    ):
        assert part in text


def test_a_trace_is_a_tree_whose_orphans_are_not_lost() -> None:
    def span(name: str, id_: str, parent: str | None, error: str | None = None) -> Span:
        return Span(
            trace_id="a" * 32,
            span_id=id_,
            parent_span_id=parent,
            name=name,
            start_s=1.0,
            end_s=2.0,
            error=error,
        )

    spans = [
        span("shift", "1", None),
        span("canary", "2", "1", "engine error"),
        span("stray", "3", "9"),
    ]
    text = printed(views.trace_view(spans))
    assert "engine error" in text
    assert "stray" in text
    assert "no spans" in printed(views.trace_view([]))


BRACKETS = "[rank0]: Traceback in [/opt/engine]: stages[0] [red]"
"""What engines and file names say, and rich would take for markup."""


def test_words_in_brackets_are_shown_and_not_obeyed() -> None:
    moved = MovedSequence(
        sequence="seq-1",
        verdict=Verdict.FINISH,
        reason=BRACKETS,
        from_plan="p-1",
        to_plan=None,
        tokens=1,
        epoch=1,
    )
    shown = record(reason=BRACKETS, notes=(BRACKETS,), log_tail=BRACKETS, moved=(moved,))
    assert printed(views.shift_view(shown)).count("[rank0]") == 4
    assert "[red]" in printed(views.shifts_view([shown]))


def test_an_event_with_words_in_brackets_is_one_whole_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "console", Console(width=80, force_terminal=False))
    rolled_back = ShiftRolledBack(
        deployment="smollm2", shift=3, gear="tp1", reason=BRACKETS, duration_s=1.0
    )
    printing.teller(as_json=False)(rolled_back)
    delivered = Delivered(
        type="ShiftRolledBack",
        message=rolled_back.canonical_json(),
        message_id="m",
        sent_at_s=3600.5,
    )
    printing.event_line(delivered, as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert said.count(BRACKETS) == 2
    assert "01:00:00.500 ShiftRolledBack smollm2 shift 3 rolled back after 1.0 s" in said
