"""A model folder small enough to train in a test: byte-level BPE, a chat template, three specials."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CORPUS = (
    "The quick brown fox jumps over the lazy dog. The dog was not amused, the fox was.",
    "Größe, façade, naïve, Ærøskøbing, Łódź — and “quotes” … done.",
    "日本語のテキスト 中文文本 한국어 텍스트 العربية עברית हिन्दी",
    "🙂🎉👩‍👩‍👧‍👦 🇩🇪 🏴‍☠️ e\u0301 a\u0308 \u200d",
    "def f(x):\n\treturn x * 2  # doubled\n\n",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' -}}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}\n"
)


def byte_level_tokenizer() -> Tokenizer:
    """About 400 tokens, so that most characters outside ASCII are several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=400,
        special_tokens=[*SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return tokenizer


def wrapped_byte_level_tokenizer() -> Tokenizer:
    """The same, its decoder one link of a chain: nothing says any more that tokens are bytes."""
    tokenizer = byte_level_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """SentencePiece-like: words with a leading mark, unknown characters as byte tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁fox", "he", "l", "o", "▁x", ".", ",", "é", "日"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: place for place, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def write_model_folder(folder: Path, **tokenizer_config: object) -> Path:
    """Everything `TextTokenizer.load` reads. Keywords replace entries of tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    named = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        **tokenizer_config,
    }
    write_json(folder / "tokenizer_config.json", named)
    write_json(folder / "config.json", {"eos_token_id": 2, "max_position_embeddings": 512})
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0], "temperature": 0.5})
    return folder


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
