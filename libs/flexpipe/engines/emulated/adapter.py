"""How the emulated engine is started for the ranks of a plan. Pure: no files, no processes.

The worker calls it. It accepts the layouts SGLang does, so that what was tried here holds there.
"""

from __future__ import annotations

from typing import Final

from flexpipe.engines.layouts import check_layout
from flexpipe.engines.port import LaunchSpec, RankGroup
from flexpipe.model.deployment import ModelRef
from flexpipe.model.plan import Plan


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
            *("--max-total-tokens", str(engine.max_total_tokens)),
            *("--time-scale", str(engine.time_scale)),
            *("--plan-id", plan.id),
        ]
        if engine.performance is not None:
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
