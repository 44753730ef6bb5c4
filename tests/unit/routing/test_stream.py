"""Cases T2 and the seam: limits, usage and stop strings do not know that plans changed."""

from pathlib import Path

import pytest

from flexpipe.routing.ledger import Accepted, MoveCause, SequenceLedger
from flexpipe.routing.stream import FinishReason, GenerationStream, Limits, Usage
from flexpipe.routing.text.stops import StopMatcher
from flexpipe.routing.text.tokenizer import TextTokenizer
from unit.routing.tiny_model import write_model_folder

EOS = 2


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder: Path = tmp_path_factory.mktemp("model")
    return TextTokenizer.load(write_model_folder(folder))


def stream(text: TextTokenizer, **limits: object) -> GenerationStream:
    defaults: dict[str, object] = {"max_tokens": 20, "stop_tokens": text.eos_ids}
    return GenerationStream(
        text.detokenizer(),
        prompt_tokens=5,
        limits=Limits(**{**defaults, **limits}),  # type: ignore[arg-type]
    )


def letters(text: TextTokenizer, word: str) -> list[int]:
    """One token a letter."""
    return [token for letter in word for token in text.encode(letter)]


def test_the_limit_does_not_start_again_after_a_move(text: TextTokenizer) -> None:
    generation = stream(text, max_tokens=20)
    generation.feed(letters(text, "abcdefgh"))
    assert generation.remaining == 12
    step = generation.feed(letters(text, "ijklmnopqrstuvwxyz"))
    assert (step.text, step.taken, step.finish) == ("ijklmnopqrst", 12, FinishReason.LENGTH)
    assert generation.usage == Usage(prompt_tokens=5, completion_tokens=20)
    assert generation.usage.total_tokens == 25


def test_a_limit_reached_exactly_at_the_seam_leaves_nothing_to_dispatch(
    text: TextTokenizer,
) -> None:
    generation = stream(text, max_tokens=3)
    step = generation.feed(letters(text, "abc"))
    assert step.finish is FinishReason.LENGTH
    assert generation.remaining == 0


def test_a_stop_string_across_the_seam_stops(text: TextTokenizer) -> None:
    generation = stream(text, stops=("END",))
    ledger = SequenceLedger("s-1", (1, 2, 3, 4, 5), "old")
    before = ledger.accept("old", 1, 0, letters(text, "the EN"))
    assert isinstance(before, Accepted)
    first = generation.feed(before.tokens)
    ledger.move("new", MoveCause.CHOSEN)
    after = ledger.accept("new", 2, 0, letters(text, "Done"))
    assert isinstance(after, Accepted)
    second = generation.feed(after.tokens)
    assert first.text + second.text == "the "
    assert (second.taken, second.finish) == (1, FinishReason.STOP)
    ledger.close(generation.usage.completion_tokens)
    assert len(ledger) == 7


def test_text_held_for_a_stop_string_is_shown_when_it_does_not_come(text: TextTokenizer) -> None:
    generation = stream(text, stops=("END",), max_tokens=4)
    assert generation.feed(letters(text, "xEN")).text == "x"
    assert generation.feed(letters(text, "d")).text == "ENd"


def test_held_text_is_shown_when_the_limit_comes_first(text: TextTokenizer) -> None:
    step = stream(text, stops=("END",), max_tokens=3).feed(letters(text, "xEN"))
    assert (step.text, step.finish) == ("xEN", FinishReason.LENGTH)


def test_held_text_is_shown_when_the_engine_ends_by_itself(text: TextTokenizer) -> None:
    generation = stream(text, stops=("END",))
    generation.feed(letters(text, "xEN"))
    step = generation.end(FinishReason.LENGTH)
    assert (step.text, step.finish) == ("EN", FinishReason.LENGTH)
    assert generation.end(FinishReason.STOP).finish is FinishReason.LENGTH


def test_an_end_of_sequence_token_stops_counts_and_shows_nothing(text: TextTokenizer) -> None:
    generation = stream(text)
    step = generation.feed([*letters(text, "hi"), EOS, *letters(text, "more")])
    assert (step.text, step.taken, step.finish) == ("hi", 3, FinishReason.STOP)
    assert generation.usage.completion_tokens == 3


def test_an_end_of_sequence_token_at_the_limit_is_a_stop(text: TextTokenizer) -> None:
    assert stream(text, max_tokens=2).feed([*letters(text, "a"), EOS]).finish is FinishReason.STOP


def test_ignoring_end_of_sequence_runs_to_the_limit(text: TextTokenizer) -> None:
    generation = stream(text, max_tokens=4, ignore_eos=True)
    step = generation.feed([EOS, *letters(text, "a"), EOS, *letters(text, "b")])
    assert (step.text, step.finish) == ("ab", FinishReason.LENGTH)


def test_nothing_stops_before_the_minimum(text: TextTokenizer) -> None:
    generation = stream(text, min_tokens=4, stops=("ab",))
    step = generation.feed([*letters(text, "ab"), EOS])
    assert (step.text, step.finish) == ("ab", None)
    assert generation.min_remaining == 1
    step = generation.feed(letters(text, "xabc"))
    assert (step.text, step.finish) == ("x", FinishReason.STOP)


def test_a_half_character_waits_for_the_next_plan(text: TextTokenizer) -> None:
    smile = text.vocabulary.tokenizer.encode("🦊", add_special_tokens=False).ids
    assert len(smile) > 1
    generation = stream(text)
    assert generation.feed(smile[:-1]).text == ""
    assert generation.feed(smile[-1:]).text == "🦊"


def test_held_text_goes_before_a_half_character_at_the_end(text: TextTokenizer) -> None:
    smile = text.vocabulary.tokenizer.encode("🦊", add_special_tokens=False).ids
    step = stream(text, stops=("END",), max_tokens=4).feed([*letters(text, "xEN"), smile[0]])
    assert step.text == "xEN\ufffd"


def test_a_half_character_at_the_end_is_shown_as_one(text: TextTokenizer) -> None:
    smile = text.vocabulary.tokenizer.encode("🦊", add_special_tokens=False).ids
    assert stream(text, max_tokens=1).feed(smile[:1]).text == "\ufffd"


def test_of_two_stop_strings_the_one_that_completes_first_wins() -> None:
    step = StopMatcher(["abcd", "bc"]).feed("xabcd")
    assert (step.shown, step.matched) == ("xa", "bc")


def test_of_two_that_complete_together_the_longer_wins() -> None:
    step = StopMatcher(["c", "abc"]).feed("xabc")
    assert (step.shown, step.matched) == ("x", "abc")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
