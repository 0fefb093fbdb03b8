"""`items(keras.utils.PyDataset)`: Keras' own class, in `fit` and in `tf.data`; see also `tests/unit/test_datasets.py`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import asyncfeed as af

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

X = np.arange(12, dtype=np.float32).reshape(12, 1)


class Dataset(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches (x, y) of two rows, with what cannot be pickled."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.count = count
        self.log: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        with self.lock:
            self.log.append(number)
        x = X[2 * number : 2 * number + 2]
        return x, 2 * x


class Hooked(Dataset):
    """Batches say which epoch the object was in when they were read."""

    epoch = 0

    def __getitem__(self, number: int) -> Any:
        x, y = super().__getitem__(number)
        return x, y + self.epoch

    def on_epoch_end(self) -> None:
        self.log.append("end")
        self.epoch += 1


class Endless(keras.utils.PyDataset):  # type: ignore[misc]
    num_batches = None

    def __getitem__(self, number: int) -> Any:
        return np.full((2, 1), number, np.float32)


def model() -> Any:
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(1e-3), "mse")
    return made


def test_fit_reads_each_batch_once_an_epoch_where_keras_alone_reads_two_more() -> None:
    ours, theirs = Dataset(), Dataset()
    model().fit(af.items(ours).shuffle(seed=1).to_keras(), epochs=2, verbose=0)
    model().fit(theirs, epochs=2, verbose=0)
    assert sorted(ours.log) == sorted([*range(6), *range(6)])
    assert len(theirs.log) == 2 * 6 + 2


def test_the_number_of_steps_is_known_where_nothing_can_change_it() -> None:
    assert af.items(Dataset()).to_keras().num_batches == 6
    assert af.items(Hooked()).to_keras().num_batches is None


def test_fit_ends_each_epoch_once_after_its_last_read() -> None:
    dataset = Hooked()
    model().fit(af.items(dataset).to_keras(), epochs=3, verbose=0)
    assert [place for place, each in enumerate(dataset.log) if each == "end"] == [6, 13, 20]


def test_predict_takes_a_dataset_without_an_end() -> None:
    data = af.items(Endless()).take(3).to_keras()
    assert model().predict(data, verbose=0).shape == (6, 1)


def test_iterations_of_a_dataset_of_tensorflow_are_epochs() -> None:
    dataset = Hooked(2)
    batches = af.items(dataset).shuffle(seed=1).to_tf()
    epochs = [sorted(float(y[0, 0]) for _, y in batches) for _ in range(2)]
    assert epochs == [[0, 4], [1, 5]]
    assert dataset.log.count("end") == 2


def test_keras_own_hooks_that_do_nothing_do_not_separate_epochs() -> None:
    assert af.items(Dataset()).repeat(2).size() == 12


def test_a_dataset_that_does_not_say_its_length_is_refused() -> None:
    class Silent(keras.utils.PyDataset):  # type: ignore[misc]
        def __getitem__(self, number: int) -> Any:
            return number

    with pytest.raises(af.PipelineError, match="Silent does not say how many batches"):
        af.items(Silent())
