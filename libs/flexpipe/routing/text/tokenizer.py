"""A model's tokenizer and chat template, read from its folder.

Called by the router once a model, at start; encoding is then pure. Gives the ids that SGLang
would have computed from the same request, so that the router may dispatch ids instead of text.
Never downloads anything and never imports transformers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2
from pydantic import JsonValue
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from flexpipe.kernel.errors import FlexPipeError
from flexpipe.routing.text.chat_template import ChatTemplate, ChatTemplateRefused, Message
from flexpipe.routing.text.detokenizer import Detokenizer, Vocabulary

_SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

# tokenizer_class values for which SGLang honours `add_bos_token` (absent counts as true); with
# every other class the post-processor in tokenizer.json alone decides.
_CLASSES_WITH_BOS_FLAG = frozenset(
    {
        "LlamaTokenizer",
        "LlamaTokenizerFast",
        "CodeLlamaTokenizer",
        "CodeLlamaTokenizerFast",
        "GemmaTokenizer",
        "GemmaTokenizerFast",
        "CohereTokenizerFast",
    }
)

# SGLang stops at this token too, wherever a tokenizer declares it.
_END_OF_MESSAGE = "<|eom_id|>"

Config = Mapping[str, JsonValue]


class ModelFolderError(FlexPipeError):
    """A model folder cannot be used; one line naming the file and the fix."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request that says nothing is sampled with: the model's own, else OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """One model's text: encode, decode, and the ids with a meaning.

    `eos_ids` end a generation (config.json, generation_config.json and the tokenizer together).
    `context_tokens` is the model's own limit, None where config.json names none; an engine may be
    started with less. `chat` is None for a model without a chat template.
    """

    vocabulary: Vocabulary
    chat: ChatTemplate | None
    folder: Path
    eos_ids: frozenset[int]
    bos_id: int | None
    vocab_size: int
    context_tokens: int | None
    sampling_defaults: SamplingDefaults

    @classmethod
    def load(cls, folder: Path) -> "TextTokenizer":
        """Read tokenizer.json and its companions. Raises `ModelFolderError`."""
        tokenizer = _load_tokenizer(folder)
        config = _read_config(folder / "config.json")
        generation = _read_config(folder / "generation_config.json")
        tokenizer_config = _read_config(folder / "tokenizer_config.json")
        special = _special_tokens(folder, tokenizer_config)
        _apply_bos_flag(tokenizer, tokenizer_config, special)
        return cls(
            vocabulary=Vocabulary.of(tokenizer),
            chat=_load_template(folder, tokenizer_config, special),
            folder=folder,
            eos_ids=_eos_ids(tokenizer, config, generation, special),
            bos_id=_token_id(tokenizer, special.get("bos_token")),
            vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
            context_tokens=_context_tokens(config),
            sampling_defaults=_sampling_defaults(generation),
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the special tokens that the tokenizer adds by itself."""
        ids: list[int] = self.vocabulary.tokenizer.encode(text, add_special_tokens=True).ids
        return ids

    def encode_chat(self, messages: Sequence[Message], *, now: datetime) -> list[int]:
        """Ids of a conversation up to and including the generation prompt.

        The template writes the special tokens, so none is added (no second BOS). `now` only
        matters to templates that print the date. Raises `ChatTemplateRefused`.
        """
        if self.chat is None:
            raise ChatTemplateRefused(
                "messages: this model has no chat template; use /v1/completions"
            )
        text = self.chat.render(messages, now=now)
        ids: list[int] = self.vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The whole text of `ids`, special tokens left out: what a stream must add up to."""
        return self.vocabulary.decode(ids)

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental detokenizer for one sequence."""
        return self.vocabulary.detokenizer()


def _load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFolderError(
            f"{path} is missing: put the model's tokenizer.json there or name a folder that has one"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises the bare class
        reason = " ".join(str(error).split())
        raise ModelFolderError(
            f"{path} is no tokenizer file ({reason}): copy it from the model again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_config(path: Path) -> dict[str, JsonValue]:
    """The object in a JSON file, or an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFolderError(
            f"{path} is not JSON ({error}): copy it from the model again"
        ) from error
    if not isinstance(content, dict):
        raise ModelFolderError(f"{path} holds no JSON object: copy it from the model again")
    return content


def _special_tokens(folder: Path, tokenizer_config: Config) -> dict[str, str]:
    """Named special tokens; special_tokens_map.json only where nothing newer speaks."""
    named = dict(tokenizer_config)
    if "added_tokens_decoder" not in tokenizer_config:
        named.update(_read_config(folder / "special_tokens_map.json"))
    special = {}
    for name in _SPECIAL_NAMES:
        token = named.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            special[name] = token
    return special


def _apply_bos_flag(
    tokenizer: Tokenizer, tokenizer_config: Config, special: Mapping[str, str]
) -> None:
    if tokenizer_config.get("tokenizer_class") not in _CLASSES_WITH_BOS_FLAG:
        return
    wanted = tokenizer_config.get("add_bos_token")
    bos = special.get("bos_token")
    bos_id = _token_id(tokenizer, bos)
    if wanted is False or bos is None or bos_id is None:
        return
    tokenizer.post_processor = TemplateProcessing(
        single=f"{bos}:0 $A:0",
        pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
        special_tokens=[(bos, bos_id)],
    )


def _load_template(
    folder: Path, tokenizer_config: Config, special: Mapping[str, str]
) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        source: JsonValue = path.read_text(encoding="utf-8")
    else:
        path = folder / "tokenizer_config.json"
        source = _default_template(tokenizer_config.get("chat_template"))
    if not isinstance(source, str):
        return None
    try:
        return ChatTemplate.compile(source, special)
    except jinja2.TemplateSyntaxError as error:
        raise ModelFolderError(
            f"{path}: the chat template does not compile (line {error.lineno}: {error.message}): "
            "copy it from the model again"
        ) from error


def _default_template(declared: JsonValue) -> JsonValue:
    """`chat_template` is a template, or a list of named ones of which `default` is meant."""
    if not isinstance(declared, list):
        return declared
    for entry in declared:
        if isinstance(entry, dict) and entry.get("name") == "default":
            return entry.get("template")
    return None


def _eos_ids(
    tokenizer: Tokenizer, config: Config, generation: Config, special: Mapping[str, str]
) -> frozenset[int]:
    by_name = (special.get("eos_token"), _END_OF_MESSAGE)
    named = {_token_id(tokenizer, token) for token in by_name} - {None}
    listed = {*_ids(config.get("eos_token_id")), *_ids(generation.get("eos_token_id"))}
    return frozenset(token for token in named | listed if token is not None)


def _ids(declared: JsonValue) -> list[int]:
    several = declared if isinstance(declared, list) else [declared]
    return [token for token in several if isinstance(token, int)]


def _token_id(tokenizer: Tokenizer, token: str | None) -> int | None:
    found: int | None = None if token is None else tokenizer.token_to_id(token)
    return found


def _context_tokens(config: Config) -> int | None:
    text_config = config.get("text_config")
    place = text_config if isinstance(text_config, dict) else config
    limit = place.get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def _sampling_defaults(generation: Config) -> SamplingDefaults:
    numbers = {
        name: value
        for name in ("temperature", "top_p", "min_p")
        if isinstance(value := generation.get(name), int | float)
    }
    top_k = generation.get("top_k")
    return SamplingDefaults(**numbers, top_k=top_k if isinstance(top_k, int) else -1)
