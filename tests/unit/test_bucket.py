"""Bucket: batches by length against a plain model."""

from __future__ import annotations

from inspect import iscoroutinefunction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.errors import PipelineError
from asyncfeed.stages.bucket import Bucket, GroupByLength
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.steps import Work
from asyncfeed.stages.take import Skip


class At:
    """The place of a batch."""

    epoch = 0
    position = (0, 1)

    def name(self, member: int | None = None) -> str:
        return f"item {member}"


BOUNDARIES, SIZES = (3, 6), (4, 2, 1)


def model(lengths: list[int], drop: bool) -> list[list[int]]:
    """Return the batches of places that these lengths make, in plain Python."""
    held: list[list[int]] = [[], [], []]
    batches = []
    for place, length in enumerate(lengths):
        bucket = sum(length >= boundary for boundary in BOUNDARIES)
        held[bucket].append(place)
        if len(held[bucket]) == SIZES[bucket]:
            batches.append(held[bucket])
            held[bucket] = []
    return batches if drop else batches + [each for each in held if each]


def run(group: GroupByLength, lengths: list[int], cuts: list[int]) -> tuple[list[Any], list[Any]]:
    """Push items of these lengths, each its own place, cut at these places; then flush."""
    batches: list[Any] = []
    positions: list[Any] = []
    n = len(lengths)
    edges = [0, *sorted(cut % (n + 1) for cut in cuts), n]
    for start, stop in pairwise(edges):
        items = [(lengths[place], place) for place in range(start, stop)]
        out = group.push(items, range(100 + start, 100 + stop))
        batches += out[0]
        positions += out[1]
    out = group.flush()
    return batches + out[0], positions + list(out[1])


lengths = st.lists(st.integers(0, 9), max_size=40)


@given(lengths, st.lists(st.integers(0, 40), max_size=5), st.booleans())
def test_items_are_batched_with_those_of_their_length(lengths: list[int], cuts: list[int], drop: bool) -> None:
    """However the stream is cut, in every epoch; and each item keeps its position."""
    group = GroupByLength(BOUNDARIES, SIZES, drop)
    for _ in range(2):
        batches, positions = run(group, lengths, cuts)
        assert batches == model(lengths, drop)
        assert [list(each) for each in positions] == [[100 + item for item in batch] for batch in batches]


@given(lengths, lengths)
def test_restored_buckets_go_on_as_if_nothing_had_happened(before: list[int], after: list[int]) -> None:
    """A state does not change with what is pushed after it was taken."""
    one, other = GroupByLength(BOUNDARIES, SIZES), GroupByLength(BOUNDARIES, SIZES)
    one.push([(length, -1) for length in before], range(len(before)))
    state = one.state()
    expected = run(one, after, [])
    other.restore(state)
    assert run(other, after, []) == expected


def test_the_length_is_axis_0_of_the_first_array() -> None:
    """Measured on the loop: it only looks at a shape."""
    measure, _, _ = Bucket([3], 2).steps()
    assert isinstance(measure, Work)
    sample = (5, np.zeros(()), np.zeros((4, 2)), np.zeros(9))
    assert measure.fn(sample) == (4, sample)
    assert measure.inline is not None
    assert measure.inline(sample)


def test_a_sample_without_an_array_needs_a_function() -> None:
    """The message shows it."""
    measure, _, _ = Bucket([3], 2).steps()
    assert isinstance(measure, Work)
    with pytest.raises(ValueError, match=r"no array in this sample to measure; say how: .*length_of=len"):
        measure.fn("text")


def test_a_function_of_the_users_runs_on_a_thread() -> None:
    """Never on the loop, however fast it may be."""
    measure, _, _ = Bucket([3], 2, len).steps()
    assert isinstance(measure, Work)
    assert measure.kind == "thread"
    assert measure.inline is None
    assert measure.fn("text") == (4, "text")


def test_an_async_function_is_awaited() -> None:
    """Also one that is an object with an async call."""

    async def length(sample: str) -> int:
        return len(sample)

    class Length:
        async def __call__(self, sample: str) -> np.int64:
            return np.int64(len(sample))

    for each in (length, Length()):
        measure, _, _ = Bucket([3], 2, each).steps()
        assert isinstance(measure, Work)
        assert measure.kind == "async"
        assert iscoroutinefunction(type(measure.fn).__call__)
        with pytest.raises(StopIteration) as stop:
            measure.fn("text").send(None)
        assert stop.value.value == (4, "text")


def test_a_length_that_is_no_number_is_refused() -> None:
    """With what it was."""
    measure, _, _ = Bucket([3], 2, lambda _: 2.5).steps()
    assert isinstance(measure, Work)
    with pytest.raises(ValueError, match=r"length_of must return a whole number, not 2\.5"):
        measure.fn("text")


def test_a_pad_that_follows_becomes_part_of_the_bucket() -> None:
    """As it does for a batch."""
    bucket = Bucket([3], 2).absorb(Pad(value=1))
    assert bucket == Bucket([3], 2, padding=Pad(value=1))
    assert bucket is not None
    assert bucket.absorb(Pad()) is None
    assert Bucket([3], 2).absorb(Skip(1)) is None
    _, group, work = bucket.steps()
    assert isinstance(group, GroupByLength)
    assert isinstance(work, Work)
    assert work.fn([np.zeros(1), np.zeros(2)], At()).tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"boundaries": 3, "size": 2}, r"boundaries must be a list of lengths, \[50, 100\] say, not 3"),
        ({"boundaries": [], "size": 2}, r"must be increasing lengths, at least one, not \[\]"),
        ({"boundaries": [5, 5], "size": 2}, r"must be increasing lengths, at least one, not \[5, 5\]"),
        ({"boundaries": [0], "size": 2}, "each boundary must be at least 1, not 0"),
        ({"boundaries": [5], "size": 0}, "size must be at least 1, not 0"),
        (
            {"boundaries": [5], "size": [1, 2, 3]},
            "1 boundaries make 2 buckets, but size has 3 entries; give one",
        ),
        ({"boundaries": [5], "size": [1, "2"]}, "size must be a whole number, not '2'"),
        ({"boundaries": [5], "size": 2, "length_of": 3}, "length_of must be a function of a sample, not 3"),
    ],
)
def test_a_wrong_description_is_refused(wrong: dict[str, Any], message: str) -> None:
    """Where it is written, with the value."""
    with pytest.raises(PipelineError, match=message):
        Bucket(**wrong)


def test_it_is_written_as_it_was_called_and_has_no_known_length() -> None:
    """How many batches there will be depends on the items."""
    assert str(Bucket([3, 6], [4, 2, 1], len)) == "bucket(boundaries=(3, 6), size=(4, 2, 1), length_of=len)"
    assert Bucket([3], 2).length(10) is None
    assert hash(Bucket([3], [1, 2])) == hash(Bucket((3,), (1, 2)))
