"""Triplet training: each sample is three files, input, output and length, in a padding queue.

Follows document 000, "Problems of multi-threaded training": ten threads draw names from one generator under a
lock, load the files, and run an enqueue op for each sample. The old way is `old_names` and `old_enqueue`. It has
an off-by-one: the last file of each shuffle is never read. And its threads look for a stop only between two
enqueues, so one that waits in a full queue stays there until somebody closes the queue.

Ours is the same queue and the same training, fed by `train.enqueue(...)`; then the same without a queue.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import numpy as np
import tensorflow as tf

import asyncfeed as af

v1 = tf.compat.v1
FILES, BATCH, STEPS, THREADS = 48, 8, 12, 10
INPUTS, OUTPUTS = 3, 2
PARTS = ("in", "out", "len")


def write_files(folder: Path, count: int = FILES) -> None:
    """Write sequences of 2 to 9 rows of inputs, what is to be learned of them, and their lengths."""
    rng = np.random.default_rng(0)
    for part in PARTS:
        (folder / part).mkdir(parents=True)
    truth = rng.normal(size=(INPUTS, OUTPUTS))
    for number in range(count):
        length = int(rng.integers(2, 10))
        inputs = rng.normal(size=(length, INPUTS))
        sample = (inputs, inputs @ truth, np.array([length]))
        for part, array, dtype in zip(PARTS, sample, (np.float32, np.float32, np.int32), strict=True):
            np.save(folder / part / f"{number:04}.npy", array.astype(dtype))


# -- the old way


def old_names(names: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Yield names for ever, shuffled anew for each epoch: but for the last of each."""
    names, rng = list(names), random.Random(seed)
    rng.shuffle(names)
    count = 0
    while True:
        if count == len(names) - 1:  # one too early
            rng.shuffle(names)
            count = 0
        yield names[count]
        count += 1


def old_enqueue(
    sess: Any, op: Any, placeholders: Sequence[Any], folder: Path, coord: Any
) -> list[threading.Thread]:
    """Start ten threads that load and enqueue one sample at a time."""
    names, lock = old_names(sorted(path.name for path in (folder / "in").iterdir())), threading.Lock()

    def work() -> None:
        try:
            while not coord.should_stop():
                with lock:
                    name = next(names)
                arrays = [np.load(folder / part / name) for part in PARTS]
                shapes = ((-1, INPUTS), (-1, OUTPUTS), (1,))
                fed = {key: array.reshape(to) for key, array, to in zip(placeholders, arrays, shapes, strict=True)}
                sess.run(op, fed)
        except tf.errors.CancelledError:
            pass  # the queue was closed while this waited for room

    threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    return threads


# -- ours


def samples(folder: Path) -> af.Pipeline[Any]:
    """Return the triplets of one epoch, shuffled; two lists of files that do not match are an error."""
    return af.zip(*(af.files(f"{folder}/{part}/*.npy") for part in PARTS)).shuffle(seed=0).load(af.npy)


# -- the training


class Trainer:
    """A linear model that trains on padded batches out of a queue, in a graph."""

    def __init__(self) -> None:
        self.queue = tf.queue.PaddingFIFOQueue(
            2 * BATCH, [tf.float32, tf.float32, tf.int32], [(None, INPUTS), (None, OUTPUTS), (1,)]
        )
        self.placeholders = [
            v1.placeholder(dtype, shape) for dtype, shape in zip(self.queue.dtypes, self.queue.shapes, strict=True)
        ]
        self.enqueue_op = self.queue.enqueue(self.placeholders)
        self.cancel_op = self.queue.close(cancel_pending_enqueues=True)
        weights = v1.get_variable("weights", [INPUTS, OUTPUTS], initializer=v1.zeros_initializer())
        inputs, outputs, lengths = self.queue.dequeue_many(BATCH)
        mask = tf.sequence_mask(lengths[:, 0], dtype=tf.float32)[..., None]
        errors = mask * (tf.einsum("bti,io->bto", inputs, weights) - outputs)
        self.loss = tf.reduce_sum(errors**2) / tf.reduce_sum(mask)
        self.step_op = v1.train.GradientDescentOptimizer(0.1).minimize(self.loss)

    def run(self, sess: Any, coord: Any) -> list[float]:
        """Train for some steps; return the losses."""
        losses = []
        while len(losses) < STEPS and not coord.should_stop():
            losses.append(float(sess.run([self.loss, self.step_op])[0]))
        return losses


def train(folder: Path, *, old: bool) -> list[float]:
    """Train, with the files brought in the old way or ours; nothing else differs."""
    with tf.Graph().as_default(), v1.Session() as sess:
        trainer, coord = Trainer(), tf.train.Coordinator()
        sess.run(v1.global_variables_initializer())
        if old:
            threads = old_enqueue(sess, trainer.enqueue_op, trainer.placeholders, folder, coord)
        else:
            threads = samples(folder).repeat().enqueue(sess, trainer.enqueue_op, trainer.placeholders, coord=coord)
        losses = trainer.run(sess, coord)
        coord.request_stop()
        if old:
            sess.run(trainer.cancel_op)  # or the threads stay in a full queue, and `join` gives up on them
        coord.join(threads)
    return losses


def train_today(folder: Path) -> list[float]:
    """Train without a graph, a session or a queue: batches padded by the pipeline, as a `tf.data.Dataset`."""
    weights = tf.Variable(tf.zeros([INPUTS, OUTPUTS]))
    losses = []
    for inputs, outputs, lengths in samples(folder).repeat().batch(BATCH).pad().take(STEPS).to_tf():
        mask = tf.sequence_mask(lengths[:, 0], tf.shape(inputs)[1], dtype=tf.float32)[..., None]
        with tf.GradientTape() as tape:
            errors = mask * (tf.einsum("bti,io->bto", inputs, weights) - outputs)
            loss = tf.reduce_sum(errors**2) / tf.reduce_sum(mask)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        losses.append(float(loss))
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_files(folder)
        names = sorted(path.name for path in (folder / "in").iterdir())
        one_epoch = {name for name, _ in zip(old_names(names), range(len(names) - 1), strict=False)}
        print(f"old: an epoch reads {len(one_epoch)} of {len(names)} files, and then begins anew")
        ours = sum(1 for _ in samples(folder))
        print(f"ours: an epoch reads {ours} of {len(names)} files")
        for name, losses in (
            ("old", train(folder, old=True)),
            ("ours, same queue", train(folder, old=False)),
            ("ours, no queue", train_today(folder)),
        ):
            print(f"{name}: {len(losses)} steps, the loss fell: {losses[-1] < losses[0] / 2}")


if __name__ == "__main__":
    main()
