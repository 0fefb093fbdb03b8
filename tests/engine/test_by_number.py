"""Sources whose `[number]` is the user's code or reads a file: how many are read at a time, and what is counted."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.failing import Oops, draw
from tests.engine.test_skipping import Lookup, fails_at

MEGABYTE = 1 << 20


class Meeting:
    """A function that returns when as many calls as `parties` have been under way at the same time.

    Only its first call returns at once: that may be made to see what an item weighs.
    """

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._lock = threading.Lock()
        self._now = 0
        self._called = False
        self._met = threading.Event()

    def __call__(self, number: int) -> int:
        with self._lock:
            self._now += 1
            first, self._called = not self._called, True
            if self._now == self._parties:
                self._met.set()
        assert first or self._met.wait(30)
        with self._lock:
            self._now -= 1
        return number


class Alone:
    """A function that fails if two calls are under way at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, number: int) -> int:
        assert self._lock.acquire(blocking=False)
        try:
            return number
        finally:
            self._lock.release()


class Rows:
    """An array that is no numpy array, as one in a file."""

    def __init__(self, fn: Any, count: int) -> None:
        self.shape, self.dtype = (count,), np.dtype(np.int64)
        self._fn = fn

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, number: int) -> Any:
        return self._fn(number)


# -- how many at a time


def test_as_many_items_are_read_at_a_time_as_asked_for() -> None:
    """In the order of the numbers; so is what a shuffle or a zip makes of them."""
    assert list(af.items(Lookup(40, Meeting(4)), concurrency=4)) == list(range(40))
    shuffled = list(af.items(range(40)).shuffle(seed=3).repeat(2))
    assert list(af.items(Lookup(40, Meeting(4)), concurrency=4).shuffle(seed=3).repeat(2)) == shuffled
    both = af.zip(af.items(range(40)), af.items(Lookup(40, Meeting(4)), concurrency=4))
    assert list(both) == [(number, number) for number in range(40)]


@pytest.mark.parametrize("arrange", [lambda p: p, lambda p: p.shuffle().repeat(3), lambda p: af.zip(p, p)])
def test_one_item_at_a_time_unless_more_are_asked_for(arrange: Any) -> None:
    """A dataset may not allow for several threads; neither at the end of an epoch, nor in two places."""
    assert len(list(arrange(af.items(Lookup(300, Alone()))))) >= 300


def test_the_smallest_number_holds_for_all_that_are_read_together() -> None:
    """A tuple of a zip is read by one call."""
    alone = af.items(Lookup(50, Alone()), concurrency=1)
    assert len(list(af.zip(alone, af.items(Lookup(50, int), concurrency="auto")))) == 50
    assert "up to 3 threads" in af.concat(
        af.items(Lookup(2, int), concurrency=3), af.items(Lookup(2, int), concurrency=8), af.items([1])
    ).explain()  # fmt: skip


def test_rows_of_what_is_no_array_in_memory_are_read_many_at_a_time() -> None:
    """Each may wait for a disk."""
    assert list(af.arrays(Rows(Meeting(4), 40), concurrency=4)) == list(range(40))
    assert len(list(af.arrays(Rows(Alone(), 300), concurrency=1).shuffle())) == 300
    assert "1 to 256 threads" in af.arrays(Rows(int, 5)).explain()
    assert "thread" not in af.arrays(np.arange(5)).explain()


def test_reading_keeps_to_the_memory_limit() -> None:
    """Also where the consumer takes nothing for long."""

    async def main() -> int:
        dataset = Lookup(100, lambda number: np.full(MEGABYTE, number, np.uint8))
        async with af.items(dataset, concurrency=16).open(memory_limit=8 * MEGABYTE) as feed:
            async for item in feed:
                for _ in range(20):
                    await asyncio.sleep(0)
                assert item[0] == item[-1]
            return feed.stats().memory_peak

    assert asyncio.run(main()) <= 9 * MEGABYTE


def test_only_what_is_asked_for_is_read() -> None:
    """A `take` or `skip` after a `repeat`, and a buffer, go before the reading."""
    read: list[int] = []
    lock = threading.Lock()

    def note(number: int) -> int:
        with lock:
            read.append(number)
        return number

    dataset = af.items(Lookup(10, note), concurrency=4)
    assert list(dataset.repeat(3).skip(5).take(7)) == [5, 6, 7, 8, 9, 0, 1]
    assert sorted(read) == [0, 1, 5, 6, 7, 8, 9]
    read.clear()
    assert sorted(dataset.shuffle(buffer=4).take(2)) == sorted(read)
    assert len(read) == 2


# -- an async [number]


class Awaited:
    """A dataset whose items take a minute, on the loop."""

    def __init__(self, count: int, fn: Any = int) -> None:
        self._count, self._fn = count, fn

    def __len__(self) -> int:
        return self._count

    async def __getitem__(self, number: int) -> Any:
        await asyncio.sleep(60)
        assert threading.current_thread() is threading.main_thread()
        return self._fn(number)


def test_an_async_item_is_awaited_on_the_loop_many_at_a_time(seed: int) -> None:
    """As many as asked for; "auto" unless that is said, as no thread has to share the dataset."""

    async def main(**options: Any) -> int:
        drawn = [item async for item in af.items(Awaited(8), **options)]
        assert drawn == list(range(8))
        return round(asyncio.get_running_loop().time())

    assert run_virtual(main(concurrency=1), seed=seed) == 480
    assert run_virtual(main(concurrency=4), seed=seed) == 120
    assert run_virtual(main(), seed=seed) == 60
    assert "read by 1 to 512 calls on the loop, in order" in af.items(Awaited(8)).explain()


@pytest.mark.parametrize(
    "arrange",
    [
        lambda p: p.shuffle(seed=3).repeat(2),
        lambda p: p.enumerate(start=1).shuffle(seed=3),
        lambda p: af.zip(p, p.shuffle(seed=1), af.items([(1, [2])] * 9)).enumerate(),
        lambda p: af.zip(p, af.items([1]).map(str), strict=False),
        lambda p: af.concat(af.items("ab".upper), p),
        lambda p: af.concat(p, af.items([7, 8]), p).shuffle(seed=1),
        lambda p: af.mix(p, p.shuffle(seed=1), seed=3).shuffle(seed=2),
        lambda p: p.window(3).map(np.ndarray.tolist),
        lambda p: p.split(0.5, 0.5, seed=1)[0],
        lambda p: p.split(0.5, 0.5, key=int)[0],
        lambda p: p.skip(2).take(3).batch(2).map(np.ndarray.tolist),
    ],
)
def test_what_arranges_items_arranges_async_ones(arrange: Any, seed: int) -> None:
    expected = list(arrange(af.items(range(9))))
    assert run_virtual(draw(arrange(af.items(Awaited(9)))), seed=seed).items == expected


@pytest.mark.parametrize("merge", [af.zip, af.concat, af.mix])
def test_async_items_beside_those_of_a_thread_leave_them_there(merge: Any, seed: int) -> None:
    def on_a_thread(number: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        return number

    drawn = run_virtual(draw(merge(af.items(Awaited(9)), af.items(Lookup(9, on_a_thread)))), seed=seed)
    assert drawn.items == list(merge(af.items(range(9)), af.items(range(9))))


def test_an_async_item_that_fails_is_as_any_other(seed: int) -> None:
    """Its own exception, its number, and `on_error`."""
    drawn = run_virtual(draw(af.items(Awaited(9, fails_at(3)))), seed=seed)
    assert drawn.items == [0, 1, 2]
    assert isinstance(drawn.error, Oops)
    assert any("item number 3" in note for note in drawn.error.__notes__)
    skipping = af.items(Awaited(9, fails_at(3)), on_error="skip", skip_limit=1)
    pairs = af.zip(skipping, af.items(range(9)))
    assert run_virtual(draw(pairs), seed=seed).items == [(x, x) for x in range(9) if x != 3]


# -- what is left out


def test_what_counts_items_counts_those_that_are_there(seed: int) -> None:
    """As after a `map` that skips: the length is not known, and numbers have no gaps."""
    skipping = af.items(Lookup(10, fails_at(1, 4)), on_error="skip", skip_limit=2)
    assert skipping.size() is None
    for arrange, expected in (
        (lambda p: p.take(3), [0, 2, 3]),
        (lambda p: p.skip(2).take(2), [3, 5]),
        (lambda p: p.enumerate().take(3), [(0, 0), (1, 2), (2, 3)]),
        (lambda p: p.repeat(), None),
    ):
        mapped = af.items(range(10)).map(fails_at(1, 4), on_error="skip", skip_limit=2)
        one, two = (run_virtual(draw(arrange(each)), seed=seed) for each in (skipping, mapped))
        assert (one.items, type(one.error)) == (two.items, type(two.error))
        assert expected is None or one.items == expected


def test_a_pair_is_left_out_as_a_whole(seed: int) -> None:
    """The labels of what cannot be read go with it."""
    labels = af.items([-number for number in range(10)])
    pairs = af.zip(af.items(Lookup(10, fails_at(3)), on_error="skip", skip_limit=1), labels).shuffle(seed=1)
    drawn = run_virtual(draw(pairs), seed=seed)
    assert sorted(drawn.items) == [(x, -x) for x in range(10) if x != 3]


def test_a_zip_of_inputs_that_disagree_is_refused() -> None:
    """One cannot be left out without the other; nor may a list be longer than the other."""
    skipping = af.items(Lookup(10, int), on_error="skip", skip_limit=1)
    with pytest.raises(af.PipelineError, match="same on_error and skip_limit"):
        af.zip(skipping, af.items(Lookup(10, int)))
    with pytest.raises(af.PipelineError, match="inputs have 10, 9 items"):
        af.zip(skipping, af.items(range(9)))


def test_each_input_of_a_concat_has_its_own_limit(seed: int) -> None:
    """What one loses does not count for the other."""
    one, two = (af.items(Lookup(10, fails_at(bad)), on_error="skip", skip_limit=1) for bad in (2, 3))
    drawn = run_virtual(draw(af.concat(one, two)), seed=seed)
    assert drawn.error is None
    assert drawn.items == [x for x in range(10) if x != 2] + [x for x in range(10) if x != 3]


def test_options_that_can_do_nothing_are_refused() -> None:
    """An iterator that has failed cannot go on, and gives one item after the other."""
    for options in ({"concurrency": 4}, {"on_error": "skip", "skip_limit": 3}):
        with pytest.raises(af.PipelineError, match="drawn one item after the other"):
            af.items(iter([1]), **options)
    with pytest.raises(af.PipelineError, match="skip_limit"):
        af.items(Lookup(3, int), on_error="skip")
    with pytest.raises(af.PipelineError, match="concurrency must be"):
        af.arrays(Rows(int, 3), concurrency=0)
    assert list(af.items([1, 2], concurrency=4)) == [1, 2]  # a list is as good as any dataset


def test_a_dataset_of_keras_has_the_same_options(seed: int) -> None:
    """With hooks of its own, an epoch is a run in the run: what that skips would not be seen."""

    class Dataset(Lookup):
        def on_epoch_end(self) -> None:
            """Do nothing."""

    Dataset.on_epoch_end.__module__ = "keras"
    skipping = af.items(Dataset(10, fails_at(1, 4)), on_error="skip", skip_limit=2)
    assert run_virtual(draw(skipping.take(3)), seed=seed).items == [0, 2, 3]
    Dataset.on_epoch_end.__module__ = "mine"
    with pytest.raises(af.PipelineError, match="skipped items would not be reported"):
        af.items(Dataset(10, int), on_error="skip", skip_limit=2)


def test_a_list_of_a_class_of_its_own_is_read_as_a_dataset() -> None:
    """Where it has its own `[number]`, that runs on a thread, and for one number."""

    class Squares(list[int]):
        def __getitem__(self, number: Any) -> Any:
            assert threading.current_thread() is not threading.main_thread()
            return super().__getitem__(number) ** 2

    async def main() -> list[int]:
        return [item async for item in af.items(Squares([1, 2, 3]))]

    assert asyncio.run(main()) == [1, 4, 9]


# -- mapped files


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x[1:], np.asarray, lambda x: np.frombuffer(x._mmap, "u1")]
)
def test_rows_of_a_mapped_file_are_read_on_a_thread(tmp_path: Path, view: Any) -> None:
    """Each is a copy: a view would be read by whoever looks into it, on the loop."""
    mapped = view(np.memmap(tmp_path / "x", np.uint8, "w+", shape=(20, 4)))
    for pipeline in (af.arrays(mapped), af.items(mapped), af.arrays(np.zeros(len(mapped)), mapped)):
        assert "read by 1 " in pipeline.explain()
        for item in pipeline.take(3):
            row = item[1] if isinstance(item, tuple) else item
            assert not isinstance(row, np.memmap)
            assert isinstance(row, np.uint8) or row.base is None


def test_an_array_that_is_a_dataclass_is_an_array() -> None:
    """Zarr's are, and have no length but that of their shape."""

    @dataclass
    class Array:
        rows: Any

        @property
        def shape(self) -> tuple[int, ...]:
            return (len(self.rows), 2)

        dtype = np.dtype(np.int64)

        def __getitem__(self, number: int) -> Any:
            return np.full(2, self.rows[number])

        def __array__(self) -> Any:
            raise NotImplementedError

    assert [row["x"].tolist() for row in af.arrays({"x": Array([1, 2])})] == [[1, 1], [2, 2]]


def test_rows_of_arrays_in_memory_are_views() -> None:
    """Nothing is copied for them, and nothing goes to a thread."""
    array = np.arange(12).reshape(4, 3)[1:]
    for item in af.arrays(array):
        assert np.shares_memory(item, array)
    assert "thread" not in af.items(array).explain()


# -- what has no length


class Unsized:
    """What has a length and does not know it, as a `tf.data.Dataset` of a generator."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __len__(self) -> int:
        raise self._error("the length is not known")

    def __getitem__(self, number: int) -> int:
        raise Oops

    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_what_does_not_know_its_length_is_a_stream(error: type[Exception]) -> None:
    """It is iterated, anew in each epoch, and can be described."""
    pipeline = af.items(Unsized(error))
    assert list(pipeline.repeat(2)) == [0, 1, 2, 0, 1, 2]
    assert (pipeline.size(), repr(pipeline)) == (None, "items(<Unsized>)")
    assert "one after the other" in pipeline.explain()


def test_another_error_of_a_length_is_the_datasets_own() -> None:
    """A file that is not there is not a stream."""
    with pytest.raises(OSError, match="not known"):
        af.items(Unsized(OSError))


def test_an_iterable_dataset_of_torch_is_a_stream_whatever_its_length() -> None:
    """It inherits a `[number]` that raises."""

    class IterableDataset(Lookup):
        def __iter__(self) -> Any:
            return iter(range(self._count))

    class Mine(IterableDataset):
        pass

    assert list(af.items(Mine(3, fails_at(0)))) == [0, 1, 2]
