"""The launch specs and request bodies we send are the ones SGLang's own parser and structs accept.

SGLang is imported in its own environment only, by one short program; no server is started.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flexpipe.engines.port import LaunchSpec, RankGroup
from flexpipe.engines.sglang.adapter import SglangAdapter
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import EngineSettings, ModelFacts, ModelRef
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.plan import LayerRange, Plan, Role, Stage

pytestmark = pytest.mark.sglang

ROOT = Path(__file__).parents[2]
ENGINE_PYTHON = Path(os.environ.get("FLEXPIPE_ENGINE_VENV", ROOT / ".venv-sglang")) / "bin/python"

PARSE_FLAGS = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
asked = json.load(sys.stdin)
print(json.dumps([vars(parser.parse_args(argv)) for argv in asked], default=repr))
"""

CHECK_BODIES = """
import json, sys
from pydantic import TypeAdapter
from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams
answers = []
for kind, body in json.load(sys.stdin):
    try:
        value = TypeAdapter(getattr(io_struct, kind)).validate_python(body)
        if kind == "GenerateReqInput":
            SamplingParams(**body["sampling_params"]).verify(49152)
        answers.append({name: getattr(value, name) for name in body})
    except Exception as error:
        answers.append(f"{type(error).__name__}: {error}")
print(json.dumps(answers))
"""

PLUGIN_TARGETS = """
import importlib.metadata, inspect, json
from sglang.srt.entrypoints import http_server
from sglang.srt.managers.tokenizer_manager import ServerStatus, TokenizerManager
from sglang.srt.mem_cache.pool_host import base, common, mha
from sglang.srt.plugins import GENERAL_PLUGINS_GROUP
hooks = [each.value for each in importlib.metadata.entry_points(group=GENERAL_PLUGINS_GROUP)]
print(json.dumps({
    "hooks": hooks,
    "validate": list(inspect.signature(TokenizerManager._validate_one_request).parameters),
    "statuses": [each.name for each in ServerStatus],
    "app": type(http_server.app).__name__,
    "global_state": hasattr(http_server, "_global_state"),
    "pin": "pin_memory" in inspect.signature(base.HostKVCache.__init__).parameters,
    "register": callable(common._cuda_host_register),
    "copy": "transfer_kv_direct(" in inspect.getsource(mha),
}))
"""


def engine_answers(program: str, asked: object = None, env: Mapping[str, str] | None = None) -> Any:
    """Run a program in SGLang's environment, the CPU form's settings on; its last line is JSON."""
    spec = SglangAdapter(str(ENGINE_PYTHON)).launch(group(plan_of([4])))
    done = subprocess.run(
        [str(ENGINE_PYTHON), "-W", "ignore", "-c", program],
        input=json.dumps(asked),
        env={**os.environ, **spec.env, **(env or {})},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def plan_of(layers: list[int], tp: int = 1, nodes: int = 1, role: Role = Role.BOTH) -> Plan:
    """Stages of these many layers, ranks spread over the nodes in order."""
    world = len(layers) * tp
    stages, first = [], 0
    for index, count in enumerate(layers):
        ranks = range(index * tp, (index + 1) * tp)
        devices = tuple(DeviceRef(node=f"n{r * nodes // world}", device=f"d{r}") for r in ranks)
        span = LayerRange(first=first, end=first + count)
        stages.append(Stage(role=role, layers=span, devices=devices, rank_bytes=1))
        first += count
    return Plan(model="toy", engine="sglang", stages=tuple(stages))


def group(plan: Plan, node_rank: int = 0, **changes: Any) -> RankGroup:
    """The rank group of one node of a plan on CPU, or as `changes` say."""
    node = plan.nodes[node_rank]
    values: dict[str, Any] = {
        "plan": plan,
        "fence": Fence(deployment="chat", term=2, shift=5, step=3),
        "model": ModelRef(name="toy", path="/models/toy"),
        "engine": EngineSettings(kind="sglang", form="cpu", max_total_tokens=4096),
        "node": node,
        "node_rank": node_rank,
        "host": "127.0.0.1",
        "front_port": 31_000 + 8 * node_rank,
        "rendezvous": "127.0.0.1:31002",
        "cores": tuple(range(len(plan.ranks_on(node)))),
    }
    return RankGroup(**(values | changes))


def launch(group_: RankGroup) -> LaunchSpec:
    return SglangAdapter("/engine/python").launch(group_)


def on_gpus(plan: Plan) -> RankGroup:
    settings = EngineSettings(
        kind="sglang", form="cuda", dtype="bfloat16", flags=("--enable-metrics",)
    )
    return group(plan, engine=settings, cores=(), gpu_uuids=("GPU-b", "GPU-a"))


CPU = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "dtype": "float32",
    "max_total_tokens": 4096,
    "sleep_on_idle": True,
    "load_snapshot_publish_interval": 1,
    "host": "127.0.0.1",
    "nccl_port": 31_002,
    "nnodes": 1,
    "model_path": "/models/toy",
    "served_model_name": "toy",
}
SPECS: list[tuple[LaunchSpec, dict[str, Any]]] = [
    (launch(group(plan_of([4]))), CPU | {"tp_size": 1, "pp_size": 1, "port": 31_000}),
    (launch(group(plan_of([4], tp=2))), CPU | {"tp_size": 2, "pp_size": 1}),
    (launch(group(plan_of([3, 1]))), CPU | {"tp_size": 1, "pp_size": 2}),
    (
        launch(group(plan_of([2, 2], nodes=2), node_rank=1)),
        {"nnodes": 2, "node_rank": 1, "dist_init_addr": "127.0.0.1:31002", "port": 31_008},
    ),
    (
        launch(on_gpus(plan_of([4], tp=2))),
        {"device": "cuda", "attention_backend": None, "page_size": 64, "dtype": "bfloat16"}
        | {"enable_metrics": True, "tp_size": 2, "sleep_on_idle": False},
    ),
]


def test_sglangs_parser_reads_every_launch_as_we_mean_it() -> None:
    parsed = engine_answers(PARSE_FLAGS, [spec.argv[3:] for spec, _ in SPECS])
    for got, (spec, wanted) in zip(parsed, SPECS, strict=True):
        assert {name: got[name] for name in wanted} == wanted, spec.argv


def test_what_is_no_flag_goes_by_the_environment() -> None:
    uneven, second_node, gpus = SPECS[2][0], SPECS[3][0], SPECS[4][0]
    assert uneven.env["SGLANG_PP_LAYER_PARTITION"] == "3,1"
    assert uneven.env["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"
    assert uneven.env["FLEXPIPE_PLAN_ID"] == plan_of([3, 1]).id
    assert uneven.env["FLEXPIPE_GATE_FENCE"] == "2.5.3"
    assert uneven.front == "http://127.0.0.1:31000"
    assert second_node.env["SGLANG_CPU_OMP_THREADS_BIND"] == "0"
    assert second_node.front is None
    assert gpus.env["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert not {"SGLANG_USE_CPU_ENGINE", "PYTHONPATH", "OMP_NUM_THREADS"} & set(gpus.env)


def facts(**changes: Any) -> ModelRef:
    values: dict[str, Any] = {
        **{"layers": 4, "heads": 6, "kv_heads": 3, "head_dim": 8, "hidden": 48, "vocab": 99},
        **{"context_tokens": 64, "weights_bytes": 1, "tied_embeddings": False},
        "architecture": "LlamaForCausalLM",
    }
    return ModelRef(name="toy", path="/models/toy", facts=ModelFacts(**(values | changes)))


@pytest.mark.parametrize(
    ("plan", "model", "fault"),
    [
        (plan_of([2, 2]), facts(tied_embeddings=True), "untied"),
        (plan_of([4], tp=4), facts(), "divide the model's 6 heads"),
        (plan_of([4], tp=2), facts(), "3 KV heads"),
        (plan_of([2, 1]), facts(), "4 layers"),
        (plan_of([2, 1, 1], nodes=2), facts(), "equal in number and consecutive"),
        (plan_of([4], role=Role.PREFILL), facts(), "separate plans"),
    ],
)
def test_a_layout_that_sglang_cannot_run_is_refused_with_the_reason(
    plan: Plan, model: ModelRef, fault: str
) -> None:
    with pytest.raises(InvalidInput, match=fault):
        launch(group(plan, model=model))


def test_sglangs_structs_accept_every_body_of_our_client() -> None:
    generate: dict[str, Any] = {
        "rid": "chat-1.0",
        "input_ids": [1, 2, 3],
        "sampling_params": {
            **{"max_new_tokens": 8, "temperature": 0.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1},
            **{"stop_token_ids": [2], "ignore_eos": True, "sampling_seed": 7},
            **{"frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.1},
        },
        "stream": True,
        "priority": 3,
    }
    forced = generate | {
        **{"stream": False, "sampling_params": {"max_new_tokens": 0, "temperature": 0.0}},
        **{"return_logprob": True, "logprob_start_len": 1, "top_logprobs_num": 1},
    }
    asked = [
        ("GenerateReqInput", generate),
        ("GenerateReqInput", forced),
        ("AbortReq", {"rid": "chat-1.0"}),
    ]
    assert engine_answers(CHECK_BODIES, asked) == [body for _, body in asked]


def test_sglangs_structs_do_refuse_a_wrong_body() -> None:
    wrong = {"input_ids": "text", "sampling_params": {"max_new_tokens": 1}}
    [answer] = engine_answers(CHECK_BODIES, [("GenerateReqInput", wrong)])
    assert isinstance(answer, str)
    assert "input_ids" in answer


def test_what_the_plugin_holds_on_to_is_there_in_the_pinned_sglang() -> None:
    assert engine_answers(PLUGIN_TARGETS) == {
        "hooks": ["flexpipe.engines.sglang.plugin:activate"],
        "validate": ["self", "obj", "input_ids"],
        "statuses": ["Up", "Starting", "UnHealthy"],
        "app": "FastAPI",
        "global_state": True,
        "pin": True,
        "register": True,
        "copy": True,
    }
