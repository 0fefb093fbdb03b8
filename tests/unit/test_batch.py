"""Batch and Unbatch: grouping against a plain model, and back."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import PipelineError
from asyncfeed.stacking.collate import collate
from asyncfeed.stages.batch import Batch, Group
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.steps import Work
from asyncfeed.stages.take import Take
from asyncfeed.stages.unbatch import INLINE, Unbatch, split


def run(group: Group, n: int, cuts: list[int], ranges: bool = True) -> tuple[list[list[int]], list[Any]]:
    """Push 0..n-1, cut at these places, then flush."""
    batches: list[Any] = []
    positions: list[Any] = []
    edges = [0, *sorted(cut % (n + 1) for cut in cuts), n]
    for start, stop in pairwise(edges):
        places = range(100 + start, 100 + stop)
        out = group.push(list(range(start, stop)), places if ranges else list(places))
        batches += out[0]
        positions += out[1]
    out = group.flush()
    return batches + out[0], positions + list(out[1])


class At:
    """The place of a batch."""

    epoch = 0
    position = (0, 1)

    def name(self, member: int | None = None) -> str:
        return f"item {member}"


cuts = st.lists(st.integers(0, 50), max_size=8)


@given(st.integers(0, 50), st.integers(1, 12), cuts, st.booleans(), st.booleans())
def test_a_stream_is_cut_into_lists_of_one_size(
    n: int, size: int, cuts: list[int], drop: bool, ranges: bool
) -> None:
    """However it arrives, in every epoch; the number of lists is the length that the stage announced."""
    group = Group(size, drop)
    expected = [list(range(start, min(start + size, n))) for start in range(0, n, size)]
    if drop and expected and len(expected[-1]) < size:
        expected.pop()
    for _ in range(2):
        batches, positions = run(group, n, cuts, ranges)
        assert batches == expected
        assert [list(each) for each in positions] == [[100 + item for item in batch] for batch in expected]
        assert not ranges or all(isinstance(each, range) for each in positions)
    assert Batch(size, drop).length(n) == len(expected)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 12))
def test_a_restored_group_goes_on_as_if_nothing_had_happened(before: int, after: int, size: int) -> None:
    """A state does not change with what is pushed after it was taken."""
    one, other = Group(size), Group(size)
    one.push(list(range(before)), range(before))
    state = one.state()
    expected = run(one, after, [])
    other.restore(state)
    batches, positions = run(other, after, [])
    assert batches == expected[0]
    assert list(map(list, positions)) == list(map(list, expected[1]))


def test_what_is_pushed_is_not_changed() -> None:
    """The lists belong to whoever pushed them."""
    group, items, positions = Group(4), [1, 2], [5, 6]
    group.push(items, positions)
    group.push([3], [7])
    assert group.flush() == ([[1, 2, 3]], [[5, 6, 7]])
    assert (items, positions) == ([1, 2], [5, 6])


def test_a_pad_that_follows_becomes_part_of_the_batch() -> None:
    """One pass over the samples does both; a second pad is a stage of its own."""
    batch = Batch(4).absorb(Pad(value=1))
    assert batch == Batch(4, padding=Pad(value=1))
    assert batch is not None
    assert str(batch) == "batch(4)"
    assert batch.absorb(Pad()) is None
    assert Batch(4).absorb(Take(1)) is None
    work = batch.steps()[1]
    assert isinstance(work, Work)
    assert work.fn([np.zeros(1), np.zeros(2)], At()).tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("wrong", [0, -3, 2.5, None, True])
def test_a_wrong_size_is_refused(wrong: Any) -> None:
    """Where it is written, with the value."""
    with pytest.raises(PipelineError, match=f"batch: size must be .* not {wrong}"):
        Batch(wrong)


def test_the_rows_of_a_batch_are_the_samples_again() -> None:
    """Views of the batch, in the structure of the samples."""
    samples = [{"x": np.full(3, i), "y": (i, "text")} for i in range(5)]
    batch = collate(samples, str)
    rows = split(batch)
    assert [(r["x"].tolist(), *r["y"]) for r in rows] == [([i] * 3, i, "text") for i in range(5)]
    assert all(np.shares_memory(row["x"], batch["x"]) for row in rows)
    assert [row.tolist() for row in split(np.eye(2))] == [[1, 0], [0, 1]]


def test_an_empty_batch_has_no_rows() -> None:
    """Whether it has no rows or no leaves."""
    assert split((np.zeros((0, 3)), np.zeros(0))) == []
    assert split({}) == []


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.zeros(3), np.zeros(4)), r"\[0\] has 3 rows, but \[1\] has 4; give them the same number"),
        ({"a": np.zeros(3), "b": 5}, r"\['b'\] is 5, which has no rows"),
        (np.array(5.0), r"the batch is array\(5.\), which has no rows"),
        ("text", "the batch is 'text', which has no rows"),
    ],
)
def test_what_has_no_equal_rows_is_refused(batch: Any, message: str) -> None:
    """Naming the leaf."""
    with pytest.raises(ValueError, match=message):
        split(batch)


def test_unbatch_runs_on_the_loop_only_for_few_rows() -> None:
    """A row costs the same whatever its size."""
    (work,) = Unbatch().steps()
    assert isinstance(work, Work)
    assert work.shape == "flat"
    assert work.inline is not None
    assert work.inline(np.zeros((INLINE, 10_000)))
    assert not work.inline(np.zeros(INLINE + 1))
    assert not work.inline({})


def test_a_function_of_the_list_makes_the_batch() -> None:
    """It gets the samples of one batch, in order, and what it returns goes on; also for buckets and after a load."""

    def joined(samples: list[str]) -> str:
        assert type(samples) is list
        return "+".join(samples)

    words = af.items(["a", "bb", "c", "dd", "e"])
    assert list(words.batch(2, collate=joined)) == ["a+bb", "c+dd", "e"]
    assert list(words.batch(2, drop_remainder=True, collate=joined)) == ["a+bb", "c+dd"]
    assert list(words.bucket(boundaries=[2], size=2, length_of=len, collate=joined)) == ["a+c", "bb+dd", "e"]
    assert list(af.items([{1}, object]).batch(2, collate=len)) == [2]


def test_a_function_makes_the_batch_of_what_was_loaded(tmp_path: Path) -> None:
    """Each file is decoded for it, though a plain batch would be read into."""
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full(2, number))
    train = af.files(f"{tmp_path}/*.npy").load(af.npy).prefetch(2).batch(2, collate=np.concatenate)
    assert [batch.tolist() for batch in train] == [[0, 0, 1, 1], [2, 2]]


def test_the_function_runs_on_a_thread() -> None:
    """Not on the loop, however small the samples are."""
    names = af.items(range(4)).batch(2, collate=lambda _: threading.current_thread().name)
    loop = af.items(range(1)).map(current_name)
    assert not set(names) & set(loop)


async def current_name(_item: int) -> str:
    """Return the name of the thread that runs the loop."""
    return threading.current_thread().name


def test_an_error_of_the_function_is_its_own_and_names_the_batch() -> None:
    """With the stage and the samples it was called with."""

    def fails(samples: list[int]) -> int:
        return 1 // samples[0]

    with pytest.raises(ZeroDivisionError) as caught:
        list(af.items([1, 2, 0, 3]).batch(2, collate=fails))
    assert "batch(2, collate=fails)" in str(caught.value.__notes__)
    assert "number 2" in str(caught.value.__notes__)


def test_a_wrong_function_is_refused_at_the_line() -> None:
    """As is a pad after it, which cannot look into what it made."""

    async def late(samples: list[int]) -> int:
        return len(samples)

    numbers = af.items([np.ones(1)])
    with pytest.raises(PipelineError, match="batch: collate must be a sync function of a list of samples"):
        numbers.batch(2, collate=late)
    with pytest.raises(PipelineError, match="bucket: the function must be callable"):
        numbers.bucket(boundaries=[1], size=1, collate=3)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match=r"pad: batch\(collate=...\) makes the batches.*before.*\.batch\("):
        numbers.batch(2, collate=list).pad()
    with pytest.raises(PipelineError, match=r"pad: bucket\(collate=...\) makes the batches"):
        numbers.bucket(boundaries=[1], size=1, collate=list).pad(to=3)
    assert [len(batch[0]) for batch in numbers.pad(to=3).batch(2, collate=list)] == [3]
    assert numbers.batch(2, collate=list) == numbers.batch(2, collate=list) != numbers.batch(2)
    assert str(numbers.batch(2, collate=list)).endswith(".batch(2, collate=list)")
