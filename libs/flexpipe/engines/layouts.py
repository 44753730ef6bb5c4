"""Layouts that one engine process group can run at all. Shared by adapters, so that what was tried on the emulated
engine holds on the real one.
"""

from __future__ import annotations

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import ModelRef
from flexpipe.model.plan import Plan, Role


def check_layout(plan: Plan, model: ModelRef) -> None:
    """Raises InvalidInput where roles, widths, nodes, heads or layers do not go together."""
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
    if facts.kv_heads % plan.tp and plan.tp % facts.kv_heads:
        raise InvalidInput(
            "tp", plan.tp, f"must divide the model's {facts.kv_heads} KV heads or be a multiple"
        )
    end = plan.stages[-1].layers.end
    if end != facts.layers:
        raise InvalidInput("stages", end, f"must end at the model's {facts.layers} layers")


def _check_nodes(plan: Plan) -> None:
    if not plan.is_even_over_nodes:
        raise InvalidInput(
            "stages",
            [len(plan.ranks_on(node)) for node in plan.nodes],
            "over several nodes the ranks must be equal in number and consecutive on each: "
            "whole stages, or equal parts of one stage",
        )
