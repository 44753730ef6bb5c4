"""Laws of the text half: what a client reads depends on the tokens alone, never on how they came."""

import itertools
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from flexpipe.routing.ledger import (
    Accepted,
    Dropped,
    MoveCause,
    Moved,
    SequenceLedger,
    broken_laws,
)
from flexpipe.routing.stream import FinishReason, GenerationStream, Limits
from flexpipe.routing.text.detokenizer import Vocabulary
from flexpipe.routing.text.stops import StopMatcher
from unit.routing.tiny_model import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    wrapped_byte_level_tokenizer,
)

# The first example trains a tokenizer; how long one takes is no law.
UNHURRIED = settings(deadline=None)

TOKENIZERS = {
    "byte level": byte_level_tokenizer,
    "wrapped byte level": wrapped_byte_level_tokenizer,
    "byte fallback": byte_fallback_tokenizer,
}


@cache
def tokenizer(kind: str) -> Tokenizer:
    return TOKENIZERS[kind]()


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary.of(tokenizer(kind))


kinds = st.sampled_from(sorted(TOKENIZERS))
texts = st.text(
    st.one_of(
        st.characters(codec="utf-8"), st.sampled_from("the fox🙂🎉👩‍👩‍👧‍👦🇩🇪日本語é\u0301\ufffd\n ")
    ),
    max_size=40,
)


def any_ids(kind: str, max_size: int) -> st.SearchStrategy[list[int]]:
    """Ids of all sorts, one past the vocabulary too; half of them words, which come last."""
    size = tokenizer(kind).get_vocab_size()
    words = st.integers(size - 12, size - 1)
    return st.lists(st.one_of(words, st.integers(0, size)), max_size=max_size)


def detokenized(kind: str, ids: list[int]) -> list[str]:
    detokenizer = vocabulary(kind).detokenizer()
    return [*(detokenizer.feed(token) for token in ids), detokenizer.flush()]


@UNHURRIED
@given(texts)
def test_deltas_of_encoded_text_add_up_to_the_text(text: str) -> None:
    ids = tokenizer("byte level").encode(text, add_special_tokens=False).ids
    deltas = detokenized("byte level", ids)
    assert "".join(deltas) == vocabulary("byte level").decode(ids)
    assert deltas[-1] == ""


@UNHURRIED
@given(kinds, st.data())
def test_deltas_of_any_ids_add_up_to_the_whole_decoding(kind: str, data: st.DataObject) -> None:
    ids = data.draw(any_ids(kind, max_size=60))
    assert "".join(detokenized(kind, ids)) == vocabulary(kind).decode(ids)


@UNHURRIED
@given(texts.filter(lambda text: "\ufffd" not in text))
def test_no_delta_of_whole_text_shows_a_broken_character(text: str) -> None:
    ids = tokenizer("byte level").encode(text, add_special_tokens=False).ids
    assert not any("\ufffd" in delta for delta in detokenized("byte level", ids))


@UNHURRIED
@given(kinds, st.data())
def test_text_already_shown_does_not_depend_on_what_follows(kind: str, data: st.DataObject) -> None:
    ids = data.draw(any_ids(kind, max_size=30))
    cut = data.draw(st.integers(0, len(ids)))
    assert detokenized(kind, ids)[:cut] == detokenized(kind, ids[:cut])[:cut]


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_endless_broken_bytes_do_not_pile_up(kind: str) -> None:
    byte = "<0xFF>" if kind == "byte fallback" else "ÿ"
    token = tokenizer(kind).token_to_id(byte)
    assert token is not None
    deltas = detokenized(kind, [token] * 500)
    assert max(map(len, deltas)) <= 65
    assert "".join(deltas) == "\ufffd" * 500


small = st.text("abcE", max_size=24)
stop_lists = st.lists(st.text("abcE", min_size=1, max_size=5), min_size=1, max_size=4)


def cut_up(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def stopped(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        step = matcher.feed(piece)
        shown += step.shown
        if step.matched is not None:
            return shown, step.matched
    return shown + matcher.flush(), None


@UNHURRIED
@given(small, stop_lists, st.lists(st.integers(0, 100), max_size=6))
def test_stops_are_found_alike_however_text_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    whole = stopped([text], stops)
    assert stopped(cut_up(text, cuts), stops) == whole
    assert stopped(list(text), stops) == whole


@UNHURRIED
@given(small, stop_lists)
def test_no_shown_text_holds_a_stop_string(text: str, stops: list[str]) -> None:
    shown, matched = stopped(list(text), stops)
    assert not any(stop in shown for stop in stops)
    assert (matched is None) == (shown == text)


@UNHURRIED
@given(st.data())
def test_a_stream_does_not_depend_on_how_its_tokens_were_batched(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer("byte level").get_vocab_size() - 1)))
    limits = Limits(
        max_tokens=data.draw(st.integers(1, 30)),
        min_tokens=data.draw(st.integers(0, 5)),
        stops=tuple(data.draw(st.lists(st.text("theo ", min_size=1, max_size=3), max_size=3))),
        stop_tokens=frozenset({2}),
        ignore_eos=data.draw(st.booleans()),
    )
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5))
    edges = [0, *sorted(cuts), len(ids)]
    batches = [ids[start:end] for start, end in itertools.pairwise(edges)]
    assert streamed(batches, limits) == streamed([[token] for token in ids], limits)


def streamed(batches: list[list[int]], limits: Limits) -> tuple[str, int, FinishReason | None, int]:
    stream = GenerationStream(
        vocabulary("byte level").detokenizer(), prompt_tokens=7, limits=limits
    )
    steps = [stream.feed(batch) for batch in batches]
    assert sum(step.taken for step in steps) == stream.usage.completion_tokens
    assert stream.usage.completion_tokens <= limits.max_tokens
    text = "".join(step.text for step in steps)
    return text, stream.usage.completion_tokens, stream.finish, stream.remaining


class Engines:
    """Engines that each continue the true sequence from where they were started, and chatter."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.truth = [token * 7 % 101 for token in range(200)]
        self.ledger = SequenceLedger("s-1", (1, 2, 3), "plan-0")
        self.started = [("plan-0", 1, 0)]  # plan, epoch, base
        self.emitted: list[int] = []

    def chatter(self) -> None:
        """Any engine, dead or alive, sends any part of what it may have made."""
        plan, epoch, base = self.data.draw(st.sampled_from(self.started))
        newest = (plan, epoch, base) == self.started[-1]
        ahead = len(self.ledger) - base if newest else self.data.draw(st.integers(0, 12))
        first = self.data.draw(st.integers(0, ahead))
        count = self.data.draw(st.integers(0, 8))
        chunk = self.truth[base + first : base + first + count]
        answer = self.ledger.accept(plan, epoch, first, chunk)
        if not newest:
            assert isinstance(answer, Dropped)
        if isinstance(answer, Accepted):
            assert answer.start == len(self.emitted)
            self.emitted.extend(answer.tokens)

    def move(self) -> None:
        cause = self.data.draw(st.sampled_from(MoveCause))
        plan = f"plan-{self.data.draw(st.integers(0, 2))}"
        moved = self.ledger.move(plan, cause)
        if isinstance(moved, Moved):
            self.started.append((moved.plan, moved.epoch, len(self.ledger)))


@UNHURRIED
@given(st.data())
def test_the_ledger_law_holds_under_stale_doubled_and_late_chunks(data: st.DataObject) -> None:
    engines = Engines(data)
    for move in data.draw(st.lists(st.sampled_from((False, False, False, True)), max_size=40)):
        engines.move() if move else engines.chatter()
        assert broken_laws(engines.ledger.entry()) == ()
    entry = engines.ledger.entry()
    assert list(entry.tokens) == engines.emitted == engines.truth[: len(engines.emitted)]
    assert engines.ledger.continuation() == (1, 2, 3, *engines.emitted)
    kept = data.draw(st.integers(0, len(entry.tokens)))
    engines.ledger.close(kept)
    closed = engines.ledger.entry()
    assert broken_laws(closed) == ()
    assert closed.tokens == entry.tokens[:kept]
