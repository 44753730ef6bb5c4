"""What the loop sees and decides, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from flexpipe.cli import loopview
from flexpipe.events.planning import Baseline, CandidatesProposed
from flexpipe.model.deployment import Deployment
from flexpipe.model.route import Pin, PlanState, RouteEntry
from flexpipe.model.shift import ShiftRecord
from flexpipe.testing.builders import a_gear
from flexpipe.testing.fleets import twenty_seven
from unit.cli.loopworld import (
    DEEP,
    DEPLOYMENT,
    LOOSE,
    NOW_S,
    WIDE,
    baseline,
    declined,
    entry,
    proposal,
    record,
)
from unit.cli.pages import page, row_of, words

WIDTH = 140
"""Of a wide terminal: rows on one line."""


def pictures(
    *entries: RouteEntry,
    records: Sequence[ShiftRecord] = (),
    proposals: Sequence[CandidatesProposed] = (),
    baselines: Sequence[Baseline] = (),
) -> tuple[loopview.GearPicture, ...]:
    return loopview.gear_pictures(
        [DEPLOYMENT],
        entries,
        records=records,
        proposals=proposals,
        baselines=baselines,
        fleet=twenty_seven(),
    )


def test_a_gear_shows_plans_shares_states_and_the_blocks_they_lie_on() -> None:
    text = page(loopview.gears_view(pictures(entry(WIDE, DEEP)), NOW_S), WIDTH)
    assert "chat: tp4 + tp2pp2" in text
    assert row_of(text, WIDE.id) == f"{WIDE.id} tp4 active 33% a.4-0 –"
    assert row_of(text, DEEP.id) == f"{DEEP.id} tp2pp2 active 67% c1 → c2 –"


def test_a_stage_that_is_no_block_is_shown_by_its_devices() -> None:
    text = page(loopview.gears_view(pictures(entry(LOOSE)), NOW_S), WIDTH)
    assert row_of(text, LOOSE.id) == f"{LOOSE.id} tp2 active 100% b1/g0,b2/g1 –"


def test_a_gear_shows_what_was_predicted_of_each_plan_and_of_all() -> None:
    shown = pictures(entry(WIDE), proposals=[proposal()])
    text = words(loopview.gears_view(shown, NOW_S), WIDTH)
    assert "TTFT 210 ms, ITL 18.5 ms, 3.25 good req/s, 41,408 KV tokens, bound by kv" in text
    assert "predicted: 1234 good tokens/s, at most 6.5 good requests/s, TTFT 210 ms" in text


def test_a_prediction_of_another_gear_is_not_shown() -> None:
    (picture,) = pictures(entry(LOOSE), proposals=[proposal()])
    assert picture.outlook is None


def test_a_pin_is_shown_with_who_when_and_why() -> None:
    pin = Pin(reason="bad night", by="anna", at_s=3600.0)
    text = words(loopview.gears_view(pictures(entry(WIDE, pin=pin)), NOW_S))
    assert "pinned by anna at 01:00:00.000: bad night; automation is off" in text


def test_a_shift_in_flight_shows_its_phase_and_the_time_in_it() -> None:
    target = a_gear(WIDE, DEEP)
    shown = pictures(entry(WIDE, in_flight=2), records=[record(target)])
    text = words(loopview.gears_view(shown, NOW_S), WIDTH)
    assert f"shift 2 in flight: tp4 → {target.label}, canary for 2.5 s" in text
    assert f"because a test wants {target.label}" in text
    without = words(loopview.gears_view(pictures(entry(WIDE, in_flight=2)), NOW_S))
    assert "shift 2 in flight" in without


def test_a_baseline_that_fits_says_what_it_is() -> None:
    shown = pictures(entry(WIDE), baselines=[baseline(a_gear(WIDE))])
    text = words(loopview.gears_view(shown, NOW_S))
    assert "baseline tp4 fits on fleet revision 1: tp4 on a.4-0" in text


def test_a_baseline_resolved_on_an_older_fleet_says_so() -> None:
    shown = pictures(entry(WIDE), baselines=[baseline(a_gear(WIDE), revision=0)])
    text = words(loopview.gears_view(shown, NOW_S))
    assert "fits on fleet revision 0 (the fleet is at revision 1)" in text


def test_a_baseline_that_fits_nowhere_is_loud_before_it_is_needed() -> None:
    missing = baseline(None, reason="the largest free block has 2 devices, it needs 4")
    text = words(loopview.gears_view(pictures(entry(WIDE), baselines=[missing]), NOW_S))
    assert "baseline tp4 FITS NOWHERE on fleet revision 1: the largest free block" in text
    assert "a downshift would be refused" in text


def test_nobody_resolved_a_baseline_is_said_too() -> None:
    text = words(loopview.gears_view(pictures(entry(WIDE)), NOW_S))
    assert "not resolved; no planner has spoken yet" in text


def test_a_deployment_that_serves_nothing_is_shown() -> None:
    assert "chat: nothing serves" in words(loopview.gears_view(pictures(), NOW_S))
    stopped = pictures(entry(stopped=True))
    assert "chat: stopped by hand" in words(loopview.gears_view(stopped, NOW_S))
    assert "flexpipe apply" in words(loopview.gears_view((), NOW_S))


def test_a_plan_that_admits_nothing_has_no_share() -> None:
    frozen = entry(WIDE, state=PlanState.RETIRING)
    none = tuple(each.model_copy(update={"admit": 0.0}) for each in frozen.plans)
    shown = pictures(frozen.model_copy(update={"plans": none}))
    text = page(loopview.gears_view(shown, NOW_S), WIDTH)
    assert "retiring 0%" in row_of(text, WIDE.id)


def test_candidates_stand_beside_the_gear_in_force_with_their_numbers() -> None:
    text = page(loopview.candidates_view([proposal()], twenty_seven(), [DEPLOYMENT]), WIDTH)
    assert "01:00:00.500 on fleet revision 7, at once: block c1 came back" in text
    assert row_of(text, "now ") == "now tp4 4 cpu 1234 6.5 210 18.5 0 ∞"
    label = a_gear(WIDE, DEEP).label
    assert row_of(text, "│ 1 ") == f"1 {label} 8 cpu 1234 6.5 180 18.5 1 600"


def test_candidates_show_the_load_they_were_reckoned_for() -> None:
    text = words(loopview.candidates_view([proposal()], twenty_seven(), [DEPLOYMENT]), WIDTH)
    assert (
        "load: 5.5 requests/s over 60 s (512 + 128 tokens), 3 waiting, TTFT P95 412 ms, "
        "ITL P50 19.0 ms"
    ) in text
    assert "long: no data: no router was heard for 600 s" in text


def test_a_candidate_says_what_would_be_started_and_where() -> None:
    text = words(loopview.candidates_view([proposal()], twenty_seven(), [DEPLOYMENT]), WIDTH)
    assert "1 would start tp2pp2 on c1 → c2" in text


def test_what_was_rejected_is_shown_with_its_reason() -> None:
    text = words(loopview.candidates_view([proposal()], twenty_seven(), [DEPLOYMENT]))
    assert "not tp8 on c: pcie carries tensor-parallel groups of 2, not 8" in text


def test_no_proposal_names_who_is_silent() -> None:
    assert "no planner has spoken" in words(loopview.candidates_view([], twenty_seven(), []))


def test_a_refusal_shows_guard_reason_gain_cost_and_what_hysteresis_asks_for() -> None:
    text = page(loopview.declined_view([declined()], [DEPLOYMENT]), WIDTH)
    assert (
        "01:00:01.000  chat: hysteresis: gain 12500 is not more than 14000 tokens (emulated, time scale 1)"
        in text.splitlines()
    )
    row = row_of(text, "12,500")
    assert row.startswith(f"{a_gear(WIDE, DEEP).label} 8 cpu 12,500 10,000 1.25 > 1.4 600 41.5")
    assert "hysteresis: 12500 is not more than 10000 × 1.4 = 14000" in row


def test_a_refusal_fits_a_terminal_and_needs_no_deployment() -> None:
    text = words(loopview.declined_view([declined()], []))
    assert "12,500" in text
    assert "nothing was declined" in words(loopview.declined_view([], []))


def test_what_stands_against_all_candidates_is_written_once() -> None:
    said = declined()
    (one,) = said.declined
    verdict = one.verdicts[-1].model_copy(update={"says": said.reason})
    alike = one.model_copy(update={"verdicts": (verdict,)})
    all_alike = said.model_copy(update={"declined": (alike,) * 3})
    text = words(loopview.declined_view([all_alike], []), 100)
    assert text.count(said.reason) == 1
    assert text.count("hysteresis") == 4


def test_figures_of_emulated_engines_say_so_and_those_of_real_ones_do_not() -> None:
    engine = DEPLOYMENT.engine.model_copy(update={"time_scale": 6.0})
    emulated = DEPLOYMENT.model_copy(update={"engine": engine})
    real = DEPLOYMENT.model_copy(
        update={"engine": engine.model_copy(update={"form": "cuda", "kind": "sglang"})}
    )

    def shown(deployment: Deployment) -> list[str]:
        gears = loopview.gear_pictures(
            [deployment],
            [entry(WIDE)],
            records=(),
            proposals=[proposal()],
            baselines=(),
            fleet=twenty_seven(),
        )
        views = (
            loopview.gears_view(gears, NOW_S),
            loopview.candidates_view([proposal()], twenty_seven(), [deployment]),
            loopview.declined_view([declined()], [deployment]),
        )
        return [words(view) for view in views]

    assert all("(emulated, time scale 6)" in text for text in shown(emulated))
    assert not any("emulated" in text for text in shown(real))
    assert all("predicted" in text for text in shown(real)[:2])
