"""Deployment files: what they give, and the one line that a mistake gets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from flexpipe.cli.declare import read_deployment
from flexpipe.kernel.errors import InvalidInput
from flexpipe.performance.memory import kv_bytes_per_token

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 128,
    "vocab_size": 259,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
GOOD = """
name = "toy"
[model]
name = "toy-llama"
path = "{folder}"
[engine]
kind = "sglang"
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(b"\0" * 1000)
    return folder


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "deployment.toml"
    path.write_text(text)
    return path


def test_a_file_gives_a_deployment_with_the_model_s_facts(tmp_path: Path, model: Path) -> None:
    deployment = read_deployment(written(tmp_path, GOOD.format(folder=model)))
    facts = deployment.model.facts
    assert facts is not None
    assert (facts.layers, facts.heads, facts.kv_heads) == (4, 4, 2)
    assert facts.weights_bytes == 2000  # stored in two bytes, served in four
    assert deployment.baseline == "tp1"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[engine]", "colour = 3\n[engine]"), "model.colour: 3 is not accepted: unknown field"),
        (
            ('name = "toy"', 'name = "Toy!"'),
            "name: 'Toy!' is not accepted: lower-case letters, digits and inner dashes",
        ),
        (('name = "toy"\n', ""), "name: None is not accepted: this field is required"),
        (('kind = "sglang"', 'kind = "vllm"'), "engine.kind: 'vllm' is not accepted: use one of"),
        (
            ('kind = "sglang"', 'kind = "sglang"\ndtype = "int3"'),
            "engine.dtype: 'int3' is not accepted",
        ),
        (
            ('kind = "sglang"', 'kind = "sglang"\nform = "emulated"'),
            "engine.form: 'emulated' is not accepted: a real",
        ),
        (
            ('kind = "sglang"', 'kind = "emulated"'),
            "engine.form: 'cpu' is not accepted: an emulated engine",
        ),
        (("[model]", "[model"), "not TOML"),
        (
            ("[engine]", "[policy]\ncanary_share = 0.9\n[engine]"),
            "policy.canary_share: 0.9 is not accepted",
        ),
        (
            ("[engine]", "[policy]\nretiring_limit_s = nan\n[engine]"),
            "policy.retiring_limit_s: nan",
        ),
        (
            ("[engine]", "[policy]\ncooldown_s = 20\n[engine]"),
            "policy.cooldown_s: 20 is not accepted: must be between 90 and 3600",
        ),
        (
            ("[engine]", "[policy]\ncycle_s = 9.5\n[engine]"),
            "policy.cycle_s: 9.5 is not accepted: must be between 10 and 30",
        ),
        (
            ("[engine]", "[policy]\nhysteresis = 1.6\n[engine]"),
            "policy.hysteresis: 1.6 is not accepted: must be between 1 and 1.5",
        ),
        (
            ("[engine]", "[policy]\nhorizon_s = 700\n[engine]"),
            "policy.horizon_s: 700 is not accepted: must be between 60 and 600",
        ),
        *(
            (
                ("[engine]", f"[policy]\nhysteresis = {value}\n[engine]"),
                f"deployment.toml: policy.hysteresis: {shown} is not accepted: must be between 1 and 1.5",
            )
            for value, shown in (("9", "9"), ("-0.5", "-0.5"), ("nan", "nan"), ("'much'", "'much'"))
        ),
        (
            ("[engine]", "[policy]\nload_window_s = 700\n[engine]"),
            "policy.long_load_window_s: 600.0 is not accepted: must not be shorter than load_window_s, 700",
        ),
        (
            ('kind = "sglang"', 'kind = "sglang"\nperformance = "roofline"'),
            "engine.performance: 'roofline' is not accepted: only an emulated engine",
        ),
        (
            ('kind = "sglang"', 'kind = "sglang"\ntime_scale = 6'),
            "engine.time_scale: 6.0 is not accepted: only emulated time",
        ),
        (
            ('kind = "sglang"', 'kind = "emulated"\nform = "emulated"\nperformance = "fast.toml"'),
            "engine.performance: 'fast.toml' is not accepted: no such file; name a performance table, or 'roofline'",
        ),
        (
            ('name = "toy"', 'name = "toy"\nbaseline = "tp3"'),
            "baseline: 'tp3' is not accepted: tp 3 must divide the model's 4 attention heads",
        ),
        (
            ('name = "toy"', 'name = "toy"\nbaseline = "gpu"'),
            "baseline: 'gpu' is not accepted: write",
        ),
    ],
)
def test_a_mistake_is_named_with_field_value_and_fix(
    tmp_path: Path, model: Path, change: tuple[str, str], says: str
) -> None:
    text = GOOD.format(folder=model).replace(*change)
    with pytest.raises(InvalidInput) as caught:
        read_deployment(written(tmp_path, text))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_is_not_there_is_named_by_its_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"model\.path: .*no config\.json in .*nowhere"):
        read_deployment(written(tmp_path, GOOD.format(folder=tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("[]", "must hold one JSON object"),
        ("{", "not JSON"),
        ('{"text_config": 3}', "text_config: 3 is not accepted"),
        (json.dumps({**CONFIG, "num_hidden_layers": "many"}), "num_hidden_layers: 'many'"),
    ],
)
def test_a_strange_config_of_a_model_is_named(
    tmp_path: Path, model: Path, config: str, says: str
) -> None:
    (model / "config.json").write_text(config)
    with pytest.raises(InvalidInput, match=re.escape(says)):
        read_deployment(written(tmp_path, GOOD.format(folder=model)))


def test_a_file_that_is_not_there_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        read_deployment(tmp_path / "absent.toml")


def test_a_model_without_weights_or_table_is_refused(tmp_path: Path, model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"no \*\.safetensors"):
        read_deployment(written(tmp_path, GOOD.format(folder=model)))


EMULATED = GOOD.replace(
    'kind = "sglang"', 'kind = "emulated"\nform = "emulated"\ndtype = "bfloat16"'
)


def test_times_are_stored_in_real_seconds(tmp_path: Path, model: Path) -> None:
    text = EMULATED.format(folder=model) + (
        'performance = "roofline"\ntime_scale = 6\n'
        "[slo]\nttft_ms = 1200\nitl_ms = 60\n[policy]\ncooldown_s = 120\nengine_start_limit_s = 90\n"
    )
    stored = read_deployment(written(tmp_path, text))
    assert (stored.slo.ttft_ms, stored.slo.itl_ms) == (200.0, 10.0)
    assert (stored.policy.cooldown_s, stored.policy.cycle_s) == (20.0, 2.5)
    assert stored.policy.engine_start_limit_s == 90  # a limit of this machine
    assert stored.engine.time_scale == 6
    assert stored.engine.performance == "roofline"


def test_an_emulated_model_without_weights_has_those_of_its_shapes(
    tmp_path: Path, model: Path
) -> None:
    (model / "model.safetensors").unlink()
    shape = {**CONFIG, "intermediate_size": 344}
    (model / "config.json").write_text(json.dumps(shape))
    facts = read_deployment(written(tmp_path, EMULATED.format(folder=model))).model.facts
    attention = 128 * 32 * 2 * (4 + 2)
    parameters = 2 * 259 * 128 + 4 * (attention + 3 * 128 * 344 + 2 * 128) + 128
    assert facts is not None
    assert facts.weights_bytes == 2 * parameters


def test_an_emulated_model_whose_shapes_say_too_little_is_refused(
    tmp_path: Path, model: Path
) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match="intermediate_size"):
        read_deployment(written(tmp_path, EMULATED.format(folder=model)))


def test_a_table_s_start_time_is_that_of_the_deployment(tmp_path: Path, model: Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text("start_s = 15.0\nweights_bytes = 7\n")
    text = EMULATED.format(folder=model) + f'performance = "{table}"\n'
    assert read_deployment(written(tmp_path, text)).engine.start_s == 15.0
    declared = read_deployment(written(tmp_path, text + "start_s = 3.0\n"))
    assert declared.engine.start_s == 3.0
    (model / "model.safetensors").unlink()
    facts = read_deployment(written(tmp_path, text)).model.facts
    assert facts is not None
    assert facts.weights_bytes == 7


def test_a_table_with_a_fault_is_refused_before_an_engine_is_started(
    tmp_path: Path, model: Path
) -> None:
    table = tmp_path / "table.toml"
    table.write_text("start_s = -1\n")
    text = EMULATED.format(folder=model) + f'performance = "{table}"\n'
    with pytest.raises(InvalidInput, match=r"engine\.performance: .*start_s"):
        read_deployment(written(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "weights_bytes", "kv_bytes"),
    [("llama-7b", 13_476_831_232, 524_288), ("llama-70b", 137_953_296_384, 327_680)],
)
def test_the_example_llamas_need_no_download_and_have_the_real_ones_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    weights_bytes: int,
    kv_bytes: int,
) -> None:
    """Published figures of Llama-2-7B and Llama-2-70B in bfloat16."""
    example = Path(f"ops/examples/{name}.toml").resolve()
    monkeypatch.chdir(tmp_path)
    stored = read_deployment(example)
    facts = stored.model.facts
    assert facts is not None
    assert facts.weights_bytes == weights_bytes
    assert kv_bytes_per_token(facts, stored.engine.dtype) == kv_bytes
    folder = Path(stored.model.path)
    assert folder == tmp_path / "var" / "models" / f"{name}-emulated"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == facts.vocab
    before = (folder / "config.json").stat().st_mtime_ns
    assert read_deployment(example) == stored
    assert (folder / "config.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "example", sorted(Path("ops/examples").glob("*.toml")), ids=lambda path: path.stem
)
def test_every_example_is_a_deployment(
    example: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = example.read_text()
    path = next(line for line in text.splitlines() if line.startswith("path"))
    copy = model.parent / example.name
    copy.write_text(text.replace(path, f'path = "{model}"'))
    assert read_deployment(copy).name
