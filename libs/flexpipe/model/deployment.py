"""What the user declares: model, engine, SLO, policy, baseline."""

from __future__ import annotations

from typing import Annotated, Final, Literal

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
    # Share of a device that a rank claims: the KV capacity of a plan is then what its weights leave of it. Without it,
    # every plan holds `max_total_tokens`.
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    rank_overhead_bytes: Annotated[int, Field(gt=0)] = 1_500_000_000
    performance: str | None = None  # the emulated engine's table: a TOML file, or `roofline`
    # Cold start, where it is known: declared, or of the emulated engine's table. Without it, it is reckoned.
    start_s: Annotated[float, Field(ge=0, le=3600)] | None = None
    load_gb_s: Annotated[float, Field(gt=0, le=1000)] = 1.0  # at which a node reads weights
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
    automatic: bool = True  # whether the loop may order shifts by itself
    cycle_s: PositiveSeconds = 15.0
    load_window_s: PositiveSeconds = 60.0
    long_load_window_s: PositiveSeconds = 600.0
    hysteresis: Annotated[float, Field(ge=1.0, le=5.0)] = 1.4
    cooldown_s: PositiveSeconds = 90.0
    horizon_s: PositiveSeconds = 600.0

    def paced(self, time_scale: float) -> Policy:
        """The same policy where `time_scale` of its seconds pass in one: what is scaled is listed in PACED."""
        changes = {name: getattr(self, name) / time_scale for name in PACED}
        return self.model_copy(update=changes)


PACED: Final = (
    *("cycle_s", "load_window_s", "long_load_window_s", "cooldown_s", "horizon_s"),
    *("canary_limit_s", "canary_synthetic_after_s", "retiring_limit_s"),
)
"""Times of a policy that an emulated run scales. Beats, leases, silence and step limits never are."""

BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "cycle_s": (10.0, 30.0),
    "hysteresis": (1.0, 1.5),
    "cooldown_s": (90.0, 3600.0),
    "horizon_s": (60.0, 600.0),
}
"""What a declared policy may say of the loop, before any scaling."""


class Deployment(Frozen):
    """One model served under one name; the value of a key in the bucket `deployments`."""

    name: Name
    model: ModelRef
    engine: EngineSettings
    slo: Slo = Slo()
    policy: Policy = Policy()
    baseline: Annotated[str, Field(min_length=1)] = "tp1"

    def paced(self) -> Deployment:
        """As it is stored: policy and SLO in real seconds, where `engine.time_scale` emulated ones pass in each."""
        scale = self.engine.time_scale
        slo = Slo(ttft_ms=self.slo.ttft_ms / scale, itl_ms=self.slo.itl_ms / scale)
        return self.model_copy(update={"policy": self.policy.paced(scale), "slo": slo})
