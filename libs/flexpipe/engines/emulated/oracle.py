"""The tokens of the emulated engine: each is a hash of all token ids before it.

The engine and every test that judges it ask the same functions. Nothing but the ids counts: not the
layout, the batch, the temperature or where the prompt ended, so a sequence continued elsewhere from
prompt + generated goes on exactly, and one id lost, doubled or swapped changes all that follow.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

# Log-probabilities of the emulated model: what it would pick, and anything else.
CERTAIN = -0.0625
UNLIKELY = -12.0


@dataclass(frozen=True, slots=True)
class Oracle:
    """The rule: which ids are emitted, and how often a sequence ends by itself.

    Ordinary tokens lie in ``range(first_id, vocab_size)``. ``mean_output_tokens`` is the mean of the
    geometric length after which ``eos_id`` comes; None: never.
    """

    vocab_size: int
    first_id: int
    eos_id: int
    mean_output_tokens: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first_id < self.vocab_size:
            raise ValueError(
                f"first_id {self.first_id} is outside a vocabulary of {self.vocab_size}"
            )

    def next_token(self, tokens: Sequence[int]) -> int:
        """The token after ``tokens`` (prompt + output so far), EOS included."""
        return TokenChain(self, tokens).peek()

    def continuation(self, tokens: Sequence[int], count: int) -> list[int]:
        """The ``count`` tokens that follow ``tokens``, as if EOS were ignored when it comes."""
        return list(islice(TokenChain(self, tokens), count))


class TokenChain:
    """The running hash of one sequence: O(1) a token, whatever its length."""

    def __init__(self, oracle: Oracle, tokens: Iterable[int]) -> None:
        self._oracle = oracle
        self._hash = blake2b(_packed(tokens), digest_size=16)

    def __iter__(self) -> "TokenChain":
        return self

    def __next__(self) -> int:
        token = self.peek()
        self.push(token)
        return token

    def peek(self) -> int:
        """The next token, EOS where the rule ends the sequence here."""
        token, ends = self._draw()
        return self._oracle.eos_id if ends else token

    def peek_without_end(self) -> int:
        """The next token while ``min_new_tokens`` still forbids EOS."""
        return self._draw()[0]

    def push(self, token: int) -> None:
        self._hash.update(_packed((token,)))

    def _draw(self) -> tuple[int, bool]:
        digest = self._hash.copy().digest()
        rule = self._oracle
        span = rule.vocab_size - rule.first_id
        token = rule.first_id + int.from_bytes(digest[:8], "little") % span
        mean = rule.mean_output_tokens
        ends = mean is not None and int.from_bytes(digest[8:], "little") * mean < 2.0**64
        return token, ends


def _packed(tokens: Iterable[int]) -> bytes:
    packed = array("q", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
