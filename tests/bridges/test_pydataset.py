"""`pydataset`: batches of a Keras dataset, read by several threads, and its hooks around the epochs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed import pydataset

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")


class Plain(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches that are their number, with what cannot be pickled."""

    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.count = count
        self.log: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        with self.lock:
            self.log.append(number)
        return number


class Hooked(Plain):
    """Batches say which epoch the object was in when they were read."""

    epoch = 0

    def __getitem__(self, number: int) -> Any:  # noqa: ANN401
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


def test_batches_come_in_order_and_are_read_once() -> None:
    dataset = Plain()
    assert list(pydataset(dataset)) == [0, 1, 2, 3, 4]
    assert sorted(dataset.log) == [0, 1, 2, 3, 4]


def test_batches_are_read_at_the_same_time() -> None:
    assert list(pydataset(Waiting(), concurrency=2)) == list(range(40))


@pytest.mark.parametrize("kind", [Plain, Hooked])
def test_each_epoch_is_shuffled_anew_and_the_same_for_a_seed(kind: type[Plain]) -> None:
    once = list(pydataset(kind(20), shuffle=True, seed=3).repeat(2))
    epochs = [[item if kind is Plain else item[1] for item in part] for part in (once[:20], once[20:])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]
    assert list(pydataset(kind(20), shuffle=True, seed=3).repeat(2)) == once
    plain = list(pydataset(Plain(20), shuffle=True, seed=3).repeat(2))
    assert [*epochs[0], *epochs[1]] == plain


def test_hooks_of_keras_own_do_not_separate_epochs() -> None:
    assert pydataset(Plain()).repeat(2).size() == 10
    assert pydataset(Hooked()).size() is None


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_epoch_ends_once_after_its_last_read_and_before_the_next(concurrency: int) -> None:
    dataset = Hooked()
    got = list(pydataset(dataset, concurrency=concurrency).repeat(3))
    assert got == [(epoch, number) for epoch in range(3) for number in range(5)]
    assert [dataset.log.index("end", start) for start in (0, 6, 12)] == [5, 11, 17]
    assert dataset.log.count("end") == 3


def test_an_epoch_may_change_the_length() -> None:
    class Growing(Hooked):
        def on_epoch_end(self) -> None:
            super().on_epoch_end()
            self.count += 1

    assert len(list(pydataset(Growing(2)).repeat(3))) == 2 + 3 + 4


def test_an_epoch_that_is_broken_off_has_no_end() -> None:
    dataset = Hooked(100)
    with pydataset(dataset).open() as feed:
        assert next(feed) == (0, 0)
    assert "end" not in dataset.log


def test_a_batch_that_fails_raises_its_own_error_and_names_the_batch() -> None:
    class Failing(Plain):
        def __getitem__(self, number: int) -> Any:  # noqa: ANN401
            return [0, 1][number]

    with pytest.raises(IndexError) as caught:
        list(pydataset(Failing()))
    assert any("batch 2" in note for note in caught.value.__notes__)


def test_any_object_with_a_length_and_numbers_will_do() -> None:
    assert list(pydataset([3, 4])) == [3, 4]


@pytest.mark.parametrize("count", [None, -1, 2.5])
def test_a_dataset_without_a_length_is_refused(count: Any) -> None:  # noqa: ANN401
    class Endless(keras.utils.PyDataset):  # type: ignore[misc]
        num_batches = count

        def __getitem__(self, number: int) -> int:
            return number

    with pytest.raises(af.PipelineError, match="Endless has"):
        pydataset(Endless())


def test_a_dataset_without_an_end_can_be_drawn() -> None:
    class Endless(keras.utils.PyDataset):  # type: ignore[misc]
        num_batches = None

        def __getitem__(self, number: int) -> int:
            return number

    assert list(af.items(Endless()).take(3)) == [0, 1, 2]


def test_iterations_of_a_dataset_of_tensorflow_are_epochs() -> None:
    dataset = Hooked(2)
    batches = pydataset(dataset, shuffle=True).map(lambda item: np.array(item)).to_tf()
    epochs = [[tuple(batch.numpy().tolist()) for batch in batches] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
