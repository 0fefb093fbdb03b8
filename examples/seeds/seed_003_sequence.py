"""A `Sequence` in `fit`: batches by their number, which Keras' workers ask for.

Follows document 003, on thread-safe generators for Keras, its class derived from `Sequence`, which is called
`PyDataset` today. The document's lock around `__getitem__` (its update of 2020) would let one worker read at a
time, and a new lock in each call protects nothing; a read of its own rows needs neither.

Ours: the same object, whose batches are read by several threads; then the rows given as arrays, where shuffling,
batches and reading ahead are the pipeline's, and nobody counts indices.
"""

from __future__ import annotations

import math
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import keras
import numpy as np

import asyncfeed as af

ROWS, BATCH, EPOCHS = 22, 4, 2
X = np.arange(ROWS, dtype=np.float32).reshape(ROWS, 1) / ROWS
Y = 2 * X + 1


class Rows(keras.utils.PyDataset):
    """Batches of rows, the last of them smaller."""

    def __init__(self, x: np.ndarray, y: np.ndarray, size: int, **workers: Any) -> None:
        super().__init__(**workers)
        self._x, self._y, self._size = x, y, size

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(len(self._x) / self._size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a batch."""
        rows = slice(index * self._size, (index + 1) * self._size)
        return self._x[rows], self._y[rows]


def fit(data: Any) -> np.ndarray:
    """Train a small model; return what it has learned."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False)
    return np.concatenate([np.ravel(weights) for weights in model.get_weights()])


def main() -> None:
    old = fit(Rows(X, Y, BATCH, workers=4))
    print("old, batches:", len(Rows(X, Y, BATCH)))
    for name, pipeline in (
        ("ours, the same object", af.items(Rows(X, Y, BATCH))),
        ("ours, from the arrays", af.arrays(X, Y).batch(BATCH)),
    ):
        same = bool(np.allclose(old, fit(pipeline.to_keras())))
        print(f"{name}, batches: {len(pipeline)}, learned the same: {same}")


if __name__ == "__main__":
    main()
