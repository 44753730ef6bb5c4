"""How SGLang 0.5.23 is started for the ranks of a plan. Pure: no files, no processes, no sglang import.

The worker calls it; `tests/contract/test_sglang_arguments.py` holds it against SGLang's own parser.
What each CPU setting is for stands beside it; the GPU form is the upstream image's, with our plugin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from flexpipe.engines.layouts import check_layout
from flexpipe.engines.port import LaunchSpec, RankGroup
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import ModelRef
from flexpipe.model.plan import Plan

CPU_SHIM: Final = str(Path(__file__).parent / "cpu_shim")
"""Holds the `sgl_kernel` stand-in; on PYTHONPATH in the CPU form only."""

NCCL_PORT_OFFSET: Final = 2  # 0 is the front, 1 the rendezvous
"""Within the plan's block of ports: 0 is the HTTP front, this is where local ranks meet.

SGLang would draw the second one itself, and two engines that start side by side can draw the same.
"""

CPU_MEMORY_FRACTION: Final = "0.1"
"""Share of host memory SGLang may plan with. `--max-total-tokens` is what sizes the KV cache on CPU;
the fraction must only be large enough for it, and small enough for several engines on one host."""

GPU_PAGE_TOKENS: Final = 64
RANDOM_SEED: Final = 1
"""The same on every node of a plan; sampling seeds are given with each request."""

CPU_FLAGS: Final = (
    *("--device", "cpu"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
    *("--mem-fraction-static", CPU_MEMORY_FRACTION),
    # An abort, and so a hand-over, waits for the prefill step in progress: about 300 tokens/s here.
    *("--chunked-prefill-size", "512"),
    "--sleep-on-idle",  # otherwise an idle scheduler burns a core
)

COMMON_ENV: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # A server that lost a process would otherwise sleep 5 s for a stack dump, and 60 s more for a
    # GPU's core dump, before it exits.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
}


class SglangAdapter:
    """Turns rank groups into launch specs. `python` is the interpreter of SGLang's environment."""

    name: Final = "sglang"

    def __init__(self, python: str) -> None:
        self._python = python

    def check(self, plan: Plan, model: ModelRef) -> None:
        """Raises InvalidInput where SGLang cannot run this plan of this model."""
        check_layout(plan, model)
        if plan.pp > 1 and model.facts is not None and model.facts.tied_embeddings:
            raise InvalidInput(
                "pp",
                plan.pp,
                "SGLang 0.5.23 crashes on tied embeddings under pipeline parallelism; "
                "save the checkpoint untied (own lm_head, tie_word_embeddings false)",
            )

    def launch(self, group: RankGroup) -> LaunchSpec:
        """The launch spec of one rank group. Raises InvalidInput where SGLang cannot run it."""
        self.check(group.plan, group.model)
        if group.engine.form == "emulated":
            raise InvalidInput("engine.form", group.engine.form, "SGLang runs as cpu or cuda")
        cpu = group.engine.form == "cpu"
        argv = (
            *(self._python, "-m", "sglang.launch_server"),
            *_layout_flags(group),
            *(CPU_FLAGS if cpu else _gpu_flags()),
            *("--dtype", group.engine.dtype),
            *("--max-total-tokens", str(group.plan.kv_tokens or group.engine.max_total_tokens)),
            *("--random-seed", str(RANDOM_SEED)),
            *("--log-level-http", "warning"),
            # /v1/loads answers from a snapshot, by default up to 15 decode iterations old.
            *("--load-snapshot-publish-interval", "1"),
            *group.engine.flags,
        )
        env = {
            **COMMON_ENV,
            **(_cpu_env(group) if cpu else _gpu_env(group)),
            **_network_env(group),
            "FLEXPIPE_PLAN_ID": group.plan.id,
            "FLEXPIPE_GATE_FENCE": group.fence.header,
        }
        if group.plan.pp > 1:
            env["SGLANG_PP_LAYER_PARTITION"] = ",".join(
                str(stage.layers.count) for stage in group.plan.stages
            )
        return LaunchSpec(argv=argv, env=env, front=group.front if group.node_rank == 0 else None)


def _layout_flags(group: RankGroup) -> tuple[str, ...]:
    plan = group.plan
    flags = (
        *("--model-path", group.model.path, "--served-model-name", group.model.name),
        # Node ranks above 0 serve no requests, but a small health server on the same flag's port.
        *("--host", group.host, "--port", str(group.front_port)),
        *("--nccl-port", str(group.front_port + NCCL_PORT_OFFSET)),
        *("--tp-size", str(plan.tp), "--pp-size", str(plan.pp)),
    )
    if len(plan.nodes) == 1:
        return flags
    return (
        *flags,
        *("--nnodes", str(len(plan.nodes)), "--node-rank", str(group.node_rank)),
        *("--dist-init-addr", group.rendezvous),
    )


def _gpu_flags() -> tuple[str, ...]:
    return ("--device", "cuda", "--page-size", str(GPU_PAGE_TOKENS))


def _cpu_env(group: RankGroup) -> dict[str, str]:
    ranks = len(group.plan.ranks_on(group.node))
    if group.cores and len(group.cores) != ranks:
        raise InvalidInput("cores", group.cores, f"one core for each of the {ranks} local ranks")
    cores = group.cores or tuple(range(ranks))
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        # More threads than cores make decoding several times slower.
        "OMP_NUM_THREADS": "1",
        # Without it SGLang wants a NUMA node for each rank. It binds only where AMX kernels exist.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, cores)),
        "PYTHONPATH": CPU_SHIM,
    }


def _gpu_env(group: RankGroup) -> dict[str, str]:
    ranks = len(group.plan.ranks_on(group.node))
    if len(group.gpu_uuids) != ranks:
        raise InvalidInput("gpu_uuids", group.gpu_uuids, f"one GPU for each of the {ranks} ranks")
    return {"CUDA_VISIBLE_DEVICES": ",".join(group.gpu_uuids)}


def _network_env(group: RankGroup) -> dict[str, str]:
    """Where ranks of several nodes find each other: the node's address, never a guessed one."""
    if len(group.plan.nodes) == 1:
        return {}
    env = {"SGLANG_HOST_IP": group.host}
    if group.host.startswith("127.") or group.host == "::1":
        env["GLOO_SOCKET_IFNAME"] = "lo"
    return env
