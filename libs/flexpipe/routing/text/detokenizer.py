"""Turns token ids into text while they come, a delta a token.

Called by `stream`. The law: all deltas and the flush together equal the tokenizer's decoding of
all ids at once. A delta never ends in half a character: bytes that may still become one wait for
the next token. The state follows from the ids alone, so a hand-over does not touch it, and feeding
the ids again rebuilds it. The work a token is constant.

Two ways to the same law. Byte-level vocabularies (GPT-2 and its heirs: Llama 3, Qwen, SmolLM)
spell each token as bytes, so the standard library's incremental UTF-8 decoder is all it takes.
Others (SentencePiece and the like) are decoded in a short window behind the last settled token.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from tokenizers import Tokenizer, decoders

_REPLACEMENT = "\ufffd"

# A window that will not settle (a model babbling broken bytes) is passed on after this many tokens:
# a character has at most four bytes, so nothing real waits that long.
_WINDOW_TOKENS_MAX = 64


class Detokenizer(Protocol):
    """Incremental text of one sequence."""

    def feed(self, token: int) -> str:
        """The text that this token settles; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What still waits, incomplete bytes as U+FFFD. Call once, at the end."""
        ...


class _Spelling(Enum):
    BYTES = auto()
    BYTE_FALLBACK = auto()
    WORDS = auto()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer seen from its ids: how they are spelt and which are never shown."""

    tokenizer: Tokenizer
    silent: frozenset[int]
    spelling: _Spelling

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        added = tokenizer.get_added_tokens_decoder()
        silent = frozenset(token for token, entry in added.items() if entry.special)
        return cls(tokenizer, silent, _spelling(tokenizer))

    def decode(self, ids: Sequence[int]) -> str:
        """All of `ids` at once, special tokens left out."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def detokenizer(self) -> Detokenizer:
        """A fresh detokenizer."""
        if self.spelling is _Spelling.BYTES:
            return _ByteDetokenizer(self)
        return _WindowDetokenizer(self)


def _spelling(tokenizer: Tokenizer) -> _Spelling:
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return _Spelling.BYTES
    if "ByteFallback" in repr(tokenizer.decoder):
        return _Spelling.BYTE_FALLBACK
    return _Spelling.WORDS


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the rest from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    letters.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return letters


_BYTE_OF_LETTER = _byte_alphabet()


class _ByteDetokenizer:
    """For byte-level vocabularies."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        return self._utf8.decode(self._bytes_of(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)

    def _bytes_of(self, token: int) -> bytes:
        if token in self._vocabulary.silent:
            return b""
        piece: str | None = self._vocabulary.tokenizer.id_to_token(token)
        if piece is None:
            return b""
        try:
            return bytes(_BYTE_OF_LETTER[letter] for letter in piece)
        except KeyError:
            return piece.encode()  # an added token is spelt as it reads


class _WindowDetokenizer:
    """For every other vocabulary.

    `_window` holds the tokens since the settled one before last; the first `_settled` of them are
    already shown and give the rest its context (a leading space is only dropped at the start).
    Tokens that show nothing never enter, so that no run of them pushes that context out.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._window: list[int] = []
        self._settled = 0

    def feed(self, token: int) -> str:
        piece = self._vocabulary.tokenizer.id_to_token(token)
        if piece is None or token in self._vocabulary.silent:
            return ""
        self._window.append(token)
        delta = self._pending()
        waiting = len(self._window) - self._settled
        if not self._may_change(delta, piece) or waiting > _WINDOW_TOKENS_MAX:
            self._window = self._window[self._settled :]
            self._settled = len(self._window)
            return delta
        return ""

    def flush(self) -> str:
        delta = self._pending()
        self._settled = len(self._window)
        return delta

    def _pending(self) -> str:
        shown = self._vocabulary.decode(self._window[: self._settled])
        return self._vocabulary.decode(self._window)[len(shown) :]

    def _may_change(self, delta: str, piece: str) -> bool:
        """A run of byte tokens is one text or all garbage: it settles when the run ends."""
        if not delta or delta.endswith(_REPLACEMENT):
            return True
        in_byte_run = piece.startswith("<0x") and len(piece) == len("<0xFF>")
        return self._vocabulary.spelling is _Spelling.BYTE_FALLBACK and in_byte_run
