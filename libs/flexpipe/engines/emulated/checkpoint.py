"""A model folder for the emulated engine: tokenizer, chat template and config, no weights.

    python -m flexpipe.engines.emulated.checkpoint DIR [--shape toy|7b|70b]

The tokenizer is byte-level BPE, so any text survives decode(encode(text)). Ids, in order: four
specials, 256 bytes, 100 syllables ("ba"), 100 syllables after a space (" ba"), then words of two
syllables (" baka") and, in large vocabularies, of three, one token each. The oracle emits words only,
so what an emulated engine says is printable, never splits a character, and encodes back to the ids it
came from.

`7b` and `70b` have every shape of Llama-2-7B and Llama-2-70B, vocabulary size included: whoever reckons
with their config.json gets the bytes of the real ones.
"""

import argparse
import json
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
ENDOFTEXT_ID, IM_START_ID, IM_END_ID, PAD_ID = range(4)
SYLLABLES = tuple(c + v for c, v in product("bcdfghjklmnpqrstvwxz", "aeiou"))
FIRST_WORD_ID = len(SPECIALS) + 256 + 2 * len(SYLLABLES)
MAX_VOCAB_SIZE = FIRST_WORD_ID + len(SYLLABLES) ** 2 + len(SYLLABLES) ** 3
SPACE = "Ġ"  # how byte-level BPE writes a space

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-like shape; ``vocab_size`` counts every id of the tokenizer."""

    layers: int
    heads: int
    kv_heads: int
    hidden: int
    intermediate: int
    vocab_size: int = 4096
    context_tokens: int = 8192
    dtype: str = "float32"


SHAPES = {
    "toy": Shape(layers=4, heads=4, kv_heads=2, hidden=128, intermediate=512),
    # Llama-2-7B and Llama-2-70B: their published config.json, with a longer context (their 16k fine-tunes).
    "7b": Shape(
        layers=32,
        heads=32,
        kv_heads=32,
        hidden=4096,
        intermediate=11008,
        vocab_size=32000,
        context_tokens=16384,
        dtype="bfloat16",
    ),
    "70b": Shape(
        layers=80,
        heads=64,
        kv_heads=8,
        hidden=8192,
        intermediate=28672,
        vocab_size=32000,
        context_tokens=16384,
        dtype="bfloat16",
    ),
}


def write_checkpoint(folder: Path, shape: Shape = SHAPES["toy"]) -> None:
    """Write the folder; files that are there are replaced. Raises ValueError for a bad vocabulary."""
    if not FIRST_WORD_ID < shape.vocab_size <= MAX_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be in ({FIRST_WORD_ID}, {MAX_VOCAB_SIZE}]")
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": _config(shape),
        "generation_config.json": {"eos_token_id": IM_END_ID, "pad_token_id": PAD_ID},
        "tokenizer.json": _tokenizer(shape.vocab_size),
        "tokenizer_config.json": _tokenizer_config(shape),
    }
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_size": shape.hidden,
        "head_dim": shape.hidden // shape.heads,
        "intermediate_size": shape.intermediate,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": shape.context_tokens,
        "vocab_size": shape.vocab_size,
        "bos_token_id": IM_START_ID,
        "eos_token_id": IM_END_ID,
        "pad_token_id": PAD_ID,
        "tie_word_embeddings": False,
        "torch_dtype": shape.dtype,
    }


def _tokenizer_config(shape: Shape) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.context_tokens,
        "bos_token": SPECIALS[IM_START_ID],
        "eos_token": SPECIALS[IM_END_ID],
        "pad_token": SPECIALS[PAD_ID],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _tokenizer(vocab_size: int) -> dict[str, object]:
    spaced = [SPACE + syllable for syllable in SYLLABLES]
    words = [head + tail for head, tail in product(spaced, SYLLABLES)]
    longer = (head + tail for head, tail in product(words, SYLLABLES))
    names = [*SPECIALS, *_byte_letters(), *SYLLABLES, *spaced, *words][:vocab_size]
    names += islice(longer, vocab_size - len(names))
    merges = [[syllable[0], syllable[1]] for syllable in SYLLABLES]
    merges += [[SPACE, syllable] for syllable in SYLLABLES]
    merges += [[word[:-2], word[-2:]] for word in names[FIRST_WORD_ID:]]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(i, text) for i, text in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": merges,
        },
    }


def _special(token_id: int, text: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": True}


def _byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte 0..255 (GPT-2's table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flexpipe.engines.emulated.checkpoint")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="toy")
    given = parser.parse_args()
    write_checkpoint(given.folder, SHAPES[given.shape])


if __name__ == "__main__":
    main()
