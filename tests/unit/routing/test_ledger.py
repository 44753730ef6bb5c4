import pytest

from flexpipe.routing.ledger import (
    Accepted,
    Dropped,
    DropReason,
    LedgerConflict,
    LedgerEntry,
    LedgerGap,
    MoveCause,
    Moved,
    MoveRefused,
    Segment,
    SequenceLedger,
    broken_laws,
)


def ledger(*, moves_max: int = 2) -> SequenceLedger:
    """Three tokens from plan `old` under epoch 1."""
    book = SequenceLedger("s-1", (101, 102), "old", moves_max=moves_max)
    assert book.accept("old", 1, 0, [10, 11, 12]) == Accepted(0, (10, 11, 12))
    return book


def test_a_continuation_starts_at_its_own_zero() -> None:
    book = ledger()
    assert book.move("new", MoveCause.CHOSEN) == Moved("new", 2)
    assert book.continuation() == (101, 102, 10, 11, 12)
    assert book.accept("new", 2, 0, [13]) == Accepted(3, (13,))
    assert book.entry().segments == (Segment(1, "old", 0, 3), Segment(2, "new", 3, 4))


def test_a_stale_epoch_token_is_dropped() -> None:
    book = ledger()
    book.move("new", MoveCause.CHOSEN)
    assert book.accept("old", 1, 3, [99, 98]) == Dropped(DropReason.STALE_EPOCH, 2)
    assert len(book) == 3


def test_a_token_of_another_plan_under_the_same_epoch_is_dropped() -> None:
    assert ledger().accept("new", 1, 3, [99]) == Dropped(DropReason.OTHER_PLAN, 1)


def test_a_late_answer_of_the_first_attempt_on_one_plan_is_dropped() -> None:
    book = ledger()
    book.move("old", MoveCause.LOST_PLAN)
    assert book.accept("old", 1, 3, [99]) == Dropped(DropReason.STALE_EPOCH, 1)
    assert book.accept("old", 2, 0, [13]) == Accepted(3, (13,))


def test_a_repeated_chunk_is_dropped_and_a_cumulative_one_gives_only_its_news() -> None:
    book = ledger()
    assert book.accept("old", 1, 0, [10, 11, 12]) == Dropped(DropReason.REPEATED, 3)
    assert book.accept("old", 1, 1, [11]) == Dropped(DropReason.REPEATED, 1)
    assert book.accept("old", 1, 0, [10, 11, 12, 13]) == Accepted(3, (13,))
    assert book.entry().segments == (Segment(1, "old", 0, 4),)


def test_an_empty_chunk_brings_nothing() -> None:
    assert ledger().accept("old", 1, 3, []) == Dropped(DropReason.REPEATED, 0)


def test_a_gap_is_an_error_with_its_size() -> None:
    with pytest.raises(LedgerGap, match=r"from 5, but only 3 are held: 2 missing"):
        ledger().accept("old", 1, 5, [15])


def test_an_index_before_the_epochs_first_token_is_an_error() -> None:
    book = ledger()
    book.move("new", MoveCause.CHOSEN)
    with pytest.raises(LedgerGap, match="its first is 0"):
        book.accept("new", 2, -1, [12, 13])


def test_a_repeat_with_another_value_is_an_error() -> None:
    with pytest.raises(LedgerConflict, match=r"\[1, 3\) again with other values"):
        ledger().accept("old", 1, 1, [11, 77, 13])


def test_a_third_move_is_refused_when_the_limit_is_two() -> None:
    book = ledger(moves_max=2)
    assert isinstance(book.move("b", MoveCause.CHOSEN), Moved)
    assert isinstance(book.move("c", MoveCause.CHOSEN), Moved)
    refused = book.move("d", MoveCause.CHOSEN)
    assert refused == MoveRefused("sequence s-1 moved 2 times, its limit is 2")
    assert (book.plan, book.epoch) == ("c", 3)


@pytest.mark.parametrize("cause", [MoveCause.LOST_PLAN, MoveCause.UNDO, MoveCause.DEADLINE])
def test_a_forced_move_does_not_count_and_is_never_refused(cause: MoveCause) -> None:
    book = ledger(moves_max=0)
    assert book.move("b", cause) == Moved("b", 2)
    assert book.entry().moves == 0


def test_a_requeue_before_the_first_token_does_not_count() -> None:
    book = SequenceLedger("s-1", (1,), "old", moves_max=0)
    assert book.move("new", MoveCause.CHOSEN) == Moved("new", 2)
    assert book.accept("new", 2, 0, [10]) == Accepted(0, (10,))
    assert broken_laws(book.entry()) == ()


def test_a_closed_sequence_takes_nothing_and_goes_nowhere() -> None:
    book = ledger()
    book.close(2)
    assert book.entry().tokens == (10, 11)
    assert book.entry().segments == (Segment(1, "old", 0, 2),)
    assert book.accept("old", 1, 2, [12]) == Dropped(DropReason.CLOSED, 1)
    assert isinstance(book.move("new", MoveCause.LOST_PLAN), MoveRefused)


def test_a_sequence_cannot_be_closed_past_its_end() -> None:
    with pytest.raises(ValueError, match="holds 3, not 4"):
        ledger().close(4)


@pytest.mark.parametrize(
    ("segments", "breach"),
    [
        ((Segment(1, "a", 1, 4),), "leaves out 1 tokens"),
        ((Segment(1, "a", 0, 2), Segment(2, "b", 1, 4)), "repeats 1 tokens"),
        ((Segment(1, "a", 0, 2), Segment(2, "b", 3, 4)), "leaves out 1 tokens"),
        ((Segment(2, "a", 0, 2), Segment(2, "b", 2, 4)), "epoch 2 follows epoch 2"),
        ((Segment(2, "a", 0, 2), Segment(1, "b", 2, 4)), "epoch 1 follows epoch 2"),
        ((Segment(1, "a", 0, 4), Segment(2, "b", 4, 4)), "is empty"),
        ((Segment(1, "a", 0, 3),), "ranges end at 3, tokens at 4"),
        ((Segment(4, "a", 0, 4),), "later than its own 3"),
        ((), "ranges end at 0, tokens at 4"),
    ],
)
def test_each_breach_of_the_law_is_named(segments: tuple[Segment, ...], breach: str) -> None:
    entry = LedgerEntry("s-1", (1,), (10, 11, 12, 13), segments, plan="b", epoch=3, moves=1)
    faults = broken_laws(entry)
    assert any(breach in fault for fault in faults), faults
