"""Every fact of the event log has a sentence for people."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexpipe.cli.saying import fields_of, load_text, sentence_of
from flexpipe.events import catalog
from flexpipe.events.catalog import Lane
from flexpipe.events.fleet import DeviceChange, FleetChanged, SampleAsked
from flexpipe.events.hatch import DeploymentPinned, UrgentAnswered
from flexpipe.events.message import Message
from flexpipe.events.planning import (
    Baseline,
    BaselineResolved,
    ShiftDeclined,
)
from flexpipe.events.shift import ShiftCompleted
from flexpipe.model.outlook import Load
from flexpipe.model.sequence import MovedSequence, Verdict
from flexpipe.model.shift import StartClass
from flexpipe.testing.builders import a_gear, a_plan, device
from flexpipe.testing.examples import example_of

LOGGED = [said.message for said in catalog.MESSAGES if said.lane is Lane.EVT]


@pytest.mark.parametrize("kind", LOGGED, ids=lambda kind: kind.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_every_event_is_one_line_that_is_a_sentence(
    kind: type[Message], data: st.DataObject
) -> None:
    message = data.draw(example_of(kind))
    said = sentence_of(message)
    assert said != " ".join(fields_of(message).split())
    assert len(said.splitlines()) <= 1


def test_a_message_that_is_no_event_is_shown_by_its_fields() -> None:
    asked = SampleAsked(node="b3")
    assert sentence_of(asked) == "node=b3"


def test_a_fleet_change_says_what_happened_and_how_late_it_was_noticed() -> None:
    change = DeviceChange(device=device("b3/g0"), what="left", why="node lost")
    changed = FleetChanged(
        revision=7,
        changes=(change,),
        sentence="b3 lost: no beat for 1.75 s",
        urgent=True,
        at_s=101.75,
        seen_s=100.0,
        trace_id="a" * 32,
        span_id="b" * 16,
    )
    late = "fleet revision 7: b3 lost: no beat for 1.75 s (noticed after 1.75 s)"
    assert sentence_of(changed) == late
    calm = changed.model_copy(update={"urgent": False})
    assert sentence_of(calm) == "fleet revision 7: b3 lost: no beat for 1.75 s"


def test_a_baseline_that_fits_nowhere_says_so_loudly() -> None:
    missing = Baseline(
        deployment="chat", notation="tp8", gear=None, reason="no block of 8", fleet_revision=9
    )
    said = sentence_of(BaselineResolved(baseline=missing))
    assert said == "chat: baseline tp8 FITS NOWHERE on fleet revision 9: no block of 8"
    fits = missing.model_copy(update={"gear": a_gear(a_plan("b1/g0"))})
    assert sentence_of(BaselineResolved(baseline=fits)).endswith("tp8 fits on fleet revision 9")


def test_the_hatch_is_told_with_who_and_why() -> None:
    pinned = DeploymentPinned(deployment="chat", reason="bad night", by="anna")
    assert sentence_of(pinned) == "chat is pinned by anna: bad night"
    answered = UrgentAnswered(
        deployment="chat",
        verb="downshift",
        message_id="m",
        outcome="refused",
        says="older than ten minutes",
    )
    assert sentence_of(answered) == "chat: downshift refused: older than ten minutes"


def test_a_refusal_names_its_guard() -> None:
    declined = ShiftDeclined(
        deployment="chat", proposal="x", guard="cooldown", reason="30 s left", at_s=1.0
    )
    assert sentence_of(declined) == "chat: no shift (cooldown): 30 s left"


def test_a_completed_shift_gives_its_longest_pause() -> None:
    def moved(pause_ms: float | None) -> MovedSequence:
        return MovedSequence(
            sequence="s",
            verdict=Verdict.REPLAY,
            reason="r",
            from_plan="p",
            to_plan="q",
            tokens=1,
            epoch=1,
            pause_ms=pause_ms,
        )

    completed = ShiftCompleted(
        deployment="chat",
        shift=4,
        gear="g",
        start_class=StartClass.COLD,
        duration_s=12.34,
        moved=(moved(80.0), moved(None), moved(120.4)),
    )
    assert sentence_of(completed) == (
        "chat shift 4 completed after 12.3 s (cold); 3 sequences in flight, longest pause 120 ms"
    )


@pytest.mark.parametrize(
    ("load", "says"),
    [
        (Load(data="no-data", window_s=60.0), "no data: no router was heard for 60 s"),
        (Load(data="idle", window_s=60.0), "no traffic over 60 s"),
        (
            Load(
                data="busy",
                window_s=60.0,
                arrived_per_s=3.456,
                prompt_tokens=512.2,
                output_tokens=128.0,
            ),
            "3.46 requests/s over 60 s (512 + 128 tokens)",
        ),
    ],
)
def test_no_data_and_no_traffic_are_different_words(load: Load, says: str) -> None:
    assert load_text(load) == says
