"""`model.fit(train.to_tf(), validation_data=...)`: every epoch trains on all of its batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

import asyncfeed as af  # noqa: E402

X = np.arange(20, dtype=np.float32).reshape(20, 1)
Y = 2 * X + 1


class Seen(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts batches, and keeps what the model was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002
        self.batches.append(0)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
        self.batches[-1] += 1


def model(*, built: bool = True) -> Any:  # noqa: ANN401
    keras.utils.set_random_seed(1)
    shape = [keras.Input((1,))] if built else []
    made = keras.Sequential([*shape, keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(1e-3), "mse")
    return made


@pytest.mark.parametrize("via", ["queue", "from_generator"])
@pytest.mark.parametrize("built", [True, False])
def test_every_epoch_trains_on_all_batches(via: Any, built: bool) -> None:  # noqa: ANN401
    feeds: list[af.Feed[Any]] = []
    reads: Counter[int] = Counter()

    def read(row: tuple[Any, Any]) -> tuple[Any, Any]:
        reads[int(row[0][0])] += 1
        return row

    train = af.arrays(X, Y).shuffle(seed=1).map(read).batch(8).prefetch(1)
    val = af.arrays(X, Y).batch(8)
    seen = Seen()
    history = model(built=built).fit(
        train.to_tf(via=via, on_open=feeds.append),
        validation_data=val.to_tf(via=via),
        epochs=3,
        callbacks=[seen],
        verbose=0,
    )
    assert seen.batches == [3, 3, 3]
    assert len(history.history["val_loss"]) == 3
    whole = [feed for feed in feeds if feed.stats().batches == 3]
    # Keras takes one batch to build the model with, from an iteration of its own that it breaks off.
    assert 3 <= len(whole) <= len(feeds) <= 4
    assert all(3 <= count <= 4 for count in reads.values())
    assert len(reads) == 20


def test_the_epochs_differ_as_those_of_a_repeat_do() -> None:
    """What is trained on: the losses of an epoch depend on the order."""
    pipeline = af.arrays(X, Y).shuffle(seed=1).batch(20)
    epochs = [batch[0][:, 0].tolist() for _ in range(1) for batch in pipeline.repeat(3)]
    dataset = pipeline.to_tf()
    assert [batch[0].numpy()[:, 0].tolist() for _ in range(3) for batch in dataset] == epochs
    assert len(set(map(tuple, epochs))) == 3


def test_steps_per_epoch_of_an_endless_pipeline() -> None:
    seen = Seen()
    train = af.arrays(X, Y).shuffle(seed=1).repeat().batch(8)
    model().fit(train.to_tf(), steps_per_epoch=5, epochs=2, callbacks=[seen], verbose=0)
    assert seen.batches == [5, 5]


def test_a_failure_while_training_has_the_original_error_as_text() -> None:
    def fail(row: Any) -> Any:  # noqa: ANN401
        if row[0][0] == 17:
            raise OSError("disk on fire")
        return row

    feeds: list[af.Feed[Any]] = []
    dataset = af.arrays(X, Y).map(fail).batch(4).to_tf(on_open=feeds.append)
    with pytest.raises(Exception, match="OSError: disk on fire"):
        model().fit(dataset, epochs=1, verbose=0)
    assert isinstance(feeds[-1].failure.error, OSError)  # type: ignore[union-attr]


def test_an_exception_in_a_callback_stops_the_run() -> None:
    class Break(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
            raise KeyError("mine")

    feeds: list[af.Feed[Any]] = []
    dataset = af.arrays(X, Y).repeat().batch(4).to_tf(on_open=feeds.append)
    with pytest.raises(KeyError):
        model().fit(dataset, steps_per_epoch=4, epochs=1, verbose=0, callbacks=[Break()])
