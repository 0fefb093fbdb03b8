"""A census of threads: which of them live after `start_queue_runners`, and which after a stop.

Follows document 004, on `start_queue_runners`, which counts 18 threads and, with a coordinator, 31, and takes
that for what the function starts. It is not: 5 were the notebook's, and 13 belonged to producers that earlier
cells had left in the graph. The function starts one thread for each enqueue op of each runner, and one more for
each runner that has a coordinator to wait for: none in an empty graph, 13 or 26 with 13 producers. And without a
coordinator nobody stops them but closing the session.

Ours has one thread that enqueues, one that waits for the stop, and those of the run; all are named, and gone
after `join`.
"""

from __future__ import annotations

import os
import threading
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import tensorflow as tf

import asyncfeed as af

v1 = tf.compat.v1


def census(before: set[threading.Thread]) -> list[str]:
    """Return the names of the threads that have come since and live."""
    return sorted(thread.name for thread in set(threading.enumerate()) - before)


def old(producers: int, *, coordinated: bool) -> tuple[int, int, int]:
    """Return how many threads live: started, after what stops them was called, and joined."""
    before = set(threading.enumerate())
    with tf.Graph().as_default():
        for _ in range(producers):
            v1.train.input_producer(tf.range(4))
        sess = v1.Session()
        sess.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        coord = tf.train.Coordinator() if coordinated else None
        threads = v1.train.start_queue_runners(sess, coord) if producers else []
        started = len(census(before))
        if coord is not None:
            coord.request_stop()
            coord.join(threads)
        stopped = len(census(before))
        # Without a coordinator each thread ends with an error that Python prints.
        hook, threading.excepthook = threading.excepthook, lambda _: None
        try:
            sess.close()
            for thread in threads:
                thread.join()
        finally:
            threading.excepthook = hook
    return started, stopped, len(census(before))


def ours() -> tuple[list[str], list[str]]:
    """Return the names of our threads while they run and after the stop."""
    before = set(threading.enumerate())
    with tf.Graph().as_default(), v1.Session() as sess:
        queue = tf.queue.FIFOQueue(4, [tf.int64], [()], name="numbers")
        v1.train.add_queue_runner(af.items(range(1000)).repeat().to_queue_runner(queue))
        front: Any = queue.dequeue()
        coord = tf.train.Coordinator()
        threads = v1.train.start_queue_runners(sess, coord)
        sess.run(front)
        started = census(before)
        coord.request_stop()
        coord.join(threads)
    return started, census(before)


def main() -> None:
    for producers, coordinated in ((0, False), (13, False), (13, True)):
        started, stopped, closed = old(producers, coordinated=coordinated)
        with_ = "with" if coordinated else "without"
        print(f"old, {producers} producers {with_} a coordinator: {started} threads,", end=" ")
        print(f"{stopped} after the stop, {closed} after the session is closed")
    started_names, stopped_names = ours()
    print("ours:", *started_names)
    print(f"ours: {len(stopped_names)} after the stop")


if __name__ == "__main__":
    main()
