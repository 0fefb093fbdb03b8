"""A thread-safe generator in `fit`: one generator that several threads draw from.

Follows document 003, on thread-safe generators for Keras, its `threadsafe_iter` and `threadsafe_generator`.
Keras 3 takes no iterator that is not a generator of Python's, so the wrapper is refused by `fit`; and no thread
of Keras' draws from a generator at the same time as another any more.

Ours: `af.threadsafe_generator` for threads of your own, with errors that end the generator for all who draw; and
for `fit` a pipeline, whose source may be any generator function.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import keras
import numpy as np

import asyncfeed as af

COUNT, THREADS = 1000, 4


class OldIterator:
    """Serves one draw at a time."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source, self._lock = source, threading.Lock()

    def __iter__(self) -> OldIterator:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next item."""
        with self._lock:
            return next(self._source)


def numbers() -> Iterator[int]:
    """Count; as a generator of Python's it may be drawn from by one thread at a time."""
    yield from range(COUNT)


def drawn(shared: Iterator[int]) -> bool:
    """Return whether four threads got each item once."""
    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(lambda _: list(shared), range(THREADS)))
    return sorted(item for part in parts for item in part) == list(range(COUNT))


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield five batches."""
    for number in range(5):
        yield np.full((4, 1), number, np.float32), np.full((4, 1), 2 * number, np.float32)


def fit(data: Callable[[], Any]) -> str:
    """Return what `fit` says to some data."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    try:
        history = model.fit(data(), epochs=2, verbose=0, shuffle=False)
    except ValueError as error:
        return f"refused, {str(error).partition(':')[0]}"
    return f"trained for {len(history.history['loss'])} epochs"


def main() -> None:
    print("old, each item once:", drawn(OldIterator(numbers())))
    print("ours, each item once:", drawn(af.threadsafe_generator(numbers)()))
    print("old, in fit:", fit(lambda: OldIterator(batches())))
    print("ours, in fit:", fit(lambda: af.items(batches).to_keras()))


if __name__ == "__main__":
    main()
