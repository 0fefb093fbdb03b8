"""A queue that shuffles: ten elements go in, eight come out in a random order.

Follows document 002, "Threads and queues", its example of a shuffle queue. It takes eight and not ten because
two stay in the queue to choose from: the ninth dequeue would wait until there are more, or until the queue is
closed.

Ours is the same queue, and the same as a stage of a pipeline: `shuffle(buffer=...)` gives all ten. Without a
buffer, where items can be reached by number, the order is an exact permutation and takes no memory.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import tensorflow as tf

import asyncfeed as af
from asyncfeed.queues import RandomShuffleQueue

COUNT, LEFT = 10, 2


def old() -> list[int]:
    """Return what comes out of TensorFlow's queue."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
        queue = tf.queue.RandomShuffleQueue(COUNT, LEFT, [tf.int64], [()])
        fill, front, close = queue.enqueue_many([range(COUNT)]), queue.dequeue(), queue.close()
        sess.run(fill)
        got = [int(sess.run(front)) for _ in range(COUNT - LEFT)]
        sess.run(close)
        return got + [int(sess.run(front)) for _ in range(LEFT)]  # it is closed: the last two come out, too


def ours() -> list[int]:
    """Return what comes out of our queue."""
    queue = RandomShuffleQueue(COUNT, LEFT, "int64", shapes=[()], seed=1)
    queue.enqueue_many_nowait(range(COUNT))
    got = [int(queue.dequeue_nowait()) for _ in range(COUNT - LEFT)]
    queue.close_nowait()
    return got + [int(each) for each in queue]


def main() -> None:
    stream, exact = af.items(range(COUNT)).shuffle(seed=1, buffer=8), af.items(range(COUNT)).shuffle(seed=1)
    for name, got in (("old", old()), ("ours", ours()), ("buffer", list(stream)), ("exact", list(exact))):
        print(f"{name}:", *got)


if __name__ == "__main__":
    main()
