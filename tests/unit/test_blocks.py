"""Blocks of shared memory: what shows one is never changed by anyone else, and nothing is left of them.

Both sides are in this process here. `tests/engine/test_processes_blocks.py` has them in two.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.inside import (
    KEPT_BYTES,
    BlockPool,
    blocks_bounded,
    blocks_for_arrays_of,
    fork_under_way,
    forks_wait,
    mappings,
    no_blocks_here,
)
from tests.unit.test_pool import WAYS, start
from tests.unit.test_shared import Pair, same

BYTES = 1 << 17


def maps() -> list[tuple[int, int]]:
    """Return where the files of worker processes are mapped."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:asyncfeed" in line]
    return [(int(low, 16), int(high, 16)) for low, high in (line.split()[0].split("-") for line in lines)]


def in_a_block(array: np.ndarray) -> bool:
    return any(low <= start(array) < high for low, high in maps())


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    gc.collect()
    before = maps(), files(), mappings()
    pair = Pair(blocks=True)
    with blocks_bounded():
        yield pair
    end(pair)
    gc.collect()
    assert (maps(), files(), mappings()) == before


def end(pair: Pair) -> None:
    """End the run and the worker."""
    rest(pair)
    pair.close()


def rest(pair: Pair) -> None:
    """End the run, and keep the worker for the next."""
    pair.block_writer.rest(pair.blocks.rest())


def marked(number: int, size: int = BYTES) -> np.ndarray:
    return np.full(size // 8, number, np.int64)


# -- what a result is


def test_an_array_is_shown_where_it_was_written(pair: Pair) -> None:
    """It is writable, aligned and of the same size; a small one is a copy."""
    large, small = pair.through([marked(1), marked(2, 1024)])
    assert in_a_block(large)
    assert not in_a_block(small)
    assert start(large) % 64 == 0
    assert (type(large), large.flags.writeable, large.flags.c_contiguous) == (np.ndarray, True, True)
    large += 1
    assert (large == 2).all()
    assert (small == 2).all()


def test_an_array_that_was_made_in_a_block_is_not_copied(pair: Pair) -> None:
    """What a function reads into such an array is what the parent shows."""
    pair.block_writer.begin(pair.blocks.orders())
    array = BlockPool(pair.block_writer).empty((64, 256), np.dtype("i8"))
    array[:] = 7
    pair.writer.begin()
    pair.writer.put({"x": array, "y": "small"})
    array[:] = 8  # after it was sent, to see whether it was copied
    pair.reader.open()
    got = pair.reader.get()
    assert same(got, {"x": np.full((64, 256), 8), "y": "small"})
    assert mappings() == 2  # one block, on both sides


def test_two_views_of_one_array_are_two_arrays(pair: Pair) -> None:
    """As without blocks: a consumer that writes to one does not change the other."""
    pair.block_writer.begin(pair.blocks.orders())
    for array in (marked(1), BlockPool(pair.block_writer).empty((BYTES // 8,), np.dtype("i8"))):
        array[:] = 1
        ((one, other),) = pair.through([(array, array[:])])
        one += 1
        assert (other == 1).all()


def test_arrays_that_no_block_can_hold_come_as_ever(pair: Pair) -> None:
    """Objects, small arrays, and arrays without elements."""
    pool = BlockPool(pair.block_writer)
    pair.block_writer.begin(pair.blocks.orders())
    arrays = [pool.empty(shape, np.dtype(kind)) for shape, kind in (((BYTES,), "O"), ((9,), "f4"), ((0, 9), "f4"))]
    assert mappings() == 0
    assert [array.shape for array in arrays] == [(BYTES,), (9,), (0, 9)]


# -- used again


def test_a_block_is_used_again_when_its_last_view_is_gone(pair: Pair) -> None:
    """In the same memory on both sides, so no page is new."""
    (array,) = pair.through([marked(1)])
    part, before = array[5:], start(array)
    del array
    (other,) = pair.through([marked(2)])
    assert start(other) != before
    del part
    (again,) = pair.through([marked(3)])
    assert start(again) == before
    assert pair.made == 2
    assert (again == 3).all()
    assert (other == 2).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_block_is_not_used_again_while_anything_shows_it(way: str, pair: Pair) -> None:
    """Whatever the consumer makes of the array, also in another library."""
    (array,) = pair.through([np.full(BYTES // 4, 3, "f4")])
    before = start(array)
    view = WAYS[way](array)
    del array
    gc.collect()
    assert before not in [start(each) for each in pair.through([marked(2)] * 3)]
    del view
    gc.collect()
    assert before in [start(each) for each in pair.through([marked(2)] * 4)]
    assert pair.made == 4


def test_a_block_comes_back_from_a_garbage_collection_on_any_thread(pair: Pair) -> None:
    """And waits for no lock, though a fork has it."""
    (array,) = pair.through([marked(1)])
    before = start(array)
    cycle: list[Any] = [array]
    cycle.append(cycle)
    del array, cycle
    with forks_wait():
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    assert start(*pair.through([marked(2)])) == before
    assert pair.made == 1


def test_a_value_that_cannot_be_sent_leaves_its_blocks_free(pair: Pair) -> None:
    """Neither what was copied nor what was made for it is lost."""
    pair.block_writer.begin(pair.blocks.orders())
    made = BlockPool(pair.block_writer).empty((BYTES,), np.dtype("u1"))
    for value in ([marked(1), made, Refuses()], [made, threading.Lock()]):
        with pytest.raises(TypeError):
            pair.writer.put(value)
    del made, value
    pair.block_writer.end_call()
    for number in range(5):
        assert same(pair.through([marked(number), marked(number)]), [marked(number)] * 2)
    assert pair.made == 2


def test_a_value_for_which_there_is_no_memory_leaves_its_blocks_free(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block of its first array was written already."""

    def fails(*_: Any) -> None:
        raise OSError(12, "out of memory")

    before = start(*pair.through([marked(1)]))
    pair.block_writer.begin(pair.blocks.orders())
    made = BlockPool(pair.block_writer).empty((BYTES,), np.dtype("u1"))
    pair.writer.begin()
    for array in (marked(1), made):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="out of memory"):
            patched.setattr(os, "ftruncate", fails)
            pair.writer.put([array, [marked(number, 60_000) for number in range(40)]])
    del made, array
    pair.block_writer.end_call()
    assert before in [start(each) for each in pair.through([marked(2)] * 2)]
    assert pair.made == 2


class Refuses:
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def test_a_block_is_never_written_again_if_the_function_has_kept_its_array(pair: Pair) -> None:
    """Whether the array was sent or not."""
    pool = BlockPool(pair.block_writer)
    kept = []
    for sent in (True, False):
        pair.block_writer.begin(pair.blocks.orders())
        array = pool.empty((BYTES // 8,), np.dtype("i8"))
        array[:] = 5
        kept.append(array[3:])
        pair.writer.begin()
        if sent:
            pair.writer.put(array)
            pair.reader.open()
            assert (pair.reader.get() == 5).all()
        del array
        pair.block_writer.end_call()
    for number in range(9):
        pair.through([marked(number)] * 3)
    rest(pair)
    assert all((view == 5).all() for view in kept)


# -- bounded


def test_a_consumer_that_keeps_all_gets_copies_in_the_end(pair: Pair) -> None:
    """A worker has a number of bytes in blocks; nobody waits for one."""
    with blocks_bounded(nbytes=4 * BYTES):
        held = [array for number in range(20) for array in pair.through([marked(number)])]
        assert mappings() == 8  # on both sides
        assert [in_a_block(array) for array in held] == [True] * 4 + [False] * 16
        assert same(held, [marked(number) for number in range(20)])
        del held[:2]
        held += pair.through([marked(1), marked(2), marked(3)])
        assert [in_a_block(array) for array in held[-3:]] == [True, True, False]


@pytest.mark.parametrize("few", [0, 3])
def test_a_worker_has_a_few_blocks_of_any_size(pair: Pair, few: int) -> None:
    with blocks_bounded(nbytes=BYTES // 2, few=few):
        held = pair.through([marked(number) for number in range(5)])
    assert sum(map(in_a_block, held)) == few


def test_blocks_of_a_size_that_nobody_needs_make_room(pair: Pair) -> None:
    """Sizes change in the middle of a run, to larger ones and back."""
    with blocks_bounded(nbytes=4 * BYTES):
        for size in (BYTES, 4 * BYTES, BYTES // 2, 2 * BYTES):
            for number in range(9):
                (got,) = pair.through([marked(number, size)])
                assert same(got, marked(number, size))
                last = in_a_block(got)
                del got
            assert last
        assert mappings() <= 8


@pytest.mark.parametrize("why", ["the parent maps no more", "no descriptor came", "no file", "the parent is gone"])
def test_without_a_block_results_are_copied(why: str, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(24, "too many open files")

    add, most = pair.blocks.add, 1000
    if why == "no descriptor came":
        monkeypatch.setattr(pair.blocks, "add", lambda fds: [os.close(fd) for fd in fds] and add([]))
    elif why == "the parent is gone":
        monkeypatch.setattr(pair.blocks, "add", lambda fds: [os.close(fd) for fd in fds] and fails())
    elif why == "no file":
        monkeypatch.setattr(os, "memfd_create", fails)
    else:
        monkeypatch.setattr(pair.blocks, "add", lambda fds: blocked(partial(add, fds)))
    with blocks_bounded(most=most):
        for number in range(3):
            (got,) = pair.through([marked(number)])
            assert same(got, marked(number))
            assert not in_a_block(got)
        monkeypatch.undo()
        (got,) = pair.through([marked(5)])
        assert in_a_block(got)
        assert same(got, marked(5))


def blocked(add: Callable[[], bool]) -> bool:
    """Add a block while another worker has just taken the last that this process may map."""
    with blocks_bounded(most=0):
        return add()


def test_a_system_without_such_files_copies(pair: Pair) -> None:
    with no_blocks_here():
        assert not in_a_block(*pair.through([marked(1)]))


def test_a_block_is_made_after_some_copies(pair: Pair) -> None:
    """One after each two, as a new one costs more than both; none while there is a free one."""
    with blocks_bounded(after_copies=2):
        held = [pair.through([marked(number)])[0] for number in range(9)]
        assert [in_a_block(array) for array in held] == [False, False, True] * 3
        del held[2]
        for number in range(9):
            assert in_a_block(*pair.through([marked(number)]))
    assert pair.made == 3


@pytest.mark.parametrize("how", ["rest", "fork"])
def test_what_a_worker_can_no_longer_use_does_not_count(pair: Pair, how: str) -> None:
    """Whether a run or a fork has taken it. The worker has unmapped it."""
    kept = []
    with blocks_bounded(nbytes=2 * BYTES):
        for number in range(5):
            held = pair.through([marked(number), marked(number)])
            assert all(map(in_a_block, held))
            if how == "rest":
                kept += held
                rest(pair)
                assert mappings() == len(kept)
            else:
                with forked(lambda: True):
                    del held
                pair.through([])
                assert mappings() == 0
    assert all((array == number // 2).all() for number, array in enumerate(kept))


# -- the end


def test_the_next_run_finds_the_free_blocks_of_the_one_before(pair: Pair) -> None:
    """Up to a number of bytes; the oldest of them go."""
    for _ in range(3):
        for _ in range(9):
            pair.through([marked(1), marked(2, 2 * BYTES)])
        rest(pair)
    assert pair.made == 2
    size = KEPT_BYTES // 2
    pair.through([marked(1, size), marked(1, size), marked(1, size)])
    rest(pair)
    assert mappings() == 4
    del pair.through([marked(3, size), marked(4, size)])[:]
    assert pair.made == 5


def test_views_outlive_the_run_and_the_worker(pair: Pair) -> None:
    """They are as they were, hold no descriptor, and the next run does not write to them."""
    before = files()
    held = pair.through([marked(number) for number in range(3)])
    assert files() == before + 3
    rest(pair)
    assert files() == before
    for number in range(5):
        pair.through([marked(10 + number)] * 3)
    assert pair.made == 6
    assert same(held, [marked(number) for number in range(3)])
    held[0] += 1
    assert same(held[0], marked(1))
    assert same(pickle.loads(pickle.dumps(held[1])), marked(1))


def test_a_worker_that_nobody_ends_leaves_nothing(pair: Pair) -> None:
    """As when its last reference goes; the views that are left hold their descriptors until they go."""
    before = files()
    held = pair.through([marked(1), marked(2)])
    with forks_wait():
        thread = threading.Thread(target=pair.blocks.forget)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    pair.close()
    assert same(held, [marked(1), marked(2)])
    del held
    assert files() == before - 4  # both ends of the arena, each with its map
    assert mappings() == 0


# -- forks


@contextmanager
def forked(check: Callable[[], bool]) -> Iterator[None]:
    """Let a forked child check something when the block ends."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os._exit(0 if os.read(reading, 1) and check() else 1)
    try:
        yield
    finally:
        os.write(writing, b"!")
        os.close(reading)
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_keeps_what_it_has_seen(pair: Pair) -> None:
    """Though the parent has long let go of it, and the worker goes on."""
    held = pair.through([marked(1), marked(2)])
    with forked(lambda: same(held, [marked(1), marked(2)])):
        held = []
        for number in range(9):
            pair.through([marked(10 + number)] * 4)


def test_neither_sees_what_the_other_writes(pair: Pair) -> None:
    """As with memory of its own."""
    held = pair.through([marked(1), marked(2)])

    def check() -> bool:
        held[1][:] = 9
        return same(held, [marked(1), marked(9)])

    with forked(check):
        held[0][:] = 7
    assert same(held, [marked(7), marked(2)])


def test_what_another_thread_is_given_during_a_fork_is_not_written_again(pair: Pair) -> None:
    """The child may have it: given before, during, or given and dropped during the fork."""
    (first,) = pair.through([marked(1)])
    before = files()
    with fork_under_way():
        assert files() == before - 1  # it is private
        (second,) = pair.through([marked(2)])
        pair.through([marked(3)])
        del first
        pair.through([marked(4), marked(5)])
        assert pair.made == 5
    del second
    got = pair.through([marked(6), marked(7)])
    assert pair.made == 7
    del got
    pair.through([marked(8), marked(9)])
    assert pair.made == 7


def test_blocks_are_used_again_after_a_fork(pair: Pair) -> None:
    """Those that an array showed then are replaced."""
    (held,) = pair.through([marked(1)])
    with forked(lambda: True):
        pass
    del held
    places = set()
    for number in range(9):
        (got,) = pair.through([marked(number)])
        places.add(start(got))
        assert same(got, marked(number))
        del got
    assert len(places) == 1
    assert pair.made == 2


class Consumer:
    """What a process holds: views, and what each of them must show."""

    def __init__(self) -> None:
        self.held: list[tuple[np.ndarray, np.ndarray]] = []

    def hold(self, got: list[np.ndarray]) -> None:
        for array, step in zip(got, (1, 2, -1, 3), strict=False):
            self.held.append((array[::step], array[::step].copy()))

    def drop(self, number: int) -> None:
        if self.held:
            self.held.pop(number % len(self.held))

    def write(self, number: int, value: int) -> None:
        if self.held:
            for each in self.held[number % len(self.held)]:
                each += value

    def sees_its_own(self) -> bool:
        return all(same(view, expected) for view, expected in self.held)


class Worker(Pair):
    """A worker that returns arrays of numbers that occur once."""

    def __init__(self) -> None:
        super().__init__(blocks=True)

    def take(self, count: int, size: int, first: int) -> list[np.ndarray]:
        arrays = [np.full(size // 4, first + each, np.int32) for each in range(count)]
        got = self.through(arrays)
        assert same(got, arrays)
        return got

    def make(self, count: int, size: int, first: int) -> list[np.ndarray]:
        """Make the arrays in blocks, and one that is not sent."""
        self.block_writer.begin(self.blocks.orders())
        pool = BlockPool(self.block_writer)
        made = [pool.empty((size // 4,), np.dtype("i4")) for _ in range(count + 1)]
        for each in range(count + 1):
            made[each][:] = first + each - 1
        self.writer.begin()
        self.writer.put(made[1:])
        del made
        self.block_writer.end_call()
        self.reader.open()
        got: list[np.ndarray] = self.reader.get()
        assert [array[-1] for array in got] == list(range(first, first + count))
        return got

    def lose(self) -> None:
        """End as a worker that died, and that nobody has ended."""
        self.blocks.forget()
        self.close()


SIZES = st.sampled_from([4096, 5000, 40_000])
NUMBERS = st.integers(0, 99)


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["take", "make"]), st.integers(1, 4), SIZES),
            st.tuples(st.sampled_from(["drop", "drop most", "write", "fork"]), NUMBERS, st.just(0)),
            st.tuples(st.sampled_from(["rest", "lose"]), st.just(0), st.just(0)),
        ),
        max_size=25,
    )
)
@settings(max_examples=150, deadline=None)
def test_no_array_is_ever_changed_by_another(moves: list[tuple[str, int, int]]) -> None:
    """Any order of results, views, writes, forks and ends, for the parent and for each of its children."""
    before = mappings(), files()
    worker, consumer = Worker(), Consumer()
    children: list[tuple[int, int]] = []
    with blocks_for_arrays_of(4096), blocks_bounded(nbytes=200_000):
        for count, (move, number, size) in enumerate(moves):
            if move == "take":
                consumer.hold(worker.take(number, size, 10 * count))
            elif move == "make":
                consumer.hold(worker.make(number, size, 10 * count))
            elif move == "drop":
                consumer.drop(number)
            elif move == "drop most":
                del consumer.held[number % 3 :]
            elif move == "write":
                consumer.write(number, 1000)
            elif move == "fork" and len(children) < 3:
                reading, writing = os.pipe()
                child = os.fork()
                if not child:
                    for place in range(number % 2, len(consumer.held), 2):
                        consumer.write(place, -77)
                    os._exit(0 if os.read(reading, 1) and consumer.sees_its_own() else 1)
                os.close(reading)
                children.append((child, writing))
            elif move == "rest":
                rest(worker)
            elif move == "lose":
                worker.lose()
                worker = Worker()
            assert consumer.sees_its_own()
    for child, writing in children:
        os.write(writing, b"!")
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
    end(worker)
    consumer.held.clear()
    assert (mappings(), files()) == before
