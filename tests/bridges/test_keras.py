"""`model.fit(train.to_keras())`: one read per batch, known steps, and nothing runs once Keras lets go."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

import asyncfeed as af  # noqa: E402
from asyncfeed.bridges.keras import ClassWeights  # noqa: E402
from tests.engine.outside import loop_threads, threads_ended  # noqa: E402

X = np.arange(20, dtype=np.float32).reshape(20, 1)
Y = 2 * X + 1


class Seen(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps how many batches each epoch had, and can stop or fail at one."""

    def __init__(self, *, stop_at: int | None = None, fail_at: int | None = None) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.steps: Any = None
        self._stop_at, self._fail_at = stop_at, fail_at

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.epochs.append(0)
        self.steps = self.params["steps"]

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.epochs[-1] += 1
        if sum(self.epochs) == self._stop_at:
            self.model.stop_training = True
        if sum(self.epochs) == self._fail_at:
            raise OddError("in a callback")


class OddError(Exception):
    """Nothing that Keras raises."""


class Reads:
    """Counts the reads of each row."""

    def __init__(self) -> None:
        self.of: Counter[int] = Counter()
        self.order: list[int] = []

    def __call__(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self.of[int(row[0][0])] += 1
        self.order.append(int(row[0][0]))
        return row


def model(*, built: bool = True, loss: str = "mse") -> Any:
    keras.utils.set_random_seed(1)
    shape = [keras.Input((1,))] if built else []
    made = keras.Sequential([*shape, keras.layers.Dense(1, kernel_initializer="zeros")])
    made.compile(keras.optimizers.SGD(1e-3), loss, weighted_metrics=["mae"] if not built else None)
    return made


def running(feeds: list[af.Feed[Any]]) -> int:
    """Return how many runs go on, while these feeds are kept."""
    gc.collect()
    threads_ended()
    return len(loop_threads())


@pytest.mark.parametrize("built", [True, False])
def test_every_batch_of_every_epoch_is_read_once(built: bool) -> None:
    reads, val_reads, seen = Reads(), Reads(), Seen()
    feeds: list[af.Feed[Any]] = []
    train = af.arrays(X, Y).shuffle(seed=1).map(reads).batch(8)
    val = af.arrays(X, Y).map(val_reads).batch(8)
    model(built=built).fit(
        train.to_keras(on_open=feeds.append),
        validation_data=val.to_keras(on_open=feeds.append),
        epochs=3,
        callbacks=[seen],
        verbose=0,
    )
    assert seen.epochs == [3, 3, 3]
    assert seen.steps == 3
    assert set(reads.of.values()) == {3} and len(reads.of) == 20
    assert set(val_reads.of.values()) == {3} and len(val_reads.of) == 20
    epochs = [reads.order[i : i + 20] for i in (0, 20, 40)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert running(feeds) == 0


@pytest.mark.parametrize("built", [True, False])
def test_evaluate_and_predict_read_each_batch_once(built: bool) -> None:
    made = model(built=built)
    reads = Reads()
    feeds: list[af.Feed[Any]] = []
    made.evaluate(af.arrays(X, Y).map(reads).batch(8).to_keras(on_open=feeds.append), verbose=0)
    assert set(reads.of.values()) == {1} and len(reads.of) == 20
    data = af.items(X).batch(8).to_keras(on_open=feeds.append)
    assert made.predict(data, verbose=0).shape == (20, 1)
    assert running(feeds) == 0


def test_an_unknown_length_ends_by_itself() -> None:
    seen = Seen()
    train = af.arrays(X, Y).filter(lambda row: row[0][0] != 3).batch(8)
    model().fit(train.to_keras(), epochs=2, callbacks=[seen], verbose=0)
    assert seen.epochs == [3, 3]


@pytest.mark.parametrize("built", [True, False])
def test_steps_per_epoch_goes_on_in_one_stream(built: bool) -> None:
    reads, seen = Reads(), Seen()
    feeds: list[af.Feed[Any]] = []
    train = af.arrays(X, Y).repeat().map(reads, concurrency=1).batch(4)
    model(built=built).fit(
        train.to_keras(on_open=feeds.append), steps_per_epoch=3, epochs=4, callbacks=[seen], verbose=0
    )
    assert seen.epochs == [3, 3, 3, 3]
    assert len(feeds) == 1
    assert reads.order[:48] == [n % 20 for n in range(48)]
    assert running(feeds) == 0


@pytest.mark.parametrize("built", [True, False])
def test_training_that_is_stopped_early_stops_the_run(built: bool) -> None:
    feeds: list[af.Feed[Any]] = []
    seen = Seen(stop_at=2)
    train = af.arrays(X, Y).repeat().batch(4)
    model(built=built).fit(
        train.to_keras(on_open=feeds.append), steps_per_epoch=5, epochs=9, callbacks=[seen], verbose=0
    )
    assert len(seen.epochs) == 1
    assert len(feeds) == 1
    assert running(feeds) == 0


def test_an_exception_in_a_callback_stops_the_run() -> None:
    feeds: list[af.Feed[Any]] = []
    train = af.arrays(X, Y).repeat().batch(4)

    def fit() -> None:
        data = train.to_keras(on_open=feeds.append)
        model().fit(data, steps_per_epoch=5, callbacks=[Seen(fail_at=1)], verbose=0)

    try:
        fit()
    except OddError:
        pass
    assert running(feeds) == 0


def test_an_exception_in_the_validation_stops_both_runs() -> None:
    class Fails(keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_batch_end(self, batch: int, logs: object = None) -> None:
            raise OddError("in the validation")

    feeds: list[af.Feed[Any]] = []
    endless = af.arrays(X, Y).repeat().batch(4)

    def fit() -> None:
        data, val = (endless.to_keras(on_open=feeds.append) for _ in range(2))
        model().fit(
            data,
            steps_per_epoch=5,
            validation_data=val,
            validation_steps=5,
            callbacks=[Fails()],
            verbose=0,
        )

    try:
        fit()
    except OddError:
        pass
    assert len(feeds) == 2
    assert running(feeds) == 0


def test_early_stopping_by_the_validation_stops_both_runs() -> None:
    feeds: list[af.Feed[Any]] = []
    train, val = (af.arrays(X, Y).repeat().batch(4).to_keras(on_open=feeds.append) for _ in range(2))
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=1e9, patience=0)
    history = model().fit(
        train,
        steps_per_epoch=5,
        epochs=9,
        validation_data=val,
        validation_steps=5,
        callbacks=[stop],
        verbose=0,
    )
    assert len(history.epoch) == 2
    assert running(feeds) == 0


def test_the_end_of_a_with_block_stops_everything() -> None:
    feeds: list[af.Feed[Any]] = []
    with (
        pytest.raises(OddError) as caught,
        af.arrays(X, Y).repeat().batch(4).to_keras(on_open=feeds.append) as data,
    ):
        model().fit(data, steps_per_epoch=5, callbacks=[Seen(fail_at=1)], verbose=0)
    assert running(feeds) == 0
    assert caught.value.args == ("in a callback",)  # its frames still hold what fit held


def test_an_error_in_the_pipeline_reaches_fit() -> None:
    feeds: list[af.Feed[Any]] = []

    def read(row: tuple[Any, ...]) -> tuple[Any, ...]:
        if row[0][0] == 13:
            raise OddError("no such row")
        return row

    train = af.arrays(X, Y).map(read).batch(4)
    kind: Any = Exception if keras.backend.backend() == "tensorflow" else OddError
    with pytest.raises(kind, match="no such row"):
        model().fit(train.to_keras(on_open=feeds.append), verbose=0)
    failure = feeds[0].failure
    assert failure is not None and isinstance(failure.error, OddError)


def test_sample_weights_come_as_a_third_part() -> None:
    weighted = model().fit(af.arrays(X, Y, np.zeros(20, np.float32)).batch(8).to_keras(), epochs=1, verbose=0)
    assert weighted.history["loss"] == [0.0]


def test_class_weights_weigh_as_those_of_keras() -> None:
    labels = (np.arange(20) % 2).astype(np.float32).reshape(20, 1)
    weights = {0: 1.0, 1: 5.0}
    ours = model(loss="binary_crossentropy").fit(
        af.arrays(X, labels).batch(5).to_keras(class_weight=weights), epochs=2, verbose=0
    )
    theirs = model(loss="binary_crossentropy").fit(
        X, labels, batch_size=5, shuffle=False, class_weight=weights, epochs=2, verbose=0
    )
    np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-5)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([0, 1, 2, 7]), [1, 5, 1, 1]),
        (np.array([[0.0], [1.0]]), [1, 5]),
        (np.array([[1, 0], [0, 1]]), [1, 5]),
    ],
)
def test_classes_are_numbers_or_one_hot(y: Any, expected: list[float]) -> None:
    """A class without a weight weighs 1."""
    assert ClassWeights({0: 1, 1: 5})((y, y))[2].tolist() == expected


def test_no_class_weights_weigh_all_alike() -> None:
    """As in Keras."""
    y = np.array([0, 1, 2])
    assert ClassWeights({})((y, y))[2].tolist() == [1, 1, 1]


def test_classes_may_be_a_tensor_of_a_framework() -> None:
    """The batch keeps the tensor; its weights are an array."""
    y = keras.ops.convert_to_tensor(np.array([0, 1, 2]))
    x, kept, weights = ClassWeights({0: 1, 1: 5})((y, y))
    assert kept is y
    assert weights.tolist() == [1, 5, 1]


class Ready(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of known shape, the last of them smaller."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        return np.ones((2 if number == 2 else 4, 5), np.float32), np.ones((2 if number == 2 else 4, 1), np.float32)


@pytest.mark.filterwarnings("ignore:.*super\\(\\).__init__")
@pytest.mark.parametrize("source", ["dataset", "batches"])
def test_an_unbuilt_model_takes_batches_that_were_made_elsewhere(source: str) -> None:
    """Only the batch axis is unknown; the first two batches say so, and are trained on."""
    dataset, reads = Ready(), []

    def batches() -> Any:
        for number in range(3):
            reads.append(number)
            yield dataset[number]

    pipeline = af.items(dataset) if source == "dataset" else af.items(batches)
    seen, unbuilt = Seen(), keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse", jit_compile=False)
    unbuilt.fit(pipeline.to_keras(), epochs=2, verbose=0, callbacks=[seen])
    assert seen.epochs == [3, 3]
    assert source == "dataset" or reads[:6] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("wrong", [{"a": 1.0}, {-1: 1.0}])
def test_class_weights_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(af.PipelineError, match="class_weight must map class numbers"):
        af.arrays(X, Y).batch(5).to_keras(class_weight=wrong)


def test_fitting_again_goes_on_with_the_next_epoch() -> None:
    reads = Reads()
    data = af.arrays(X, Y).shuffle(seed=3).map(reads, concurrency=1).batch(8).to_keras()
    made = model(built=False)
    made.fit(data, verbose=0)
    made.fit(data, verbose=0)
    assert reads.order[:20] != reads.order[20:]
    assert sorted(reads.order[:20]) == sorted(reads.order[20:])


def test_an_adapter_that_is_dropped_stops_its_run() -> None:
    feeds: list[af.Feed[Any]] = []
    data = af.arrays(X, Y).repeat().batch(4).to_keras(on_open=feeds.append)
    data.get_numpy_iterator().__next__()
    del data
    assert running(feeds) == 0
    assert not [t for t in threading.enumerate() if "pump" in t.name]
