"""Teacher forcing: what an engine would have said at each place of a text that already exists.

The judge of a moved text where batching alone may have flipped a near-tie: each emitted token must be the top choice,
within a tolerance in log-probability, of an unshifted engine fed the tokens before it. Used by the demo and by tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from flexpipe.engines.gate import FENCE_HEADER, PLAN_HEADER
from flexpipe.kernel.frozen import Frozen

SCORE_LIMIT_S = 120.0
"""One prefill of the whole text, behind whatever else runs."""


class TokenScore(Frozen):
    """One emitted token beside the engine's own top choice at its place; log-probabilities."""

    token: int
    logprob: float
    top_token: int
    top_logprob: float

    @property
    def behind(self) -> float:
        """How far the token lies behind the top choice; 0 where it is the top choice."""
        return self.top_logprob - self.logprob


async def score(
    http: httpx.AsyncClient,
    front: str,
    *,
    plan: str,
    fence: str,
    prompt: Sequence[int],
    generated: Sequence[int],
) -> tuple[TokenScore, ...]:
    """Scores of `generated`, one a token, by one prefill. Raises httpx.HTTPError; KeyError on a strange answer."""
    body: dict[str, Any] = {
        "input_ids": [*prompt, *generated],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": len(prompt) - 1,
        "top_logprobs_num": 1,
    }
    headers = {PLAN_HEADER: plan, FENCE_HEADER: fence}
    response = await http.post(
        f"{front}/generate", json=body, headers=headers, timeout=SCORE_LIMIT_S
    )
    response.raise_for_status()
    meta = response.json()["meta_info"]
    rows = zip(meta["input_token_logprobs"][1:], meta["input_top_logprobs"][1:], strict=True)
    return tuple(
        TokenScore(token=token, logprob=logprob, top_token=top[0][1], top_logprob=top[0][0])
        for (logprob, token, _), top in rows
    )
