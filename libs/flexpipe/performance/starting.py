"""How long an engine takes from its launch to ready, cold.

Apart from weights: process and imports 10 s, compilation 8–30 s, graphs 1–35 s on a GPU (public measurements of
vLLM and SGLang starts: 45 s in all for Llama-2-7B on an A100 with warm caches, of which weights took 7.6 s); on CPU
about 30 s, all of it imports and warm-up. Weights: bytes of the fullest node over what it reads a second.
"""

from __future__ import annotations

from typing import Final

from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import Deployment, EngineSettings, ModelFacts
from flexpipe.model.plan import Plan
from flexpipe.performance.memory import weights_bytes_per_rank

GPU_START_S: Final = 37.0
"""Process, compilation and graphs together: the 45 s above less the weights."""
CPU_START_S: Final = 30.0


def start_s(plan: Plan, deployment: Deployment) -> float:
    """Cold start of a plan in real seconds. Raises InvalidInput where the model's facts were never read."""
    facts = deployment.model.facts
    if facts is None:
        raise InvalidInput(
            "model.facts", None, "apply the deployment again, so that its config.json is read"
        )
    return cold_start_s(plan, facts, deployment.engine) / deployment.engine.time_scale


def cold_start_s(plan: Plan, facts: ModelFacts, engine: EngineSettings) -> float:
    """The same before the time scale: what the hardware would take. A declared start time is taken as it is."""
    if engine.start_s is not None:
        return engine.start_s
    fixed = CPU_START_S if plan.stages[0].device_model == "cpu" else GPU_START_S
    return fixed + heaviest_node_bytes(plan, facts) / (engine.load_gb_s * 1e9)


def heaviest_node_bytes(plan: Plan, facts: ModelFacts) -> float:
    """Weights that the node with most of them has to read."""
    on_node: dict[str, float] = {}
    for stage in plan.stages:
        share = weights_bytes_per_rank(facts, layers=stage.layers.count, tp=stage.tp)
        for ref in stage.devices:
            on_node[ref.node] = on_node.get(ref.node, 0.0) + share
    return max(on_node.values())
