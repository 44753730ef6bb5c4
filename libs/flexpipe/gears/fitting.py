"""What a rank needs of its device, what it may claim, and how many layers and KV tokens that holds.

Two ways of claiming. Without `engine.memory_fraction` a rank claims its weights, the engine's overhead and KV for
`engine.max_total_tokens`. With it, a rank claims that share of its device, and the KV capacity of the plan is what the
tightest stage has left beside weights and overhead.
"""

from __future__ import annotations

from typing import Final

from flexpipe.model.deployment import Deployment, ModelFacts
from flexpipe.performance.memory import kv_bytes_per_rank, weights_bytes_per_rank

LEAST_KV_TOKENS: Final = 4096
"""A plan whose weights leave less KV than this serves a handful of requests at a time: it counts as not fitting."""


def rank_bytes(deployment: Deployment, facts: ModelFacts, layers: int, tp: int) -> int:
    """The least that a rank of `layers` layers needs: weights, overhead, and KV for what must be held at least.

    Embeddings are counted with the layers, in proportion: good to the size of one embedding matrix.
    """
    engine = deployment.engine
    kv = kv_bytes_per_rank(facts, engine.dtype, layers=layers, tp=tp) * least_kv_tokens(
        deployment, facts
    )
    return (
        int(weights_bytes_per_rank(facts, layers=layers, tp=tp) + kv) + engine.rank_overhead_bytes
    )


def least_kv_tokens(deployment: Deployment, facts: ModelFacts) -> int:
    """KV tokens that a plan must hold: those asked for, or of a few requests where memory decides."""
    if deployment.engine.memory_fraction is None:
        return deployment.engine.max_total_tokens
    return min(LEAST_KV_TOKENS, facts.context_tokens)


def may_claim(deployment: Deployment, memory_bytes: int) -> int:
    """Bytes that a rank may claim of a device of that size."""
    fraction = deployment.engine.memory_fraction
    return memory_bytes if fraction is None else int(fraction * memory_bytes)


def most_layers(deployment: Deployment, facts: ModelFacts, memory_bytes: int, tp: int) -> int:
    """Layers that a rank on a device of that size holds; at most all of them."""
    per_layer = rank_bytes(deployment, facts, 1, tp) - deployment.engine.rank_overhead_bytes
    room = may_claim(deployment, memory_bytes) - deployment.engine.rank_overhead_bytes
    return max(0, min(facts.layers, room // max(1, per_layer)))
