"""`items` over a dataset made for Keras, without Keras: its batches, read by several threads, and its hooks."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.bridges.pydataset import Batches


class Sequence:
    """What Keras 2 had: nothing but a base class, hooks that do nothing, and an iterator."""

    __module__ = "tf_keras.src.utils.data_utils"

    def __getitem__(self, number: int) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def on_epoch_end(self) -> None:
        """Do nothing."""

    def __iter__(self) -> Any:
        return (self[number] for number in range(len(self)))


Sequence.on_epoch_end.__module__ = Sequence.__module__


class Plain(Sequence):
    """Batches that are their number, with what cannot be pickled."""

    def __init__(self, count: int = 5) -> None:
        self.lock = threading.Lock()
        self.count = count
        self.log: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        with self.lock:
            self.log.append(number)
        return number


class Hooked(Plain):
    """Batches say which epoch the object was in when they were read."""

    epoch = 0

    def __getitem__(self, number: int) -> Any:
        with self.lock:
            self.log.append(number)
            return self.epoch, number

    def on_epoch_end(self) -> None:
        self.log.append("end")
        self.epoch += 1


class Waiting(Plain):
    """Its second batch is not read before a later one is."""

    def __init__(self) -> None:
        super().__init__(40)
        self.later = threading.Event()

    def __getitem__(self, number: int) -> int:
        if number == 1:
            assert self.later.wait(30)
        elif number >= 20:
            self.later.set()
        return number


class HookedWaiting(Waiting):
    def on_epoch_end(self) -> None:
        self.later.clear()


class Endless(Sequence):
    """It has no end, and says so."""

    num_batches: Any = None

    def __getitem__(self, number: int) -> int:
        return number


def numbers(batches: Any) -> list[int]:
    """Return the numbers of batches, with or without the epoch."""
    return [batch[1] if isinstance(batch, tuple) else batch for batch in batches]


BOTH = pytest.mark.parametrize("kind", [Plain, Hooked])


# -- what is one


def test_a_sequence_a_pydataset_and_what_has_a_hook_are_datasets() -> None:
    class PyDataset(Sequence):
        __module__ = "keras.src.trainers.data_adapters.py_dataset_adapter"

        def __len__(self) -> int:
            return 0

    class Own:
        def __len__(self) -> int:
            return 0

        def __getitem__(self, number: int) -> int:
            return number

        def on_epoch_end(self) -> None:
            """Shuffle."""

    for dataset in (Plain(), PyDataset(), Own()):
        assert isinstance(af.items(dataset), Batches)


@pytest.mark.parametrize("data", [[1, 2], (1, 2), range(2), iter([1, 2]), lambda: [1, 2]])
def test_all_else_is_what_it_was(data: Any) -> None:
    assert type(af.items(data)) is af.Pipeline


def test_keras_is_not_imported_and_the_bridge_only_for_a_dataset() -> None:
    code = (
        "import sys, asyncfeed as af\n"
        "af.items([1, 2]).shuffle()\n"
        "assert 'asyncfeed.bridges.pydataset' not in sys.modules\n"
        "class Own:\n"
        "    __len__ = lambda self: 2\n"
        "    __getitem__ = lambda self, number: number\n"
        "    on_epoch_end = lambda self: None\n"
        "assert list(af.items(Own()).repeat(2)) == [0, 1, 0, 1]\n"
        "assert not {'keras', 'tensorflow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pydataset_takes_what_is_no_dataset_by_its_looks() -> None:
    assert list(af.pydataset([3, 4])) == [3, 4]
    assert af.pydataset([3, 4]) != af.items([3, 4])


def test_a_description_prints_the_calls_and_equals_another_of_the_same_dataset() -> None:
    plain, hooked = Plain(), Hooked()
    assert repr(af.items(plain).shuffle(seed=3).repeat(2).batch(2)) == (
        "items(<Plain of 5>).shuffle(seed=3).repeat(2).read().batch(2)"
    )
    assert (
        repr(af.items(hooked).shuffle(seed=3).repeat(2)) == "items(<Hooked of 5>).shuffle(seed=3).read().repeat(2)"
    )
    assert af.items(plain).shuffle() == af.items(plain).shuffle() != af.items(Plain()).shuffle()


# -- batches


@BOTH
def test_batches_come_in_order_and_are_read_once(kind: type[Plain]) -> None:
    dataset = kind()
    assert numbers(af.items(dataset)) == [0, 1, 2, 3, 4]
    assert sorted(each for each in dataset.log if each != "end") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", [Waiting, HookedWaiting])
def test_batches_are_read_at_the_same_time(kind: type[Waiting]) -> None:
    assert list(af.pydataset(kind(), concurrency=2).repeat(2)) == [*range(40), *range(40)]


@BOTH
def test_async_batches_are_awaited(kind: type[Plain]) -> None:
    class Async(kind):  # type: ignore[misc, valid-type]
        async def __getitem__(self, number: int) -> Any:
            return super().__getitem__(number)

    assert numbers(af.items(Async()).repeat(2)) == [0, 1, 2, 3, 4] * 2


def test_how_many_at_a_time_is_found_while_running() -> None:
    assert "threads, in order" in af.items(Plain()).explain()
    assert "\nread()               1 to " in af.items(Plain()).explain()


def test_one_at_a_time_where_that_is_asked_for() -> None:
    class Busy(Plain):
        def __getitem__(self, number: int) -> Any:
            assert self.lock.acquire(blocking=False)
            try:
                return number
            finally:
                self.lock.release()

    assert list(af.pydataset(Busy(50), concurrency=1)) == list(range(50))
    with pytest.raises(af.PipelineError, match="concurrency"):
        af.pydataset(Plain(), concurrency=0)


@BOTH
def test_each_epoch_is_shuffled_anew_and_the_same_for_a_seed(kind: type[Plain]) -> None:
    once = numbers(af.items(kind(20)).shuffle(seed=3).repeat(2))
    first, second = once[:20], once[20:]
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert once == list(af.items(range(20)).shuffle(seed=3).repeat(2))  # as any other source


@BOTH
def test_only_the_batches_that_are_asked_for_are_read(kind: type[Plain]) -> None:
    dataset = kind(100)
    assert numbers(af.items(dataset).skip(90).shuffle(seed=1).take(3)) == list(
        af.items(range(100)).skip(90).shuffle(seed=1).take(3)
    )
    assert len([each for each in dataset.log if each != "end"]) == 3


def test_a_shuffle_of_several_epochs_is_one_where_nothing_happens_between_them() -> None:
    assert sorted(af.items(Plain(3)).repeat(2).shuffle(seed=1)) == [0, 0, 1, 1, 2, 2]
    with pytest.raises(af.PipelineError, match="it needs a buffer"):
        af.items(Hooked(3)).repeat(2).shuffle(seed=1)


def test_a_buffer_holds_numbers_and_not_batches() -> None:
    expected = list(af.items(range(20)).shuffle(seed=1, buffer=4))
    assert list(af.items(Plain(20)).shuffle(seed=1, buffer=4)) == expected


def test_the_stages_of_a_pipeline_follow() -> None:
    assert [batch.tolist() for batch in af.items(Plain(5)).map(lambda each: each * 2).batch(2)] == [
        [0, 2],
        [4, 6],
        [8],
    ]
    assert list(af.zip(af.items(Plain(2)), af.items(Hooked(2)))) == [(0, (0, 0)), (1, (0, 1))]


# -- epochs


def test_hooks_of_keras_own_do_not_separate_epochs() -> None:
    assert af.items(Plain()).repeat(2).size() == 10
    assert af.items(Hooked()).size() is None


@pytest.mark.parametrize("concurrency", [1, 4, "auto"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_an_epoch_ends_once_after_its_last_read_and_before_the_next(concurrency: Any, shuffled: bool) -> None:
    dataset = Hooked()
    pipeline = af.pydataset(dataset, concurrency=concurrency)
    got = list((pipeline.shuffle(seed=1) if shuffled else pipeline).repeat(3))
    assert [sorted(got[start : start + 5]) for start in (0, 5, 10)] == [
        [(epoch, number) for number in range(5)] for epoch in range(3)
    ]
    assert [place for place, each in enumerate(dataset.log) if each == "end"] == [5, 11, 17]


def test_each_epoch_begins_once_before_its_first_read() -> None:
    class Beginning(Plain):
        def on_epoch_begin(self) -> None:
            self.log.append("begin")

    dataset = Beginning(2)
    assert list(af.items(dataset).repeat(2)) == [0, 1, 0, 1]
    assert [place for place, each in enumerate(dataset.log) if each == "begin"] == [0, 3]


def test_an_epoch_is_what_take_leaves_of_it() -> None:
    dataset = Hooked(100)
    assert list(af.items(dataset).take(2).repeat(2)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert dataset.log.count("end") == 2


def test_an_epoch_may_change_the_length() -> None:
    class Growing(Hooked):
        def on_epoch_end(self) -> None:
            super().on_epoch_end()
            self.count += 1

    epochs = list(af.items(Growing(2)).shuffle(seed=1).repeat(3))
    assert sorted(epochs) == [(epoch, number) for epoch in range(3) for number in range(2 + epoch)]


@pytest.mark.parametrize("whole", [0, 2])
def test_an_epoch_that_is_broken_off_has_no_end(whole: int) -> None:
    size = 10_000  # more than is read ahead
    dataset = Hooked(size)
    for count, (epoch, _) in enumerate(af.items(dataset).repeat()):
        assert epoch == count // size
        if count == whole * size:
            break
    assert dataset.log.count("end") == whole


def test_runs_are_epochs_one_after_the_other() -> None:
    dataset = Hooked(2)
    assert [list(af.items(dataset)) for _ in range(2)] == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    assert dataset.log.count("end") == 2


# -- what goes wrong


@BOTH
def test_a_batch_that_fails_raises_its_own_error_and_names_the_batch(kind: type[Plain]) -> None:
    class Failing(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, number: int) -> Any:
            return [0, 1, 2, 3][number]

    dataset = Failing()
    with pytest.raises(IndexError, match="list index out of range") as caught:
        list(af.items(dataset).shuffle(seed=2))
    assert any("batch 4" in note for note in caught.value.__notes__)
    assert "end" not in dataset.log


def test_a_hook_that_fails_ends_the_run() -> None:
    class Failing(Hooked):
        def on_epoch_end(self) -> None:
            raise OSError("cannot shuffle")

    got = []
    with pytest.raises(OSError, match="cannot shuffle"):
        for batch in af.items(Failing(3)).repeat():
            got.append(batch)
    assert got == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("count", [-1, 2.5, True, "3"])
def test_a_length_that_is_none_is_refused(count: Any) -> None:
    class Odd(Endless):
        num_batches = count

    with pytest.raises(af.PipelineError, match="number of batches of Odd must be"):
        af.items(Odd())


def test_a_dataset_that_does_not_say_its_length_is_refused() -> None:
    class Silent:
        def __getitem__(self, number: int) -> int:
            return number

        def on_epoch_end(self) -> None:
            """Do nothing."""

    with pytest.raises(af.PipelineError, match="Silent does not say how many batches"):
        af.items(Silent())


def test_a_dataset_without_an_end_is_read_for_ever() -> None:
    assert list(af.items(Endless()).take(3)) == [0, 1, 2]
    assert af.items(Endless()).size() is None
    with pytest.raises(af.PipelineError, match="it needs a buffer"):
        af.items(Endless()).shuffle()
    assert sorted(af.items(Endless()).take(50).shuffle(buffer=7)) == list(range(50))
