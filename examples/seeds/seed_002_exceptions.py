"""Errors: the training loop reports its own to the coordinator, and `join` raises what went wrong first.

Follows document 002, "Threads and queues", its training loop with `except Exception as e:
coord.request_stop(e)`. The reading fails at the fourth sample. The loop sees only that the queue is closed;
`join` says why.

In the old way the reading is a Python function inside of the graph, so its exception arrives as an error of
TensorFlow's with the original as text. Ours arrives as it was raised, and names the item.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import numpy as np
import tensorflow as tf

import asyncfeed as af

v1 = tf.compat.v1
COUNT, BROKEN = 8, 3


def read(number: int) -> np.ndarray:
    """Read a sample; one is broken."""
    if number == BROKEN:
        raise ValueError(f"sample {number} is broken")
    return np.full(2, number, np.float32)


def old_runner(queue: Any) -> Any:
    """Return a runner of one thread, which reads numbers from another queue that is filled by a runner, too."""
    numbers = v1.train.range_input_producer(COUNT, num_epochs=1, shuffle=False).dequeue()
    sample = tf.numpy_function(lambda number: read(int(number)), [numbers], tf.float32)
    sample.set_shape([2])
    return v1.train.QueueRunner(queue, [queue.enqueue(sample)])


def our_runner(queue: Any) -> Any:
    """Return a runner over a pipeline."""
    return af.items(range(COUNT)).map(read).to_queue_runner(queue)


def train(make_runner: Any) -> None:
    """Run the training loop of the document, and print how it ended."""
    with tf.Graph().as_default(), v1.Session() as sess:
        queue = tf.queue.FIFOQueue(COUNT, [tf.float32], [(2,)])
        v1.train.add_queue_runner(make_runner(queue))
        step = tf.reduce_sum(queue.dequeue())
        sess.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        coord = tf.train.Coordinator()
        threads = v1.train.start_queue_runners(sess, coord)
        try:
            while True:
                sess.run(step)
        except Exception as error:  # noqa: BLE001 - the document's loop reports whatever it is
            print(f"the loop ends with {type(error).__name__}")
            coord.request_stop(error)
        coord.request_stop()  # asking twice does no harm
        try:
            coord.join(threads)
        except Exception as error:  # noqa: BLE001 - to show what it is
            # What TensorFlow makes of it has the traceback, too.
            message = next(line for line in str(error).splitlines() if "broken" in line)
            print(f"join raises {type(error).__name__}: {message}")


def main() -> None:
    print("old")
    train(old_runner)
    print("ours")
    train(our_runner)


if __name__ == "__main__":
    main()
