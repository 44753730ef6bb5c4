"""The emulated model folder and the engine's own text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from flexpipe.engines.emulated.checkpoint import (
    FIRST_WORD_ID,
    IM_END_ID,
    IM_START_ID,
    SHAPES,
    Shape,
    write_checkpoint,
)
from flexpipe.engines.emulated.oracle import Oracle
from flexpipe.engines.emulated.text import TextCodec, TextStream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("model")
    write_checkpoint(target)
    return target


@pytest.fixture(scope="module")
def codec(folder: Path) -> TextCodec:
    return TextCodec(folder)


@given(text=st.text(max_size=200))
def test_any_text_survives(text: str, codec: TextCodec) -> None:
    assert codec.tokenizer.decode(codec.encode(text), skip_special_tokens=False) == text


def test_what_the_oracle_says_is_printable_and_encodes_back(codec: TextCodec) -> None:
    said = Oracle(4096, FIRST_WORD_ID, IM_END_ID).continuation([5], 500)
    text = codec.tokenizer.decode(said)
    assert text.isprintable()
    assert len(text.split()) == 500
    assert codec.encode(text) == said


def test_a_large_vocabulary_speaks_longer_words_that_encode_back_too(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SHAPES["7b"])
    large = TextCodec(tmp_path)
    said = Oracle(32_000, FIRST_WORD_ID, IM_END_ID).continuation([5], 500)
    text = large.tokenizer.decode(said)
    assert len({len(word) for word in text.split()}) == 2
    assert large.encode(text) == said


def test_words_come_whole_from_an_incremental_detokenizer(codec: TextCodec) -> None:
    said = Oracle(4096, FIRST_WORD_ID, IM_END_ID).continuation([5], 50)
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(codec.tokenizer, token) for token in said]
    assert all(pieces)
    assert "".join(piece or "" for piece in pieces) == codec.tokenizer.decode(said)


def test_a_conversation_is_chatml(codec: TextCodec) -> None:
    ids = codec.chat_prompt([{"role": "user", "content": "Hi"}])
    text = codec.tokenizer.decode(ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert ids.count(IM_START_ID) == 2
    assert ids.count(IM_END_ID) == 1


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_is_whole(shape: Shape, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shape)
    assert (
        Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == shape.vocab_size
    )
    assert not shape.hidden % shape.heads
    assert not shape.heads % shape.kv_heads


def test_a_vocabulary_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocab_size"):
        write_checkpoint(
            tmp_path, Shape(layers=1, heads=1, kv_heads=1, hidden=8, intermediate=8, vocab_size=100)
        )


def test_a_stop_string_over_several_tokens_ends_the_text(codec: TextCodec) -> None:
    said = Oracle(4096, FIRST_WORD_ID, IM_END_ID).continuation([5], 12)
    text = codec.tokenizer.decode(said)
    stop = text[len(text) // 2 - 4 : len(text) // 2 + 4]
    stream = TextStream(codec, [stop])
    pieces = [stream.push([token]) for token in said]
    assert "".join(pieces) == text[: text.index(stop)]
    assert stream.matched == stop


def test_held_back_text_comes_at_the_end(codec: TextCodec) -> None:
    said = Oracle(4096, FIRST_WORD_ID, IM_END_ID).continuation([5], 12)
    stream = TextStream(codec, ["never said"])
    text = "".join(stream.push([token]) for token in said) + stream.flush()
    assert text == codec.tokenizer.decode(said)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        TextCodec(tmp_path)
