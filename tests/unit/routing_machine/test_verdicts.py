"""The verdict on one sequence, rule by rule."""

import pytest

from flexpipe.model.deployment import Policy
from flexpipe.model.sequence import Verdict
from flexpipe.routing.ledger import MoveCause
from flexpipe.routing.verdicts import Standing, in_order, judge

POLICY = Policy(finish_within_tokens=8, moves_limit=2)


def standing(**fields: object) -> Standing:
    usual = {
        "sequence": "s",
        "priority": 0,
        "prompt_tokens": 10,
        "tokens": 20,
        "max_tokens": 100,
        "moves": 0,
        "resumable": True,
        "reason": None,
        "begun": True,
    }
    return Standing(**(usual | fields))  # type: ignore[arg-type]


RELAYED = {"resumable": False, "reason": "tools", "tokens": 0}


@pytest.mark.parametrize(
    ("fields", "cause", "verdict", "ends"),
    [
        ({}, MoveCause.CHOSEN, Verdict.REPLAY, False),
        ({"tokens": 0, "begun": False}, MoveCause.CHOSEN, Verdict.REQUEUE, False),
        ({"tokens": 92}, MoveCause.CHOSEN, Verdict.FINISH, False),
        ({"tokens": 91}, MoveCause.CHOSEN, Verdict.REPLAY, False),
        ({"tokens": 92}, MoveCause.LOST_PLAN, Verdict.REPLAY, False),
        ({"tokens": 92}, MoveCause.DEADLINE, Verdict.REPLAY, False),
        ({"moves": 2}, MoveCause.CHOSEN, Verdict.FINISH, False),
        ({"moves": 2}, MoveCause.UNDO, Verdict.REPLAY, False),
        ({"moves": 2}, MoveCause.LOST_PLAN, Verdict.REPLAY, False),
        (RELAYED, MoveCause.CHOSEN, Verdict.FINISH, False),
        (RELAYED, MoveCause.UNDO, Verdict.FINISH, False),
        (RELAYED, MoveCause.LOST_PLAN, Verdict.FINISH, True),
        (RELAYED, MoveCause.DEADLINE, Verdict.FINISH, True),
        ({**RELAYED, "begun": False}, MoveCause.LOST_PLAN, Verdict.REQUEUE, False),
        ({**RELAYED, "begun": False}, MoveCause.CHOSEN, Verdict.FINISH, False),
    ],
)
def test_the_verdict_follows_the_rules(
    fields: dict[str, object], cause: MoveCause, verdict: Verdict, ends: bool
) -> None:
    judgement = judge(standing(**fields), cause, POLICY)
    assert (judgement.verdict, judgement.ends) == (verdict, ends)
    assert judgement.reason


def test_the_reason_of_a_relayed_one_says_why_it_cannot_move() -> None:
    assert "tools" in judge(standing(**RELAYED), MoveCause.CHOSEN, POLICY).reason


def test_higher_priority_moves_first_then_longer_context_then_the_lower_id() -> None:
    standings = (
        standing(sequence="b", tokens=5),
        standing(sequence="a", tokens=5),
        standing(sequence="long", tokens=50),
        standing(sequence="high", priority=3, tokens=1),
    )
    assert [each.sequence for each in in_order(standings)] == ["high", "long", "a", "b"]
