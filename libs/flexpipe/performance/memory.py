"""Bytes: of KV, of a rank's weights, and how many tokens fit beside them.

Under tensor parallelism a rank holds max(1, KV heads / TP) heads, so where TP exceeds the KV heads the same head is
held several times (measured: Qwen3-235B, 4 KV heads on 8 ranks, moves twice its formula's bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexpipe.model.deployment import ModelFacts

BYTES_OF_DTYPE: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


def kv_bytes_per_token(facts: ModelFacts, dtype: str) -> int:
    """Bytes of KV cache one token takes over all layers and heads (GQA/MHA): 2 × layers × KV heads × head dim."""
    return kv_bytes_per_rank(facts, dtype, layers=facts.layers, tp=1)


def kv_bytes_per_rank(facts: ModelFacts, dtype: str, *, layers: int, tp: int) -> int:
    """Bytes of KV one token takes on one rank of a stage of `layers` layers and TP width `tp`."""
    heads = max(1, -(-facts.kv_heads // tp))
    return 2 * layers * heads * facts.head_dim * BYTES_OF_DTYPE[dtype]


def weights_bytes_per_rank(facts: ModelFacts, *, layers: int, tp: int) -> float:
    """Weights on one rank. Embeddings are counted with the layers, in proportion: good to one embedding matrix."""
    return facts.weights_bytes * layers / facts.layers / tp


def kv_tokens_left(
    facts: ModelFacts,
    dtype: str,
    *,
    layers: Sequence[int],
    tp: int,
    budget_bytes: Sequence[float],
) -> int:
    """Tokens of KV that the tightest stage holds beside its weights; negative where the weights alone do not fit.

    `layers` and `budget_bytes` a stage: its layers, and what each of its ranks may claim less the engine's overhead.
    """
    left = [
        (budget - weights_bytes_per_rank(facts, layers=count, tp=tp))
        // kv_bytes_per_rank(facts, dtype, layers=count, tp=tp)
        for count, budget in zip(layers, budget_bytes, strict=True)
    ]
    return int(min(left))
