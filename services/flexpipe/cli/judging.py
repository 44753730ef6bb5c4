"""Whether streams came through whole: against the unshifted run, and, where batching flipped a near-tie, by teacher
forcing against an unshifted engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from flexpipe.cli.traffic import Answer, Question
from flexpipe.engines.scoring import score
from flexpipe.model.route import RouteEntry

TOLERANCE = 1e-3
"""In log-probability: float32 sums over another batch differ by less; another token's by far more."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One answer judged. `identical` None: it broke, there is nothing to compare."""

    answer: Answer
    identical: bool | None
    forced: bool  # judged by teacher forcing
    worst_behind: float = 0.0  # largest distance to the top choice, log-probability
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whole, and the text that an unshifted run gives."""
        return self.answer.whole and (self.identical is True or (self.forced and not self.reason))


@dataclass(frozen=True, slots=True)
class Judge:
    """An unshifted engine to ask: the one plan that now serves."""

    http: httpx.AsyncClient
    entry: RouteEntry

    async def judge(
        self, answers: Sequence[Answer], unshifted: dict[Question, Answer]
    ) -> list[Judgement]:
        """Every answer, in order."""
        return [await self._one(answer, unshifted[answer.question]) for answer in answers]

    async def _one(self, answer: Answer, expected: Answer) -> Judgement:
        if not answer.whole:
            return Judgement(answer, None, forced=False, reason=answer.error or "incomplete")
        if answer.text == expected.text and answer.token_ids == expected.token_ids:
            return Judgement(answer, identical=True, forced=False)
        (routed,) = self.entry.plans
        try:
            scores = await score(
                self.http,
                routed.front,
                plan=routed.plan.id,
                fence=f"{self.entry.term}.{self.entry.shift}.0",
                prompt=answer.prompt_ids,
                generated=answer.token_ids,
            )
        except (httpx.HTTPError, LookupError, ValueError) as error:
            reason = f"not judged: {type(error).__name__}: {error}"
            return Judgement(answer, identical=False, forced=True, reason=reason)
        worst = max((each.behind for each in scores), default=0.0)
        reason = "" if worst <= TOLERANCE else f"a token lies {worst:.4f} behind the top choice"
        return Judgement(answer, identical=False, forced=True, worst_behind=worst, reason=reason)
