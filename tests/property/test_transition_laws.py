"""Laws of the transaction under schedules that hypothesis makes up and, where one breaks, makes small.

The world checks after every input: reservations within memory and of one shift alone, one shift in the slot, terms and
shifts that only grow, no commit before the hand-over unless there is nothing to go back to, no write after the close.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from flexpipe.events.hatch import DownshiftDeployment, UrgentAnswered
from flexpipe.model.route import PlanState
from flexpipe.model.shift import Outcome, Phase
from flexpipe.transitions import Executor
from simulation import hatch_chaos
from simulation.chaos import KINDS, Action, play

ACTIONS = st.lists(
    st.builds(
        Action,
        st.sampled_from(KINDS),
        st.integers(0, 999),
        st.sampled_from((0.01, 0.1, 0.5, 2.5, 6.0)),
    ),
    max_size=12,
)
PULLS = st.lists(
    st.builds(
        hatch_chaos.Action,
        st.sampled_from(sorted(hatch_chaos.DO)),
        st.integers(0, 999),
        st.sampled_from((0.01, 0.1, 0.5, 2.5, 6.0)),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(actions=ACTIONS, seed=st.integers(0, 999))
def test_every_shift_ends_in_one_of_three_ways_and_its_record_closes(
    actions: list[Action], seed: int
) -> None:
    scene = play(actions, random.Random(seed))
    assert scene.records()
    for record in scene.records():
        assert record.phase is Phase.CLOSED
        assert record.outcome in tuple(Outcome)
        assert record.outcome is Outcome.COMPLETED or record.reason


@settings(max_examples=15, deadline=None)
@given(actions=ACTIONS)
def test_the_collected_journal_gives_the_same_effects_to_fresh_machines(
    actions: list[Action],
) -> None:
    for life in play(actions, None).executor.lives:
        machine = Executor()
        for line in life:
            assert machine.handle(line.now_s, line.event).canonical_json() == line.effects


@settings(max_examples=60, deadline=None)
@given(actions=PULLS, seed=st.integers(0, 999))
def test_whatever_was_pulled_every_shift_ends_and_every_pinned_baseline_serves(
    actions: list[hatch_chaos.Action], seed: int
) -> None:
    scene = hatch_chaos.play(actions, random.Random(seed))
    for record in scene.records():
        assert record.phase is Phase.CLOSED
        assert record.outcome is Outcome.COMPLETED or record.reason
    for name in hatch_chaos.NAMES:
        entry = scene.entry(name)
        if entry is None or entry.pin is None or entry.pin.downshift is None:
            continue
        plans = entry.in_state(PlanState.ACTIVE)
        assert [routed.plan.shape for routed in plans] == ["tp1"], name
    told = {answer.message_id for answer in scene.world.post.of(UrgentAnswered)}
    asked = [m for _, _, m in scene.world.post.said if m.type == DownshiftDeployment.__name__]
    assert {message.message_id for message in asked} <= told, "nobody is left without an answer"


@settings(max_examples=15, deadline=None)
@given(actions=PULLS)
def test_a_journal_with_the_hatch_in_it_gives_the_same_effects_to_fresh_and_restored_machines(
    actions: list[hatch_chaos.Action],
) -> None:
    for life in hatch_chaos.play(actions, None).executor.lives:
        machine = Executor()
        for line in life:
            restored = Executor()
            restored.restore(machine.snapshot())
            assert restored.handle(line.now_s, line.event).canonical_json() == line.effects
            assert machine.handle(line.now_s, line.event).canonical_json() == line.effects
