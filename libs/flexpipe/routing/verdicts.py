"""What a hand-over does with one sequence, and why. Pure functions over counts.

Called by `moving` once a sequence, when its tokens were counted. Order of the rules is the policy.
"""

from __future__ import annotations

from dataclasses import dataclass

from flexpipe.model.deployment import Policy
from flexpipe.model.sequence import Verdict
from flexpipe.routing.ledger import MoveCause


@dataclass(frozen=True, slots=True)
class Standing:
    """A sequence as far as a verdict goes. `begun`: its client has content."""

    sequence: str
    priority: int
    prompt_tokens: int
    tokens: int
    max_tokens: int
    moves: int
    resumable: bool
    reason: str | None
    begun: bool

    @property
    def context_tokens(self) -> int:
        """What the new plan would prefill."""
        return self.prompt_tokens + self.tokens


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason. `ends`: the sequence can neither stay nor move."""

    verdict: Verdict
    reason: str
    ends: bool = False


FINISH_ALL = "the deployment stops: what runs may finish"


def judge(standing: Standing, cause: MoveCause, policy: Policy) -> Judgement:
    """The verdict on one sequence of a plan that gives way. Forced causes leave nothing behind."""
    must_leave = cause in (MoveCause.LOST_PLAN, MoveCause.DEADLINE)
    why = standing.reason or "not resumable"
    if not standing.resumable and must_leave and standing.begun:
        return Judgement(
            Verdict.FINISH, f"{_CAUSES[cause]}, and it cannot be resumed ({why})", ends=True
        )
    if not standing.resumable and not must_leave:
        return Judgement(Verdict.FINISH, f"cannot be resumed elsewhere: {why}")
    if standing.tokens == 0:
        return Judgement(Verdict.REQUEUE, f"{_CAUSES[cause]}; no token yet")
    if must_leave:
        return Judgement(Verdict.REPLAY, _CAUSES[cause])
    left = standing.max_tokens - standing.tokens
    if left <= policy.finish_within_tokens:
        return Judgement(Verdict.FINISH, f"at most {left} tokens remain")
    if not cause.forced and standing.moves >= policy.moves_limit:
        return Judgement(Verdict.FINISH, f"moved {standing.moves} times, the limit")
    return Judgement(Verdict.REPLAY, _CAUSES[cause])


def in_order(standings: tuple[Standing, ...]) -> tuple[Standing, ...]:
    """Who moves first: higher priority, then longer context, then the lower id."""
    return tuple(
        sorted(standings, key=lambda each: (-each.priority, -each.context_tokens, each.sequence))
    )


_CAUSES = {
    MoveCause.CHOSEN: "its plan gives way",
    MoveCause.LOST_PLAN: "its plan is lost",
    MoveCause.UNDO: "the shift is undone",
    MoveCause.DEADLINE: "its retiring plan has reached its deadline",
}
