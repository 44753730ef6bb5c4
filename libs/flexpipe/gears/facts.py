"""Facts of a model that decide its layouts, read from a Hugging Face `config.json` (its text part)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import ModelFacts


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


def _count(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise InvalidInput(f"config.json {field}", value, "must be a positive whole number")
    return value
