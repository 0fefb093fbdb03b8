"""Shuffle: an exact permutation of what can be reached by number, and a buffer for streams."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.errors import PipelineError
from asyncfeed.randomness.permutation import Permutation
from asyncfeed.stages.shuffle import BLOCK, BufferShuffle, Permuted, Shuffle


class Numbers:
    """An upstream whose item at place p of epoch e is `(e, p)`."""

    on_thread = None

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        return [(epoch, place) for place in places]

    def key(self, epoch: int, place: int) -> str:
        return f"{epoch}:{place}"


def run(algorithm: BufferShuffle, n: int, cuts: list[int], first: int = 0) -> tuple[list[int], list[int]]:
    """Push 0..n-1, cut at these places, then flush; return the items and their positions."""
    items, positions = [], []
    edges = [0, *sorted(cut % (n + 1) for cut in cuts), n]
    for start, stop in pairwise(edges):
        out = algorithm.push(list(range(start, stop)), range(first + start, first + stop))
        items += out[0]
        positions += out[1]
    out = algorithm.flush()
    return items + list(out[0]), positions + list(out[1])


@given(st.integers(1, 3 * BLOCK), st.integers(0, 5), st.data())
def test_any_places_hold_what_the_permutation_says(n: int, epoch: int, data: st.DataObject) -> None:
    """Ranges across blocks, scattered places and keys all agree with the permutation."""
    shuffled = Permuted(Numbers(n), seed=5)
    order = Permutation(n, 5, epoch).numbers(np.arange(n, dtype=np.uint64))
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    assert shuffled.pick(epoch, range(start, stop)) == [(epoch, place) for place in order[start:stop]]
    scattered = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    assert shuffled.pick(epoch, scattered) == [(epoch, order[place]) for place in scattered]
    assert shuffled.pick(epoch, range(0, n, 7)) == [(epoch, place) for place in order[::7]]
    assert shuffled.key(epoch, start) == f"{epoch}:{order[start]}"
    assert len(shuffled) == n


@pytest.mark.parametrize("epoch", [0, 1])
def test_no_places_are_no_items(epoch: int) -> None:
    """An empty range is answered, also at the edge of a block and for no items at all."""
    assert Permuted(Numbers(0), 1).pick(epoch, range(0)) == []
    assert Permuted(Numbers(9000), 1).pick(epoch, range(BLOCK, BLOCK)) == []
    assert Permuted(Numbers(9000), 1).pick(epoch, []) == []


def test_a_shuffled_source_is_freed_without_the_collector() -> None:
    """The caches hold no reference back to what owns them."""
    gc.disable()
    try:
        shuffled = Permuted(Numbers(10), 1)
        shuffled.pick(0, range(10))
        gone = weakref.ref(shuffled)
        del shuffled
        assert gone() is None
    finally:
        gc.enable()


def test_with_a_buffer_it_works_on_a_stream() -> None:
    """The user asked for a buffer, so the source is not permuted."""
    assert Shuffle(buffer=3).index(Numbers(5)) is None
    assert isinstance(Shuffle().index(Numbers(5)), Permuted)
    assert isinstance(Shuffle(buffer=3).steps()[0], BufferShuffle)
    assert Shuffle(seed=1).length(7) == 7
    assert str(Shuffle(seed=7)) == "shuffle(seed=7)"


def test_a_stream_without_a_buffer_is_refused() -> None:
    """The message says both ways out."""
    with pytest.raises(
        PipelineError, match=r"needs a buffer: .shuffle\(buffer=10_000\); or put it next to the source"
    ):
        Shuffle().steps()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ({"buffer": 0}, "buffer must be at least 1, not 0"),
    ],
)
def test_a_wrong_description_is_refused(wrong: dict[str, Any], message: str) -> None:
    """Where it is written, with the value."""
    with pytest.raises(PipelineError, match=message):
        Shuffle(**wrong)


@given(st.integers(0, 60), st.integers(1, 40), st.lists(st.integers(0), max_size=6), st.integers(0, 3))
def test_the_order_does_not_depend_on_how_the_stream_is_cut(n: int, size: int, cuts: list[int], seed: int) -> None:
    """Every item comes out once with its own position, in one order for all cuts, in every epoch."""
    whole, cut = BufferShuffle(size, seed), BufferShuffle(size, seed)
    for _ in range(2):
        items, positions = run(whole, n, [], first=100)
        assert sorted(items) == list(range(n))
        assert positions == [100 + item for item in items]
        assert run(cut, n, cuts, first=100) == (items, positions)


@given(st.integers(0, 60), st.integers(1, 40), st.integers(0, 60), st.integers(0, 2))
def test_a_restored_buffer_goes_on_as_if_nothing_had_happened(n: int, size: int, at: int, epochs: int) -> None:
    """From any place of any epoch."""
    one, other = BufferShuffle(size, 9), BufferShuffle(size, 9)
    for _ in range(epochs):
        run(one, n, [])
    one.push(list(range(at)), range(at))
    other.restore(one.state())
    for _ in range(2):
        assert run(other, n, []) == run(one, n, [])


def test_no_item_comes_earlier_than_the_buffer_allows() -> None:
    """With a buffer of b, the item at place p is one of the first p + b."""
    items, _ = run(BufferShuffle(10, 0), 1000, [])
    assert all(item < place + 10 for place, item in enumerate(items))
    assert items != sorted(items)


def test_a_buffer_of_one_keeps_the_order() -> None:
    """There is nothing to choose from."""
    assert run(BufferShuffle(1, 0), 50, [])[0] == list(range(50))


def test_each_epoch_and_seed_has_its_own_order() -> None:
    """The epoch counts on at each flush."""
    first = BufferShuffle(20, 0)
    orders = [tuple(run(first, 20, [])[0]) for _ in range(5)]
    assert len({*orders, tuple(run(BufferShuffle(20, 1), 20, [])[0])}) == 6


def test_the_orders_of_a_buffer_never_change() -> None:
    """A resume under another version of numpy or asyncfeed must find the same order."""
    assert run(BufferShuffle(4, 7), 12, [])[0] == [2, 3, 5, 0, 1, 6, 7, 9, 11, 8, 4, 10]


def test_a_buffer_as_large_as_the_data_shuffles_uniformly() -> None:
    """Each of the 24 orders of four items comes up equally often, by a chi-square test."""
    algorithm = BufferShuffle(4, 3)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(4800):
        order = tuple(run(algorithm, 4, [])[0])
        counts[order] = counts.get(order, 0) + 1
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.7  # 99.9 %, 23 degrees of freedom
