"""How the emulated engine is started for the ranks of a plan. Pure: no files, no processes.

The worker calls it. It accepts the layouts SGLang does, so that what was tried here holds there.
"""

from __future__ import annotations

from typing import Final

from flexpipe.engines.port import LaunchSpec, RankGroup
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import ModelRef
from flexpipe.model.plan import Plan, Role


class EmulatedAdapter:
    """Turns rank groups into launch specs. `python` is the interpreter that has FlexPipe."""

    name: Final = "emulated"

    def __init__(self, python: str) -> None:
        self._python = python

    def check(self, plan: Plan, model: ModelRef) -> None:
        """Raises InvalidInput where the engine cannot run this plan of this model."""
        if any(stage.role is not Role.BOTH for stage in plan.stages):
            raise InvalidInput("stages", plan.shape, "prefill and decode stages are separate plans")
        widths = [stage.tp for stage in plan.stages]
        if len(set(widths)) != 1:
            raise InvalidInput("stages", widths, "all stages of one engine have one TP width")
        _check_nodes(plan)
        facts = model.facts
        if facts is None:
            return
        if facts.heads % plan.tp:
            raise InvalidInput("tp", plan.tp, f"must divide the model's {facts.heads} heads")
        end = plan.stages[-1].layers.end
        if end != facts.layers:
            raise InvalidInput("stages", end, f"must end at the model's {facts.layers} layers")

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


def _check_nodes(plan: Plan) -> None:
    """Each node carries the same number of ranks, in order, as SGLang deals them out."""
    nodes = plan.nodes
    share, rest = divmod(plan.tp * plan.pp, len(nodes))
    expected = [tuple(range(index * share, (index + 1) * share)) for index in range(len(nodes))]
    whole = share % plan.tp == 0 or plan.tp % max(share, 1) == 0
    if rest or not whole or [plan.ranks_on(node) for node in nodes] != expected:
        counts = [len(plan.ranks_on(node)) for node in nodes]
        raise InvalidInput(
            "stages",
            counts,
            "over several nodes the ranks must be equal in number and consecutive on each: "
            "whole stages, or equal parts of one stage",
        )
