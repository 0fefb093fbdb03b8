"""A generator in `fit`: pairs of batches from an array, without end or for one epoch.

Follows document 003, on thread-safe generators for Keras, its `generator(data)`. The document trains with
`fit_generator(workers=4)`, which Keras 3 no longer has. `fit` still takes a generator, and reads its first two
batches to learn what is in them: of one that ends it has those two left in every later epoch, as the counts here
show.

Ours is a description, so that every epoch reads all of it, and reads ahead on threads of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import keras
import numpy as np

import asyncfeed as af

ROWS, BATCH, EPOCHS = 20, 4, 3
X = np.arange(ROWS, dtype=np.float32).reshape(ROWS, 1) / ROWS
Y = 2 * X + 1


def batches(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of one epoch."""
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


class Count(keras.callbacks.Callback):
    """Counts the batches of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Begin a new count."""
        self.batches.append(0)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Count."""
        self.batches[-1] += 1


def fit(data: Any) -> list[int]:
    """Train a small model; return how many batches each epoch had."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    count = Count()
    model.fit(data, epochs=EPOCHS, callbacks=[count], verbose=0, shuffle=False)
    return count.batches


def main() -> None:
    print("old, batches in each epoch:", *fit(batches(X, Y)))
    print("ours:", *fit(af.items(lambda: batches(X, Y)).to_keras()))
    print("ours, from the arrays:", *fit(af.arrays(X, Y).shuffle(seed=1).batch(BATCH).to_keras()))


if __name__ == "__main__":
    main()
