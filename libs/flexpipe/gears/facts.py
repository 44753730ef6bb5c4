"""Facts of a model that decide its layouts, read from a Hugging Face `config.json` (its text part)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import ModelFacts
from flexpipe.performance.memory import BYTES_OF_DTYPE


def facts_of(config: Mapping[str, Any], *, weights_bytes: int) -> ModelFacts:
    """Facts from a parsed `config.json`; `weights_bytes` is the size of the weights as they are served.

    Raises InvalidInput naming the field that is missing or contradicts itself.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise InvalidInput("config.json text_config", text, "must be an object")
    heads = _count(text, "num_attention_heads")
    kv_heads = _count(text, "num_key_value_heads", heads)
    hidden = _count(text, "hidden_size")
    head_dim = _count(text, "head_dim", hidden // heads)
    if heads % kv_heads:
        raise InvalidInput(
            "config.json num_key_value_heads",
            kv_heads,
            f"must divide num_attention_heads = {heads}",
        )
    architectures = config.get("architectures") or ["unknown"]
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
    return ModelFacts(
        layers=_count(text, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        vocab=_count(text, "vocab_size"),
        context_tokens=_count(text, "max_position_embeddings"),
        weights_bytes=weights_bytes,
        tied_embeddings=bool(tied),
        architecture=str(architectures[0]),
    )


def dense_weights_bytes(config: Mapping[str, Any], dtype: str) -> int:
    """Bytes of the weights of a dense Llama-like model, reckoned from the shapes in its `config.json`.

    Embeddings vocab × hidden (twice where they are not tied) + a layer: attention hidden × head dim × (2 × heads +
    2 × KV heads), MLP 3 × hidden × intermediate, two norms of hidden + the last norm. Llama-2-7B: 6,738,415,616
    parameters. Raises InvalidInput naming the field that is missing.
    """
    facts = facts_of(config, weights_bytes=1)
    text = config.get("text_config", config)
    intermediate = _count(text, "intermediate_size")
    attention = facts.hidden * facts.head_dim * 2 * (facts.heads + facts.kv_heads)
    layer = attention + 3 * facts.hidden * intermediate + 2 * facts.hidden
    embeddings = facts.vocab * facts.hidden * (1 if facts.tied_embeddings else 2)
    return (embeddings + facts.layers * layer + facts.hidden) * BYTES_OF_DTYPE[dtype]


def _count(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise InvalidInput(f"config.json {field}", value, "must be a positive whole number")
    return value
