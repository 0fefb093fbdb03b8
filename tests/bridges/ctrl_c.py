"""Ctrl-C at random moments while a dataset is iterated, many times in one process.

`python -m tests.bridges.ctrl_c --rounds 200` prints how the tries ended, as a line of JSON for each way to iterate
and each moment. A thread sends SIGINT after a random delay. The main thread is then anywhere in the iteration, in
Python or in TensorFlow. Each try must end soon with one `KeyboardInterrupt`. A try that does not end is counted as a
hang, and its feeds are stopped so that the next try can begin.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import faulthandler
import gc
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import asyncfeed as af

HANGS_AFTER_SECONDS = 3.0
WARM_UP_SECONDS = 1.0
"""The delay of a first try, which traces functions and is not counted."""
FIT_BEGINS = 15
"""How many times longer the delays are for `fit`, which takes long to begin."""

feeds: list[Any] = []


async def never(number: int) -> int:
    await asyncio.Event().wait()
    return number


async def slowly(number: int) -> int:
    await asyncio.sleep(0.001)
    return number


async def slowly_then_never(number: int) -> int:
    return await (slowly if number < 20 else never)(number)


async def pair(number: int) -> Any:
    return np.full((2, 1), number % 7, np.float32), np.zeros((2, 1), np.float32)


MOMENTS = {
    "before the first": af.items(range(9)).map(never, concurrency=4),
    "in the middle": af.items(itertools.count).map(slowly, concurrency=4),
    "items ready": af.items(range(1000)).repeat(),
    "no more items": af.items(range(99)).map(slowly_then_never, concurrency=4),
}


def dataset(pipeline: Any) -> Any:
    return pipeline.to_tf(output_signature=tf.TensorSpec((), tf.int64), on_open=feeds.append)


def by_next(pipeline: Any) -> None:
    iterator = iter(dataset(pipeline))
    while True:
        next(iterator)


def by_for(pipeline: Any) -> None:
    for _ in dataset(pipeline):
        pass


@tf.function(autograph=False)
def reduced(data: Any) -> Any:
    return data.reduce(tf.constant(0, tf.int64), lambda total, item: total + item)


@tf.function
def looped(data: Any) -> Any:
    total = tf.constant(0, tf.int64)
    for item in data:
        total += item
    return total


def by_zip(pipeline: Any) -> None:
    reduced(tf.data.Dataset.zip(dataset(pipeline), dataset(pipeline)).map(lambda x, y: x + y).repeat())


@cache
def model() -> Any:
    made = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", jit_compile=False)
    return made


def by_fit(pipeline: Any) -> None:
    batches = pipeline.map(pair).to_keras(on_open=feeds.append)
    model().fit(batches, epochs=2, verbose=0, steps_per_epoch=10**6)


def by_fit_of_dataset(pipeline: Any) -> None:
    spec = (tf.TensorSpec((2, 1), tf.float32),) * 2
    batches = pipeline.map(pair).to_tf(output_signature=spec, on_open=feeds.append)
    model().fit(batches, epochs=2, verbose=0, steps_per_epoch=10**6)


WAYS: dict[str, Callable[[Any], Any]] = {
    "next": by_next,
    "for": by_for,
    "function": lambda pipeline: reduced(dataset(pipeline)),
    "loop": lambda pipeline: looped(dataset(pipeline)),
    "zip": by_zip,
    "fit": by_fit,
    "fit of a dataset": by_fit_of_dataset,
}


class Try:
    """One try: who sends the signal, and who sees that it does not end."""

    def __init__(self, delay: float) -> None:
        self.hung = False
        self.more = 0
        self.sent = 0.0
        self._delay = delay
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sender", daemon=True)

    def begin(self) -> None:
        """Let the sender begin."""
        self._thread.start()

    def _watch(self) -> None:
        time.sleep(self._delay)
        self.sent = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)
        if self._over.wait(HANGS_AFTER_SECONDS):
            return
        self.hung = True
        faulthandler.dump_traceback()
        for feed in feeds:
            feed.stop("it hangs")
        if not self._over.wait(HANGS_AFTER_SECONDS):
            os._exit(9)

    def end(self) -> None:
        """Wait for the sender, whatever is still raised."""
        while self._thread.is_alive():
            try:
                self._over.set()
                self._thread.join()
            except KeyboardInterrupt:
                self.more += 1


def threads_left() -> int:
    """Return how many threads of ours stay."""
    gc.collect()
    threads = [each for each in threading.enumerate() if each.name.startswith("asyncfeed")]
    for each in threads:
        each.join(2)
    return sum(each.is_alive() for each in threads)


def attempt(way: Callable[[Any], Any], pipeline: Any, delay: float) -> tuple[str, float]:
    """Return how one try ended, and how many seconds after the signal."""
    feeds.clear()
    came, ended, one = "the end", 0.0, Try(delay)
    try:
        try:
            one.begin()
            way(pipeline)
        except BaseException as error:
            ended = time.perf_counter()
            came = type(error).__name__
            if not isinstance(error, KeyboardInterrupt):
                print("".join(traceback.format_exception(error))[-3000:], file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        one.more += 1
    one.end()
    came += f", {one.more} more" if one.more else ""
    left = threads_left()
    came += f", {left} threads left" if left else ""
    return f"a hang, then {came}" if one.hung else came, ended - one.sent


def main() -> None:
    """Try, and print what came."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--moments", default=",".join(MOMENTS))
    parser.add_argument("--longest", type=float, default=0.06, help="the longest delay in seconds")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
    rng = random.Random(given.seed)
    list(dataset(af.items(range(3))))
    for way, moment in itertools.product(given.ways.split(","), given.moments.split(",")):
        longest = given.longest * (FIT_BEGINS if way.startswith("fit") else 1)
        attempt(WAYS[way], MOMENTS[moment], WARM_UP_SECONDS)
        delays = (rng.uniform(0, longest) for _ in range(given.rounds))
        tries = [attempt(WAYS[way], MOMENTS[moment], delay) for delay in delays]
        seconds = sorted(seconds for _, seconds in tries)
        told = {
            "way": way,
            "moment": moment,
            "came": collections.Counter(came for came, _ in tries),
            "median": seconds[len(seconds) // 2],
            "worst": seconds[-1],
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
