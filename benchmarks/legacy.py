"""Triplets of files into a queue of TensorFlow's: `to_queue_runner` beside ten threads that enqueue by hand.

What the threads do is what scripts of that time do: one generator of names under a lock, `np.load` of three
files, one `sess.run(enqueue_op, feed_dict)` for each sample, into a padding queue. The trainer is the same for
all and only counts: it takes 32 samples at a time out of the queue, padded. Files are in the page cache.

    python benchmarks/legacy.py [--help] [--quick] [--rows equal] [--markdown FILE]
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
from harness import Contender, Row, Run, WrongError
from report import Section

import asyncfeed as af

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

v1 = tf.compat.v1
PACKAGES = ("asyncfeed", "numpy", "tensorflow")
PARTS = ("in", "out", "len")
FILES, BATCH, THREADS = 2_000, 32, 10
INPUTS, OUTPUTS = 16, 4
WHOLE, SINGLE, BY_HAND = "asyncfeed", "asyncfeed, samples", "ten threads"
Consume = Callable[[Any], None]
Fill = Callable[[Any, Any], list[threading.Thread]]


def write_files(folder: Path, lengths: Iterator[int]) -> None:
    """Write the triplets; each array holds its sample's number."""
    for part in PARTS:
        (folder / part).mkdir(parents=True)
    for number in range(FILES):
        length = next(lengths)
        np.save(folder / "in" / f"{number:05}.npy", np.full((length, INPUTS), number, np.float32))
        np.save(folder / "out" / f"{number:05}.npy", np.full((length, OUTPUTS), number, np.float32))
        np.save(folder / "len" / f"{number:05}.npy", np.array([length], np.int32))


# -- the contenders: each makes its ops in the graph, and returns what starts its threads


@cache
def samples(folder: Path) -> af.Pipeline[Any]:
    """Return the triplets, shuffled in each epoch, without end; described once, as the files are listed then."""
    names = af.zip(*(af.files(f"{folder}/{part}/*.npy") for part in PARTS))
    return names.shuffle(seed=0).repeat().load(af.npy)


def batches(queue: Any, folder: Path) -> Fill:
    """Fill the queue with whole batches, padded where they need it."""
    ragged = folder.name == "ragged"
    together = samples(folder).batch(64)
    runner = (together.pad() if ragged else together).to_queue_runner(queue)
    return lambda sess, coord: runner.create_threads(sess, coord, start=True)


def singles(queue: Any, folder: Path) -> Fill:
    """Fill the queue with our reads, but one sample at a time."""
    runner = samples(folder).to_queue_runner(queue)
    return lambda sess, coord: runner.create_threads(sess, coord, start=True)


def by_hand(queue: Any, folder: Path) -> Fill:
    """Fill the queue from ten threads."""
    placeholders = [v1.placeholder(*each) for each in zip(queue.dtypes, queue.shapes, strict=True)]
    op = queue.enqueue(placeholders)
    lock = threading.Lock()

    def drawn() -> Iterator[str]:
        names = sorted(path.name for path in (folder / "in").iterdir())
        random.shuffle(names)
        count = 0
        while True:
            if count == len(names) - 1:
                random.shuffle(names)
                count = 0
            yield names[count]
            count += 1

    def work(sess: Any, coord: Any, names: Iterator[str]) -> None:
        try:
            while not coord.should_stop():
                with lock:
                    name = next(names)
                arrays = [np.load(os.path.join(folder, part, name)) for part in PARTS]
                shapes = ((-1, INPUTS), (-1, OUTPUTS), (1,))
                fed = {key: array.reshape(to) for key, array, to in zip(placeholders, arrays, shapes, strict=True)}
                sess.run(op, feed_dict=fed)
        except tf.errors.CancelledError:
            pass

    def start(sess: Any, coord: Any) -> list[threading.Thread]:
        names = drawn()
        threads = [threading.Thread(target=work, args=(sess, coord, names), daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        return threads

    return start


def trained(fill: Callable[[Any, Path], Fill]) -> Run:
    """Return a run: make the graph, start the threads, take batches, stop."""

    def run(folder: Any, items: int, consume: Consume) -> None:
        with tf.Graph().as_default(), v1.Session() as sess:
            queue = tf.queue.PaddingFIFOQueue(
                256, [tf.float32, tf.float32, tf.int32], [(None, INPUTS), (None, OUTPUTS), (1,)]
            )
            start, taken = fill(queue, folder), queue.dequeue_many(BATCH)
            cancel = queue.close(cancel_pending_enqueues=True)
            # Without the conversion of the batch to Python, which is no part of filling the queue.
            step = tf.stack([tf.reduce_sum(each[:, 0, :1], 1) for each in taken[:2]])
            coord = tf.train.Coordinator()
            threads = start(sess, coord)
            for left in range(items, 0, -BATCH):
                consume(sess.run(step)[0][:left])
            coord.request_stop()
            sess.run(cancel)
            coord.join(threads)

    return run


CONTENDERS = [
    Contender(BY_HAND, {"": trained(by_hand)}, ordered=False),
    Contender(SINGLE, {"": trained(singles)}, ordered=False, note="`to_queue_runner` of samples, one by one"),
    Contender(WHOLE, {"": trained(batches)}, ordered=False, note="`to_queue_runner` of batches of 64"),
]


def check(contender: Contender, folder: Any) -> None:
    """Raise unless all samples are of the files, and none comes again before the others of its epoch."""
    for run in contender.settings.values():
        got: list[float] = []
        run(folder, FILES // 2 // BATCH * BATCH, lambda batch, got=got: got.extend(batch.tolist()))
        if len(set(got)) != len(got) or not set(got) <= set(map(float, range(FILES))):
            raise WrongError(f"{contender.name} lost or repeated samples")


LENGTHS: dict[str, Callable[[], Iterator[int]]] = {
    "equal": lambda: itertools.repeat(24),
    "ragged": lambda: iter(np.random.default_rng(0).integers(1, 49, FILES).tolist()),
}


def measure(row: str, *, quick: bool) -> Section:
    """Measure one row, its contenders in turns."""
    section = Section(f"Legacy queues: {row} triplets", PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / row
        write_files(work, LENGTHS[row]())
        entries = [harness.enter(each, work, 0.5 if quick else 2.0, check=check) for each in CONTENDERS]
        times = harness.race(entries, work, 3 if quick else 5, within=30)
    section.tables.append(
        harness.side_by_side(entries, times, base=WHOLE, unit="samples/s", value=lambda seconds: 1 / seconds)
    )
    section.remarks += [f"{entry.name}: {entry.note}." for entry in entries if entry.note]
    if goal := harness.faster(times, WHOLE, [BY_HAND], 10):
        section.goals.append(goal)
    return section


ROWS = {
    "equal": Row(
        "triplets of 24 rows of 16 float32 (1.5 KB) with as many of 4, and their length",
        *(40, partial(measure, "equal")),
    ),
    "ragged": Row("the same with 1 to 48 rows, padded", 40, partial(measure, "ragged")),
}


if __name__ == "__main__":
    harness.main("Triplets of files into a queue of TensorFlow's.", ROWS)
