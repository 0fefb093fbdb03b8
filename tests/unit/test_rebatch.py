"""Rebatch: batches of another size, against unbatch and batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.stages.rebatch import Regroup


def batches(sizes: list[int]) -> list[Any]:
    """Return batches of these sizes, whose rows are numbered over all of them."""
    starts = np.cumsum([0, *sizes])
    return [
        {"x": np.arange(start, start + size), "y": (np.arange(start, start + size) * np.ones((3, 1))).T, "z": None}
        for start, size in zip(starts, sizes, strict=False)
    ]


def plain(pipeline: af.Pipeline[Any]) -> list[Any]:
    return [{name: None if leaf is None else leaf.tolist() for name, leaf in batch.items()} for batch in pipeline]


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 12), st.booleans(), st.integers(1, 2))
def test_it_is_unbatch_and_batch(sizes: list[int], size: int, drop: bool, epochs: int) -> None:
    source = af.items(batches(sizes))
    mine = source.rebatch(size, drop_remainder=drop).repeat(epochs)
    assert plain(mine) == plain(source.unbatch().batch(size, drop_remainder=drop).repeat(epochs))


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 12), st.integers(0, 12))
def test_its_state_continues_in_another_object(sizes: list[int], size: int, cut: int) -> None:
    items = [(count, number) for number, count in enumerate(sizes)]
    one, first, second = Regroup(size), Regroup(size), Regroup(size)
    expected = one.push(items, range(len(items)))[0] + one.flush()[0]
    got = first.push(items[:cut], range(len(items))[:cut])[0]
    second.restore(first.state())
    assert second.held == first.held
    got += second.push(items[cut:], range(len(items))[cut:])[0] + second.flush()[0]
    assert got == expected


def test_a_batch_inside_of_another_is_a_view() -> None:
    whole = np.arange(8)
    assert all(batch.base is whole for batch in af.items([whole]).rebatch(4))


def test_text_and_ragged_dtypes_are_joined() -> None:
    parts = [np.array(["a", "bb"]), np.array(["cccc"])]
    assert [batch.tolist() for batch in af.items(parts).rebatch(3)] == [["a", "bb", "cccc"]]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([5], "number 0 is 5, which has no rows"),
        ([{"a": np.arange(2), "b": np.arange(3)}], r"have \[2, 3\] rows"),
        ([np.ones((2, 3)), np.ones((2, 4))], "rows of different shape"),
        ([np.arange(2), np.arange(2.0)], "samples of different type"),
    ],
)
def test_batches_that_do_not_fit_together_are_named(parts: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(af.items(parts).rebatch(4))
