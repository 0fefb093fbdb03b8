"""Threads that stop together: ten loops, and whichever is done first stops them all.

Follows document 002, "Threads and queues", its loop `while not coord.should_stop()`. (The document starts its
threads with `args=(coord)`, which is no tuple; it must be `(coord,)`.) The loop runs unchanged under our
coordinator, which coordinates asyncio tasks as well: they wait for the stop, or are cancelled by it, and look at
nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported, or it is too late

import tensorflow as tf

import asyncfeed as af

THREADS, ENOUGH = 10, 1000


def loop(coord: Any, ready: threading.Barrier, counts: list[int], place: int) -> None:
    """Count until somebody asks for a stop; the fifth asks for it when it has counted enough."""
    ready.wait()
    while not coord.should_stop():
        counts[place] += 1
        if place == 5 and counts[place] == ENOUGH:
            coord.request_stop()


def run(coord: Any) -> list[int]:
    """Run ten loops under a coordinator, old or ours; return how far each counted."""
    counts, ready = [0] * THREADS, threading.Barrier(THREADS)
    threads = [threading.Thread(target=loop, args=(coord, ready, counts, place)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    coord.join(threads)
    return counts


async def tasks() -> int:
    """Run ten tasks that wait for what never comes, and one that asks for a stop; return how many were stopped."""
    stopped = 0

    async def wait() -> None:
        nonlocal stopped
        try:
            await asyncio.Event().wait()
        finally:
            stopped += 1

    async with af.Coordinator() as coord:
        for _ in range(THREADS):
            coord.register_task(asyncio.create_task(wait()))
        await asyncio.sleep(0)  # let them begin
        coord.request_stop()
    return stopped


def main() -> None:
    for name, coord in (("old", tf.train.Coordinator()), ("ours", af.Coordinator())):
        print(f"{name}: {len(run(coord))} threads have ended, the fifth at {ENOUGH}:", coord.should_stop())
    print(f"ours: {asyncio.run(tasks())} tasks have ended")


if __name__ == "__main__":
    main()
