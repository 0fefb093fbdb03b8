"""Queue runners: threads that count, and threads that put the count into a queue.

Follows document 002, "Threads and queues", its examples of a queue runner with and without a coordinator. Both
race: two threads add to a counter while two others enqueue whatever it is, so the document prints 3, 6, 11 and
next time something else. Without a coordinator the threads go on for ever, and because `create_threads` makes no
daemons of them, the program never ends; here closing the session ends them.

Ours is a queue runner, too, in the same graph and session. What it puts in are the items of a pipeline, in
order.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import numpy as np
import tensorflow as tf

import asyncfeed as af

v1 = tf.compat.v1
COUNT = 10


def old_runner(queue: Any) -> Any:
    """Return a runner of four threads: two count, two enqueue."""
    counter = v1.get_variable("counter", [], initializer=v1.zeros_initializer())
    count, put = v1.assign_add(counter, 1.0), queue.enqueue(counter)
    return v1.train.QueueRunner(queue, [count, put] * 2)


def our_runner(queue: Any) -> Any:
    """Return a runner that enqueues 1, 2, 3, ... without end."""
    return af.items(lambda: itertools.count(1)).map(np.float32).to_queue_runner(queue)


def coordinated(make_runner: Any) -> list[float]:
    """Return the first ten elements; the coordinator stops the threads and waits for them."""
    with tf.Graph().as_default(), v1.Session() as sess:
        queue = tf.queue.FIFOQueue(COUNT, [tf.float32], [()])
        runner, front = make_runner(queue), queue.dequeue()
        sess.run(v1.global_variables_initializer())
        coord = tf.train.Coordinator()
        threads = runner.create_threads(sess, coord=coord, start=True)
        got = [float(sess.run(front)) for _ in range(COUNT)]
        coord.request_stop()
        coord.join(threads)
    return got


def alone(make_runner: Any) -> list[float]:
    """Return the first ten elements; closing the session ends the threads."""
    with tf.Graph().as_default():
        queue = tf.queue.FIFOQueue(COUNT, [tf.float32], [()])
        runner, front = make_runner(queue), queue.dequeue()
        sess = v1.Session()
        threads = runner.create_threads(sess, daemon=True, start=True)
        got = [float(sess.run(front)) for _ in range(COUNT)]
        sess.close()
        for thread in threads:
            thread.join()
    return got


def main() -> None:
    print(f"old, with a coordinator: {len(coordinated(old_runner))} numbers, others each time")
    print("ours, with a coordinator:", *coordinated(our_runner))
    print("ours, without:", *alone(our_runner))


if __name__ == "__main__":
    main()
