"""The pool of batch memory: used again when the last view is gone, and never before."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.stacking import pool as module
from asyncfeed.stacking.pool import IDLE_SECONDS, LEAST, MAX_IDLE_BYTES, SHARE, SHARED, Pool

F4 = np.dtype("f4")
SIZE = LEAST // 4


def start(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_given_out_again_when_the_array_is_gone() -> None:
    pool = Pool()
    array = pool.empty((SIZE,), F4)
    before = start(array)
    del array
    assert pool.nbytes >= LEAST
    assert start(pool.empty((2, SIZE // 2), np.dtype("i4"))) == before


@given(count=st.integers(LEAST // 8, LEAST), dtype=st.sampled_from(["u1", "f4", "f8", "U3", "M8[s]", "c16"]))
@settings(max_examples=30)
def test_arrays_are_aligned_writable_and_of_the_shape_asked_for(count: int, dtype: str) -> None:
    array = Pool().empty((count // 5, 5), np.dtype(dtype))
    assert (array.shape, array.dtype) == ((count // 5, 5), np.dtype(dtype))
    assert type(array) is np.ndarray
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert start(array) % 64 == 0
    array.view(np.uint8)[:] = 1  # all of it is there


def test_small_arrays_and_arrays_of_objects_are_not_pooled() -> None:
    pool = Pool()
    pool.empty((LEAST - 1,), np.dtype("u1"))
    pool.empty((LEAST,), np.dtype(object))
    assert pool.nbytes == 0


class _Subclass(np.ndarray):
    pass


def _with_torch(way: str) -> Callable[[np.ndarray], Any]:
    def make(array: np.ndarray) -> Any:
        torch = pytest.importorskip("torch")
        return torch.from_numpy(array) if way == "from_numpy" else torch.from_dlpack(array)[1:]

    return make


WAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "the array": lambda array: array,
    "a slice": lambda array: array[10:20],
    "a slice of a slice": lambda array: array[10:][5:][::2],
    "a reshaped array": lambda array: array.reshape(2, -1),
    "a transposed array": lambda array: array.reshape(2, -1).T,
    "another dtype": lambda array: array.view("u1"),
    "a subclass": lambda array: array.view(_Subclass),
    "one field": lambda array: array.view([("a", "f4")])["a"],
    "a masked array": lambda array: np.ma.masked_array(array),
    "a broadcast": lambda array: np.broadcast_to(array, (3, len(array))),
    "windows": lambda array: np.lib.stride_tricks.sliding_window_view(array, 3),
    "a memoryview": memoryview,
    "a part of a memoryview": lambda array: memoryview(array)[3:],
    "an array of a memoryview": lambda array: np.frombuffer(memoryview(array), "f4"),
    "a buffer on the way to another process": lambda array: pickle.PickleBuffer(array).raw(),
    "dlpack of numpy": lambda array: np.from_dlpack(array),
    "a dlpack capsule": lambda array: array.__dlpack__(),
    "an element of a tuple": lambda array: {"x": (array[1:], 7)},
    "an iterator": lambda array: iter(array),
    "a flat iterator": lambda array: array.flat,
    "ctypes": lambda array: array.ctypes,
    "torch.from_numpy": _with_torch("from_numpy"),
    "a part of torch.from_dlpack": _with_torch("dlpack"),
}


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_not_given_out_while_anything_shows_it(way: str) -> None:
    pool = Pool()
    array = pool.empty((SIZE,), F4)
    before = start(array)
    view = WAYS[way](array)
    del array
    gc.collect()
    others = [pool.empty((SIZE,), F4) for _ in range(3)]
    assert pool.nbytes == 0
    assert before not in map(start, others)
    del view
    gc.collect()
    assert start(pool.empty((SIZE,), F4)) == before


def test_copies_do_not_hold_memory() -> None:
    pool = Pool()
    array = pool.empty((SIZE,), F4)
    array[:] = 3
    copies = [pickle.loads(pickle.dumps(array, 5)), array.copy(), array.astype("f4"), array[:1].tobytes()]
    del array
    assert pool.nbytes >= LEAST
    pool.empty((SIZE,), F4)[:] = 4
    assert (copies[0] == 3).all()


@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(LEAST, 2 * LEAST)),
            st.tuples(st.just("drop"), st.integers(0, 100)),
        ),
        max_size=40,
    )
)
@settings(max_examples=100, deadline=None)
def test_nothing_alive_is_overwritten_and_no_more_is_held_than_was_out(moves: list[tuple[str, int]]) -> None:
    """Any order of taking and dropping; each array holds a mark of its own from its start to its end."""
    pool = Pool()
    out: dict[int, np.ndarray] = {}
    most = 0
    for number, (move, argument) in enumerate(moves):
        if move == "take":
            array = pool.empty((argument,), np.dtype("u1"))
            array[0] = array[-1] = number
            out[number] = array
            del array
        elif out:
            del out[list(out)[argument % len(out)]]
        for mark, array in out.items():
            assert array[0] == array[-1] == mark
        array = None  # type: ignore[assignment]
        held = sum(module.rounded(each.nbytes) for each in out.values())
        most = max(most, held)
        assert held + pool.nbytes <= most


def test_what_a_consumer_kept_too_long_is_not_kept_by_the_pool() -> None:
    pool = Pool()
    pool.opened(10 * LEAST)
    many = [pool.empty((LEAST,), np.dtype("u1")) for _ in range(30)]
    del many[:]
    assert pool.nbytes == 10 * LEAST


def test_how_much_may_be_free_depends_on_the_limits_of_the_open_runs() -> None:
    """A sixteenth of a large limit, 256 MB of a smaller one, all of a small one; 256 MB after the last run."""
    pool = Pool()
    large, small = 2 * SHARE * MAX_IDLE_BYTES, LEAST
    pool.opened(small)
    assert pool.most == small
    pool.opened(large)
    assert pool.most == 2 * MAX_IDLE_BYTES
    pool.closed(small)
    assert pool.most == 2 * MAX_IDLE_BYTES
    pool.closed(large)
    assert pool.most == MAX_IDLE_BYTES
    pool.opened(3 * MAX_IDLE_BYTES)
    assert pool.most == MAX_IDLE_BYTES


def test_memory_that_was_free_for_long_is_given_back_when_a_run_begins_or_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    pool = Pool()
    first, second = (pool.empty((SIZE,), F4) for _ in range(2))
    del first
    now[0] = IDLE_SECONDS - 1
    del second
    pool.opened(1 << 30)
    assert pool.nbytes == 2 * LEAST
    now[0] = IDLE_SECONDS + 1
    pool.closed(1 << 30)
    assert pool.nbytes == LEAST
    pool.clear()
    assert pool.nbytes == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_begins_with_an_empty_pool() -> None:
    """What its parent had free or out is none of its own; a lock that another thread had is a new one."""
    array = SHARED.empty((SIZE,), F4)
    del array
    kept = SHARED.empty((SIZE,), F4)
    SHARED._lock.acquire()
    child = os.fork()
    if child == 0:
        good = SHARED.nbytes == 0
        SHARED.opened(1 << 30)
        del kept
        os._exit(0 if good and SHARED.nbytes == 0 else 1)
    SHARED._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    kept[:] = 1


def test_memory_comes_back_from_any_thread_and_from_the_garbage_collector() -> None:
    pool = Pool()
    box: list[Any] = [pool.empty((SIZE,), F4)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert pool.nbytes == LEAST
    box.append(box)
    box.append(pool.empty((SIZE,), F4))
    assert pool.nbytes == 0
    del box
    gc.collect()
    assert pool.nbytes == LEAST


def test_many_threads_never_get_the_same_memory() -> None:
    pool = Pool()
    wrong = []

    def work(mark: int) -> None:
        kept: list[np.ndarray] = []
        for _ in range(100):
            array = pool.empty((LEAST,), np.dtype("u1"))
            array[:: LEAST // 8] = mark
            kept = [*kept[-1:], array]
            if any((each[:: LEAST // 8] != mark).any() for each in kept):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_that_is_free_goes_with_the_pool() -> None:
    pool = Pool()
    free, out = pool.empty((SIZE,), F4), pool.empty((SIZE,), F4)
    memory = pool._free  # weakly referred to below
    del free
    gone = weakref.ref(memory[0].memory)
    del pool, memory
    assert gone() is None
    out[:] = 1
    del out


# In a run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(48):
        np.save(tmp_path / f"{number:02}.npy", np.full((LEAST // 8, 1), number, np.float32))
    return tmp_path


def pipeline(folder: Path) -> af.Pipeline[Any]:
    return af.files(f"{folder}/*.npy").repeat(4).load(af.npy).batch(4)


def test_batches_that_are_kept_stay_as_they_were(folder: Path) -> None:
    """Whole batches, parts of them, tensors of torch; among many that are dropped, whose memory goes round."""
    torch = pytest.importorskip("torch")
    kept: list[tuple[Any, int, Any]] = []
    places = set()
    ways = (lambda each: each, lambda each: each[3:, :5].T, torch.from_numpy, memoryview)
    with pipeline(folder).open(memory_limit=16 * LEAST) as feed:
        for number, batch in enumerate(feed):
            places.add(start(batch))
            if number % 3 == 0:
                view = ways[number // 3 % 4](batch)
                kept.append((view, number, np.asarray(view).copy()))
            assert batch[:, -1, 0].tolist() == [(4 * number + row) % 48 for row in range(4)]
    assert len(kept) == 16
    assert len(places) < 48, "no memory was used twice, so this shows nothing"
    for view, number, copy in kept:
        np.testing.assert_array_equal(np.asarray(view), copy, err_msg=f"batch {number}")


def test_a_run_finds_the_memory_of_the_one_before(folder: Path) -> None:
    """An epoch of a plain loop does not pay for fresh pages again; what the user kept stays as it was."""
    SHARED.clear()
    kept = []
    places: list[set[int]] = []
    for _ in range(3):
        places.append(set())
        for number, batch in enumerate(pipeline(folder).open(memory_limit=16 * LEAST)):
            places[-1].add(start(batch))
            if number == 5:
                kept.append(batch.copy())
                kept.append(batch)
        del batch
    assert SHARED.nbytes > 0
    assert places[1] & places[0]
    assert len(set.union(*places)) < 3 * 16
    for copy, batch in zip(kept[::2], kept[1::2], strict=True):
        np.testing.assert_array_equal(batch, copy)


def test_the_end_of_a_run_leaves_no_more_than_its_limit(folder: Path) -> None:
    """However many batches the user lets go afterwards."""
    SHARED.clear()
    before = list(SHARED._limits)
    with pipeline(folder).open(memory_limit=4 * LEAST) as feed:
        batches = list(feed)
    assert len(batches) == 48
    del batches
    assert SHARED.nbytes <= 4 * LEAST
    assert SHARED._limits == before


def test_small_runs_beside_each_other_share_one_pool(folder: Path) -> None:
    SHARED.clear()
    limit = 16 * LEAST
    with pipeline(folder).open(memory_limit=limit) as one, pipeline(folder).open(memory_limit=limit) as other:
        for mine, theirs in zip(one, other, strict=True):
            assert (mine == theirs).all()
            assert start(mine) != start(theirs)
    assert SHARED.nbytes <= limit


@pytest.mark.parametrize("threshold", [1, 2, 3, 5])
def test_a_garbage_collection_may_give_memory_back_while_it_is_counted(threshold: int) -> None:
    pool = Pool()
    kept = [pool.empty((SIZE,), F4) for _ in range(50)]
    del kept
    before = gc.get_threshold()
    gc.set_threshold(threshold)
    try:
        for number in range(1000):
            array = pool.empty((SIZE,), F4)
            circle: list[Any] = [array]
            circle.append(circle)
            del array, circle  # the garbage collection of some later line finds it
            for _ in range(number % 7):
                assert pool.nbytes >= 0
    finally:
        gc.set_threshold(*before)
