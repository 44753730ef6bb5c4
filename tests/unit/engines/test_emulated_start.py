"""What the emulated engine refuses before it starts: the command line, the table, the fault."""

import json
from pathlib import Path

import pytest

from flexpipe.engines.emulated.adapter import EmulatedAdapter
from flexpipe.engines.emulated.arguments import EngineArguments, Refused, parse_arguments
from flexpipe.engines.emulated.checkpoint import write_checkpoint
from flexpipe.engines.emulated.faults import Fault
from flexpipe.engines.emulated.table import PerformanceTable, layout_name, read_table
from flexpipe.engines.port import RankGroup
from flexpipe.kernel.errors import InvalidInput
from flexpipe.model.deployment import EngineSettings, ModelRef
from flexpipe.model.fence import Fence
from flexpipe.model.fleet import DeviceRef
from flexpipe.model.plan import LayerRange, Plan, Stage


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder)
    return folder


def parse(model: Path, line: str = "") -> EngineArguments:
    return parse_arguments(["--model-path", str(model), "--port", "31000", *line.split()])


def test_the_defaults_are_the_models(model: Path) -> None:
    given = parse(model)
    assert (given.layout, given.ranks_here, given.first_rank) == ("tp1", 1, 0)
    assert (given.oracle.vocab_size, given.oracle.first_id, given.oracle.eos_id) == (4096, 460, 2)
    assert given.context_tokens == 8192


def test_ranks_are_dealt_out_over_nodes(model: Path) -> None:
    line = "--tp-size 2 --pp-size 2 --nnodes 2 --node-rank 1 --dist-init-addr 127.0.0.1:9"
    given = parse(model, line)
    assert (given.layout, given.ranks_here, given.first_rank) == ("tp2pp2", 2, 2)
    assert given.dist_init_addr == ("127.0.0.1", 9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--tp-size 3", "4 attention heads do not divide over tp 3"),
        ("--pp-size 5", "4 layers cannot fill 5 pipeline stages"),
        ("--pp-size 2 --layer-partition 3,2", "does not split 4 layers over pp 2"),
        ("--pp-size 2 --layer-partition 4", "does not split 4 layers over pp 2"),
        ("--pp-size 2 --layer-partition 4,x", "must read like 20,12"),
        ("--tp-size 0", "must be at least 1"),
        ("--tp-size two", "invalid int value"),
        ("--nnodes 2", "1 ranks do not divide over 2 nodes"),
        ("--tp-size 2 --nnodes 2", "need --dist-init-addr"),
        ("--tp-size 2 --nnodes 2 --dist-init-addr nowhere", "must read host:port"),
        ("--node-rank 1", "node rank 1 is outside 1 nodes"),
        ("--time-scale 0", "time scale"),
        ("--time-scale nan", "time scale"),
        ("--stream-interval 0", "must be at least 1"),
        ("--max-total-tokens 2", "must be at least"),
        ("--vocab-size 3", "too small"),
        ("--performance /nowhere.toml", "No such file"),
        ("--unknown 1", "unrecognized arguments"),
        ("--port 99999", "not a port"),
    ],
)
def test_a_line_that_cannot_run_is_refused_in_one_line(
    model: Path, line: str, message: str
) -> None:
    with pytest.raises(Refused, match=message) as refusal:
        parse(model, line)
    assert "\n" not in str(refusal.value)


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no model at"):
        parse(tmp_path / "absent")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(Refused, match="not a JSON object"):
        parse(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": "4"}))
    with pytest.raises(Refused, match="num_attention_heads"):
        parse(tmp_path)


TABLE = """
start_s = 20.0
prefill_tokens_per_s = 8000
kv_bytes_per_token = 131072
weights_bytes = 13_500_000_000
max_running = 64
max_queued = 256
max_total_tokens = 120_000
mean_output_tokens = 200
[decode_step_ms.tp1]
base = 22.0
per_sequence = 0.25
"""


def test_a_table_is_read(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    table = read_table(path)
    assert table.step_time("tp1").base == 22.0
    assert table.prefill_s(4000) == 0.5
    line = f"--performance {path} --max-total-tokens 5000"
    assert parse(model, line).table.max_total_tokens == 5000
    with pytest.raises(Refused, match=r"has no decode_step_ms.tp2 \(has: tp1\)"):
        parse(model, f"--performance {path} --tp-size 2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start_s = -1", "start_s"),
        ("start_s = inf", "start_s"),
        ("prefill_tokens_per_s = 0", "prefill_tokens_per_s"),
        ("speed = 3", "speed"),
        ("[decode_step_ms.tp1]\nbase = 'x'", "decode_step_ms.tp1.base"),
        ("= 3", "table"),
    ],
)
def test_a_bad_table_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as refusal:
        read_table(path)
    assert "\n" not in str(refusal.value)


def test_layouts_have_one_name() -> None:
    names = [layout_name(tp, pp) for tp, pp in ((1, 1), (4, 1), (1, 2), (2, 3))]
    assert names == ["tp1", "tp4", "pp2", "tp2pp3"]
    assert PerformanceTable().step_time("tp8").base > 0


def test_faults_are_read_and_unknown_ones_refused() -> None:
    assert Fault.from_env({}) == Fault()
    assert Fault.from_env({"FLEXPIPE_EMULATED_FAULT": "never_ready"}).kind == "never_ready"
    crash = Fault.from_env({"FLEXPIPE_EMULATED_FAULT": "crash_after_tokens=7"})
    assert (crash.kind, crash.tokens) == ("crash_after_tokens", 7)
    for text in ("explode", "start_fails=1", "crash_after_tokens", "crash_after_tokens=x"):
        with pytest.raises(ValueError, match="FLEXPIPE_EMULATED_FAULT"):
            Fault.from_env({"FLEXPIPE_EMULATED_FAULT": text})


# -- the adapter ----------------------------------------------------------------------------------


def group(model: Path, stages: list[list[str]], node: str = "n1", rank: int = 0) -> RankGroup:
    """A rank group of the toy model; each stage lists its devices as node/device."""
    cuts = [4 * index // len(stages) for index in range(len(stages) + 1)]
    made = tuple(
        Stage(
            layers=LayerRange(first=first, end=end),
            devices=tuple(
                DeviceRef(node=name.split("/")[0], device=name.split("/")[1]) for name in names
            ),
            rank_bytes=1,
        )
        for names, first, end in zip(stages, cuts, cuts[1:], strict=False)
    )
    return RankGroup(
        plan=Plan(model="toy", engine="emulated", stages=made),
        fence=Fence(deployment="chat", term=2, shift=3, step=4),
        model=ModelRef(name="toy", path=str(model)),
        engine=EngineSettings(kind="emulated", form="emulated", time_scale=10),
        node=node,
        node_rank=rank,
        host="127.0.0.1",
        front_port=31_000,
        rendezvous="127.0.0.1:31001",
    )


def test_what_the_adapter_writes_the_engine_reads(model: Path) -> None:
    stages = [["n1/cpu0", "n1/cpu1"], ["n2/cpu0", "n2/cpu1"]]
    for node, rank in (("n1", 0), ("n2", 1)):
        wanted = group(model, stages, node, rank)
        spec = EmulatedAdapter("python").launch(wanted)
        assert spec.argv[:3] == ("python", "-m", "flexpipe.engines.emulated")
        given = parse_arguments(spec.argv[3:])
        assert (given.tp, given.pp, given.nnodes, given.node_rank) == (2, 2, 2, rank)
        assert (given.time_scale, given.plan_id) == (10.0, wanted.plan.id)
        assert given.table.max_total_tokens == wanted.engine.max_total_tokens
        assert spec.env["FLEXPIPE_GATE_FENCE"] == "2.3.4"
        assert spec.front == (None if rank else "http://127.0.0.1:31000")


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param([["n1/a", "n1/b"], ["n1/c"]], id="two widths"),
        pytest.param([["n1/a"], ["n2/a"], ["n2/b"]], id="unequal nodes"),
        pytest.param([["n1/a"], ["n2/a"], ["n1/b"], ["n2/b"]], id="nodes interleaved"),
    ],
)
def test_a_layout_the_engine_cannot_run_is_refused(model: Path, stages: list[list[str]]) -> None:
    with pytest.raises(InvalidInput, match="stages"):
        EmulatedAdapter("python").launch(group(model, stages))
