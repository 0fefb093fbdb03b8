"""The number of an epoch: which pass of each `repeat` it is, whatever was read ahead or cut short."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.epoch_end import END_OF_STREAM
from tests.engine.inside import ENDLESS, EpochCounter


def numbers(repeats: list[int], run: int = 0) -> list[int]:
    epochs = EpochCounter(repeats, run)
    found = [epochs.number]
    while epochs.end() != END_OF_STREAM:
        found.append(epochs.number)
    return found


@given(st.lists(st.integers(1, 4), max_size=4), st.integers(0, 3))
def test_finite_repeats_count_up_by_one(repeats: list[int], run: int) -> None:
    total = prod(repeats)
    assert numbers(repeats, run) == list(range(run * total, (run + 1) * total))


@given(st.lists(st.integers(1, 4) | st.none(), min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=30))
def test_a_stage_further_on_counts_as_the_source_does(repeats: list[int | None], cuts: list[int]) -> None:
    """Both have the same number after each end of an epoch, also where passes are cut short at some level."""
    source, stage = EpochCounter(repeats), EpochCounter(repeats)
    for cut in cuts:
        boundary = source.end(min(cut, len(repeats) - 1))
        if boundary.is_end_of_stream:
            return
        stage.go_on(boundary.depth)
        assert stage.number == source.number


def test_a_pass_that_was_cut_short_changes_no_later_number() -> None:
    """Five passes of the inner repeat or one: the next pass of the outer one begins with the same number."""
    for passes in range(5):
        epochs = EpochCounter([5, 3])
        for _ in range(passes):
            epochs.end()
        assert epochs.end(skipping=1).depth == 1
        assert epochs.number == 5


def test_an_endless_repeat_has_numbers_of_its_own_in_each_pass_around_it() -> None:
    epochs = EpochCounter([None, 3])
    for _ in range(7):
        assert epochs.end().depth == 0
    assert epochs.number == 7
    epochs.end(skipping=1)
    assert epochs.number == ENDLESS


def test_a_run_has_the_numbers_of_one_more_repeat_around_it() -> None:
    assert EpochCounter([2, 3], run=4).number == 24
    assert EpochCounter([None], run=4).number == 4 * ENDLESS


def test_a_later_run_of_what_never_ends_starts_at_that_pass() -> None:
    assert EpochCounter([None], 4, level=0).number == 4
    assert EpochCounter([3, None], 4, level=1).number == 12
