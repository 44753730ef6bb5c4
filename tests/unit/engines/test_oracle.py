"""Any lost, doubled or reordered token changes what follows."""

from collections import Counter

import pytest

from flexpipe.engines.emulated.oracle import Oracle, TokenChain

ORACLE = Oracle(vocab_size=4096, first_id=460, eos_id=2)
PROMPT = [11, 12, 13, 14]


def test_the_rule_is_fixed_for_ever() -> None:
    assert ORACLE.continuation([1, 2, 3], 4) == [3475, 1390, 2744, 3764]


def test_a_chain_says_what_the_rule_says() -> None:
    run = ORACLE.continuation(PROMPT, 50)
    for length in range(50):
        assert ORACLE.next_token(PROMPT + run[:length]) == run[length]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda run: run[:3] + run[4:], id="lost"),
        pytest.param(lambda run: run[:3] + run[2:], id="doubled"),
        pytest.param(lambda run: [run[1], run[0], *run[2:]], id="reordered"),
        pytest.param(lambda run: [run[0] + 1, *run[1:]], id="changed"),
        pytest.param(lambda run: run[1:], id="first lost"),
    ],
)
def test_damage_shows_at_the_next_token(damage: object) -> None:
    assert callable(damage)
    run = ORACLE.continuation(PROMPT, 12)
    after = ORACLE.next_token(PROMPT + run)
    damaged = damage(run)
    assert ORACLE.next_token(PROMPT + damaged) != after
    assert ORACLE.continuation(PROMPT + damaged, 5) != ORACLE.continuation(PROMPT + run, 5)


def test_where_the_prompt_ends_does_not_matter() -> None:
    run = ORACLE.continuation(PROMPT, 20)
    assert ORACLE.continuation(PROMPT + run[:7], 13) == run[7:]


def test_tokens_are_words_and_spread_over_them() -> None:
    run = ORACLE.continuation(PROMPT, 4000)
    assert all(460 <= token < 4096 for token in run)
    assert max(Counter(run).values()) < 12


def test_without_a_mean_length_nothing_ends_by_itself() -> None:
    assert 2 not in ORACLE.continuation(PROMPT, 5000)


def test_the_mean_length_is_kept() -> None:
    rule = Oracle(vocab_size=4096, first_id=460, eos_id=2, mean_output_tokens=50)
    lengths = []
    for seed in range(400):
        length = next(i for i, token in enumerate(TokenChain(rule, [seed])) if token == rule.eos_id)
        lengths.append(length + 1)
    assert 43 < sum(lengths) / len(lengths) < 57


def test_an_end_held_back_leaves_an_ordinary_token() -> None:
    rule = Oracle(vocab_size=4096, first_id=460, eos_id=2, mean_output_tokens=1)
    chain = TokenChain(rule, PROMPT)
    assert chain.peek() == 2
    assert chain.peek_without_end() >= 460


def test_a_range_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        Oracle(vocab_size=100, first_id=100, eos_id=2)
