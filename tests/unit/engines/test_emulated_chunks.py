"""Chunks of a stream are written piece by piece, and read as if each had been written whole."""

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from flexpipe.engines.emulated.oracle import Oracle, TokenChain
from flexpipe.engines.emulated.sequences import Finish, Limits, Sequence
from flexpipe.engines.emulated.wire import OutputChunks, output_body

ORACLE = Oracle(vocab_size=4096, first_id=460, eos_id=2)


def a_sequence() -> Sequence:
    return Sequence(
        rid="r-1",
        prompt=[1, 2, 3],
        limits=Limits(64, 0, frozenset(), ignore_eos=True),
        priority=0,
        chain=TokenChain(ORACLE, [1, 2, 3]),
        arrived_s=0.0,
        changed=asyncio.Event(),
    )


@given(st.lists(st.lists(st.integers(0, 4095), max_size=4), max_size=8))
def test_every_chunk_says_what_the_whole_answer_would(pieces: list[list[int]]) -> None:
    sequence = a_sequence()
    chunks = OutputChunks(sequence)
    for piece in pieces:
        sequence.output += piece
        assert json.loads(chunks.next()) == output_body(sequence)
    sequence.finish = Finish.by_length(len(sequence.output))
    assert json.loads(chunks.next()) == output_body(sequence)
