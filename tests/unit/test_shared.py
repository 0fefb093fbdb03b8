"""Memory that two processes share: what is put in comes out, and owns its memory."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.engine.inside import (
    KEEP,
    Arena,
    Blocks,
    BlockWriter,
    Failed,
    RemoteTraceback,
    blocks_for_arrays_of,
)


class Pair:
    """Both ends, as two processes have them; with blocks for large arrays, or without."""

    def __init__(self, *, blocks: bool = False) -> None:
        self.writer = Arena.new()
        self.reader = Arena(os.dup(self.writer.fileno()))
        self.blocks = Blocks()
        self.block_writer = BlockWriter(self._announce)
        self.made = 0
        """Number of blocks that were made."""
        if blocks:
            self.reader.blocks, self.writer.block_writer = self.blocks, self.block_writer

    def _announce(self, fd: int) -> bool:
        self.made += 1
        return self.blocks.add([os.dup(fd)])

    def through(self, values: list[Any]) -> list[Any]:
        self.block_writer.begin(self.blocks.orders())
        self.writer.begin()
        for value in values:
            self.writer.put(value)
        return [self.reader.get() for _ in range(self.reader.open()[0])]

    @property
    def size(self) -> int:
        return os.fstat(self.writer.fileno()).st_size

    def close(self) -> None:
        self.writer.block_writer = self.block_writer = BlockWriter(self._announce)
        self.blocks.clear()
        self.writer.close()
        self.reader.close()


@pytest.fixture(params=[False, True], ids=["copies", "blocks"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(blocks=request.param)
    yield pair
    pair.close()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and one.dtype.hasobject:
        return one.dtype == other.dtype and one.shape == other.shape and one.tolist() == other.tolist()
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


ARRAYS = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), hnp.array_dtypes(allow_subarrays=False)),
    hnp.array_shapes(max_dims=3, max_side=9),
)
LARGE = st.builds(
    lambda count, order, step: np.asarray(np.arange(count * 8.0).reshape(8, -1), order=order)[::step],
    st.integers(1, 3000),
    st.sampled_from("CF"),
    st.sampled_from([1, 2, -1]),
)
LEAVES = st.one_of(st.none(), st.integers(), st.text(), st.binary(max_size=20000), ARRAYS, LARGE)
TREES = st.recursive(
    LEAVES,
    lambda tree: st.one_of(st.lists(tree, max_size=3), st.dictionaries(st.text(), tree, max_size=3)),
    max_leaves=4,
)


@pytest.mark.parametrize("blocks", [False, True])
@settings(max_examples=80, deadline=None)
@given(groups=st.lists(st.lists(TREES, max_size=4), max_size=3))
def test_what_is_put_in_comes_out_equal(blocks: bool, groups: list[list[Any]]) -> None:
    """Group after group, whatever the values, in the order they were put in."""
    pair = Pair(blocks=blocks)
    with blocks_for_arrays_of(4096):
        for group in groups:
            # Not the group itself: numpy's own pickle gives times the byte order of the machine.
            assert same(pair.through(group), pickle.loads(pickle.dumps(group, 5)))
    pair.close()


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("count", [10, 100_000])
def test_what_comes_out_is_writable_and_stays(pair: Pair, count: int, step: int) -> None:
    """The arena is written anew while the reader holds what it read."""
    (first,) = pair.through([np.arange(count)[::step]])
    first += 1
    (second,) = pair.through([np.zeros(count)])
    assert (first == np.arange(count)[::step] + 1).all()
    assert not second.any()


def test_an_array_that_cannot_be_written_stays_so(pair: Pair) -> None:
    """As on a thread, where it would be the same array."""
    array = np.zeros(10_000)
    array.flags.writeable = False
    assert not pair.through([array])[0].flags.writeable


def test_large_arrays_start_where_tensorflow_takes_them(pair: Pair) -> None:
    """At a multiple of 64 bytes; see `aligned_empty`."""
    for array in pair.through([np.zeros(5000, np.int8), (np.zeros(9999), "x")])[1]:
        assert isinstance(array, str) or array.ctypes.data % 64 == 0


def test_an_array_that_occurs_twice_is_one(pair: Pair) -> None:
    """As pickle has it; also where it is copied to close its gaps."""
    for array in (np.zeros(10_000), np.zeros((100, 200))[:, ::2]):
        ((one, other),) = pair.through([(array, array)])
        assert one is other


def test_a_value_that_cannot_be_put_in_is_not_there(pair: Pair) -> None:
    """It raises, and those around it come out."""
    pair.writer.begin()
    pair.writer.put(np.ones(10_000))
    with pytest.raises(TypeError, match="lock"):
        pair.writer.put([np.zeros(10_000), threading.Lock()])
    pair.writer.put("after")
    assert pair.reader.open()[0] == 2
    assert pair.reader.get().sum() == 10_000
    assert pair.reader.get() == "after"


class Refuses:
    def __reduce__(self):
        return float, ("refused",)


def test_a_value_that_cannot_be_made_again_raises_for_itself_alone(pair: Pair) -> None:
    """The next one comes out."""
    pair.writer.begin()
    for value in (1, [np.zeros(9000), Refuses()], 3):
        pair.writer.put(value)
    pair.reader.open()
    assert pair.reader.get() == 1
    with pytest.raises(ValueError, match="refused"):
        pair.reader.get()
    assert pair.reader.get() == 3


def test_it_grows_and_shrinks_with_what_is_written() -> None:
    """One large item does not keep its memory for the whole run."""
    pair = Pair()
    large = np.arange(KEEP // 4)
    assert same(pair.through([large, large + 1]), [large, large + 1])
    assert pair.size > large.nbytes * 2
    for _ in range(3):
        assert pair.through(["small"]) == ["small"]
    assert pair.size == KEEP
    assert same(pair.through([large]), [large])
    pair.close()


def test_closing_leaves_nothing_open() -> None:
    """Neither a descriptor nor a map, though what was read is still held; closing again does nothing."""

    def maps() -> int:
        with open("/proc/self/maps") as file:
            return file.read().count("memfd:asyncfeed")

    before = maps()
    pair = Pair()
    held = pair.through([np.ones(100_000)])
    pair.close()
    pair.close()
    assert maps() == before
    assert held[0].sum() == 100_000


def test_an_exception_comes_with_its_traceback_as_text() -> None:
    """Without the frame that caught it."""

    def deep() -> None:
        raise KeyError("here")

    try:
        deep()
    except KeyError as error:
        error.add_note("noted")
        failed = Failed(error)
    got = failed.unpack()
    assert type(got) is KeyError
    assert got.args == ("here",)
    assert got.__notes__ == ["noted"]
    assert isinstance(got.__cause__, RemoteTraceback)
    assert "in deep" in str(got.__cause__)
    assert "test_an_exception" not in str(got.__cause__)
