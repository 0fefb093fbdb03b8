"""The end of an epoch: which epochs end with it, and how stages further on count it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.epoch_end import END_OF_STREAM, EpochEnd, epoch_end
from asyncfeed.stages.steps import Chunk

LEVELS = st.integers(0, 9)


@given(LEVELS, LEVELS)
def test_an_end_ends_its_level_and_all_below(depth: int, level: int) -> None:
    assert epoch_end(depth).ends(level) == (level <= depth)


@given(LEVELS)
def test_the_end_of_the_stream_ends_every_level_and_is_larger_than_any_other(level: int) -> None:
    assert END_OF_STREAM.ends(level)
    assert END_OF_STREAM.is_end_of_stream
    assert not epoch_end(level).is_end_of_stream
    assert max(epoch_end(level), END_OF_STREAM, epoch_end(0)) is END_OF_STREAM


@given(LEVELS, LEVELS, LEVELS)
def test_counted_from_a_level_the_same_epochs_end(depth: int, start: int, level: int) -> None:
    """None of them does if it is of a level below."""
    counted = epoch_end(depth).counted_from(start)
    assert (counted is not None and counted.ends(level)) == epoch_end(depth).ends(start + level)
    assert END_OF_STREAM.counted_from(start) is END_OF_STREAM


def test_an_end_is_a_value_that_is_made_once() -> None:
    assert epoch_end(2) is epoch_end(2)
    assert epoch_end(2) == EpochEnd(2) != epoch_end(3)
    assert {epoch_end(2), EpochEnd(2)} == {EpochEnd(2)}


def test_a_chunk_says_what_ends_after_its_items() -> None:
    within, epoch, last = Chunk([1], range(1)), Chunk([1], range(1), epoch_end(1)), Chunk([], (), END_OF_STREAM)
    assert [each.ends for each in (within, epoch, last)] == [False, True, True]
    assert [each.ends_stream for each in (within, epoch, last)] == [False, False, True]
    assert [[each.ends_epoch(level) for level in (1, 2)] for each in (within, epoch, last)] == [
        [False, False],
        [True, False],
        [True, True],
    ]


def test_of_a_chunk_that_is_split_the_rest_has_the_end() -> None:
    chunk = Chunk([1, 2, 3], range(3), epoch_end(0))
    rest = chunk.split(1)
    assert (chunk.items, chunk.boundary) == ([1], None)
    assert (rest.items, rest.boundary) == ([2, 3], epoch_end(0))
