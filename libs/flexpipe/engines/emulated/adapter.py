"""How the emulated engine is started for the ranks of a plan. Pure: no files, no processes.

The worker calls it. It accepts the layouts SGLang does, so that what was tried here holds there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexpipe.engines.layouts import check_layout
from flexpipe.engines.port import LaunchSpec, RankGroup
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import ModelRef
from flexpipe.model.plan import Plan
from flexpipe.performance.memory import kv_bytes_per_token
from flexpipe.performance.outlook import MAX_RUNNING
from flexpipe.performance.starting import cold_start_s
from flexpipe.performance.steps import step_times

ROOFLINE: Final = "roofline"
"""What `engine.performance` says where the engine behaves as the performance model reckons the plan's hardware."""

CURVE_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, MAX_RUNNING)
CURVE_PROMPTS: Final = (1, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Sizes between which the engine goes straight: the model itself bends at few places."""


class EmulatedAdapter:
    """Turns rank groups into launch specs. `python` is the interpreter that has FlexPipe."""

    name: Final = "emulated"

    def __init__(self, python: str) -> None:
        self._python = python

    def check(self, plan: Plan, model: ModelRef) -> None:
        """Raises InvalidInput where the engine cannot run this plan of this model."""
        check_layout(plan, model)

    def launch(self, group: RankGroup) -> LaunchSpec:
        """The launch spec of one rank group. Raises InvalidInput where it cannot run."""
        plan, engine = group.plan, group.engine
        self.check(plan, group.model)
        argv = [
            *(self._python, "-m", "flexpipe.engines.emulated"),
            *("--model-path", group.model.path, "--served-model-name", group.model.name),
            *("--host", group.host, "--port", str(group.front_port)),
            *("--tp-size", str(plan.tp), "--pp-size", str(plan.pp)),
            *("--layer-partition", ",".join(str(stage.layers.count) for stage in plan.stages)),
            *("--max-total-tokens", str(plan.kv_tokens or engine.max_total_tokens)),
            *("--time-scale", str(engine.time_scale)),
            *("--plan-id", plan.id),
        ]
        if engine.performance == ROOFLINE:
            argv += _as_reckoned(group)
        elif engine.performance is not None:
            argv += ["--performance", engine.performance]
        if len(plan.nodes) > 1:
            argv += ["--nnodes", str(len(plan.nodes)), "--node-rank", str(group.node_rank)]
            argv += ["--dist-init-addr", group.rendezvous]
        env = {
            "FLEXPIPE_PLAN_ID": plan.id,
            "FLEXPIPE_GATE_FENCE": group.fence.header,
            "PYTHONUNBUFFERED": "1",
        }
        front = group.front if group.node_rank == 0 else None
        return LaunchSpec(argv=(*argv, *engine.flags), env=env, front=front)


def _as_reckoned(group: RankGroup) -> list[str]:
    """The flags that make the engine what `flexpipe.performance` says of this plan: hardware time, before any scale."""
    facts, engine = group.model.facts, group.engine
    if facts is None:
        raise InvalidInput(
            "model.facts", None, "apply the deployment again, so that its config.json is read"
        )
    times = step_times(group.plan, facts, engine.dtype, context_tokens=0.0)
    decode = [(batch, times.decode_ms(float(batch))) for batch in CURVE_BATCHES]
    prefill = [(tokens, times.prefill_busy_ms(tokens)) for tokens in CURVE_PROMPTS]
    return [
        *("--decode-curve-ms", _curve(decode)),
        *("--decode-kv-token-ms", f"{times.kv_token_ms:.9f}"),
        *("--prefill-curve-ms", _curve(prefill)),
        *("--start-s", f"{cold_start_s(group.plan, facts, engine):.3f}"),
        *("--max-running", str(MAX_RUNNING)),
        *("--weights-bytes", str(facts.weights_bytes)),
        *("--kv-bytes-per-token", str(kv_bytes_per_token(facts, engine.dtype))),
    ]


def _curve(points: Sequence[tuple[int, float]]) -> str:
    return ",".join(f"{size}:{ms:.4f}" for size, ms in points)
