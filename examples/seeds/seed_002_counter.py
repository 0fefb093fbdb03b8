"""A queue as a counter: take an element from its front, add two, put it back at its end.

Follows document 002, "Threads and queues", its example of a FIFO queue, and prints what that prints. Ours is the
same queue in plain Python, for tasks and threads, without a graph and a session.
"""

from __future__ import annotations

import asyncio
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import tensorflow as tf

from asyncfeed.queues import FIFOQueue

START, TIMES = (0.1, 0.2, 0.3), 2


def old() -> list[float]:
    """Return what is in the queue at the end."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
        queue = tf.queue.FIFOQueue(3, [tf.float32], [()])
        fill, size = queue.enqueue_many([START]), queue.size()
        front = queue.dequeue()
        again = queue.enqueue(front + 2)
        sess.run(fill)
        for _ in range(TIMES):
            sess.run(again)
        return [float(sess.run(front)) for _ in range(sess.run(size))]


async def ours() -> list[float]:
    """Return what is in the queue at the end."""
    queue = FIFOQueue(3, "float32", shapes=[()])
    await queue.enqueue_many([START])  # as in TensorFlow: one list for each component
    for _ in range(TIMES):
        await queue.enqueue(await queue.dequeue() + 2)
    await queue.close()
    return [float(each) async for each in queue]


def main() -> None:
    print("old:", *(f"{each:.1f}" for each in old()))
    print("ours:", *(f"{each:.1f}" for each in asyncio.run(ours())))


if __name__ == "__main__":
    main()
