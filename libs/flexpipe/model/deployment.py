"""What the user declares: model, engine, SLO, policy, baseline."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flexpipe.kernel.frozen import Frozen
from flexpipe.model.names import Name

PositiveSeconds = Annotated[float, Field(gt=0, le=86_400)]


class ModelFacts(Frozen):
    """What a layout needs to know of a model; read from its `config.json` when a deployment is applied."""

    layers: Annotated[int, Field(gt=0)]
    heads: Annotated[int, Field(gt=0)]
    kv_heads: Annotated[int, Field(gt=0)]
    head_dim: Annotated[int, Field(gt=0)]
    hidden: Annotated[int, Field(gt=0)]
    vocab: Annotated[int, Field(gt=0)]
    context_tokens: Annotated[int, Field(gt=0)]
    weights_bytes: Annotated[int, Field(gt=0)]
    tied_embeddings: bool
    architecture: str


class ModelRef(Frozen):
    """Where the model lies and how clients call it."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    path: Annotated[str, Field(min_length=1)]
    facts: ModelFacts | None = None  # filled in by `flexpipe apply`


class EngineSettings(Frozen):
    """How engines of this deployment are started."""

    kind: Name
    form: Literal["cpu", "cuda", "emulated"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_total_tokens: Annotated[int, Field(ge=64, le=10_000_000)] = 8192
    rank_overhead_bytes: Annotated[int, Field(gt=0)] = 1_500_000_000
    performance: str | None = None  # the emulated engine's table (TOML file)
    time_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    flags: tuple[str, ...] = ()


class Slo(Frozen):
    """Service-level objective of interactive requests, milliseconds."""

    ttft_ms: Annotated[float, Field(gt=0, le=3_600_000)] = 2000.0
    itl_ms: Annotated[float, Field(gt=0, le=60_000)] = 200.0


class Policy(Frozen):
    """Limits of a shift. Defaults and their meaning: one table in the README's chapter on operating."""

    engine_start_limit_s: PositiveSeconds = 180.0
    canary_share: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    canary_requests: Annotated[int, Field(ge=1, le=1000)] = 8
    canary_limit_s: PositiveSeconds = 10.0
    canary_synthetic_after_s: PositiveSeconds = 2.0
    freeze_ack_limit_s: PositiveSeconds = 2.0
    hand_over_limit_s: PositiveSeconds = 30.0
    retiring_limit_s: PositiveSeconds = 120.0
    release_limit_s: PositiveSeconds = 30.0
    park_limit_s: PositiveSeconds = 60.0
    park_slots: Annotated[int, Field(ge=0, le=100_000)] = 256
    finish_within_tokens: Annotated[int, Field(ge=0, le=100_000)] = 8
    moves_limit: Annotated[int, Field(ge=1, le=100)] = 4
    move_batch_tokens: Annotated[int, Field(ge=1)] = 32_768


class Deployment(Frozen):
    """One model served under one name; the value of a key in the bucket `deployments`."""

    name: Name
    model: ModelRef
    engine: EngineSettings
    slo: Slo = Slo()
    policy: Policy = Policy()
    baseline: Annotated[str, Field(min_length=1)] = "tp1"
