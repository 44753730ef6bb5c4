"""Deployment files: what they give, and the one line that a mistake gets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flexpipe.cli.declare import read_deployment
from flexpipe.kernel.errors import InvalidInput

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
        (('name = "toy"', 'name = "Toy!"'), "name: 'Toy!' is not accepted"),
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
