"""Slices, epochs and batches: five images, two epochs, batches of three.

Follows document 001, on coordinators and queue runners, with the batches that it prints: [0 1 2], [3 4 0], [1 2
3]. Ten samples make three batches of three: the tenth is lost, in both ways, because both were told to drop what
makes no whole batch (`allow_smaller_final_batch=False`, `drop_remainder=True`). Ours keeps it by default.

The old way here has one thread where the document has two: with two, the order of the batches varies.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import numpy as np
import tensorflow as tf

import asyncfeed as af

v1 = tf.compat.v1
SAMPLES, EPOCHS, BATCH = 5, 2, 3


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Return images and their labels."""
    images = np.random.default_rng(0).random((SAMPLES, 224, 224, 3), np.float32)
    return images, np.arange(SAMPLES, dtype=np.int32)


def old() -> None:
    """Print the batches of two queues: one of slices, one that makes batches of them."""
    with tf.Graph().as_default(), v1.Session() as sess:
        slices = v1.train.slice_input_producer(make_data(), num_epochs=EPOCHS, shuffle=False)
        batches = v1.train.batch(slices, BATCH, num_threads=1, capacity=64, allow_smaller_final_batch=False)
        sess.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        coord = tf.train.Coordinator()
        threads = v1.train.start_queue_runners(sess, coord)
        try:
            while not coord.should_stop():
                images, labels = sess.run(batches)
                print(images.shape, labels)
        except tf.errors.OutOfRangeError:
            print("done")
        finally:
            coord.request_stop()
        coord.join(threads)


def ours(*, drop_remainder: bool) -> None:
    """Print the batches of a pipeline; leaving the `with` block stops it."""
    with af.arrays(*make_data()).repeat(EPOCHS).batch(BATCH, drop_remainder=drop_remainder).open() as feed:
        for images, labels in feed:
            print(images.shape, labels)
    print("done")


def main() -> None:
    print("old")
    old()
    print("ours")
    ours(drop_remainder=True)
    print("ours, with the tail")
    ours(drop_remainder=False)


if __name__ == "__main__":
    main()
