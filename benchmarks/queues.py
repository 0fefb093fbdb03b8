"""What an element costs in a queue: ours beside TensorFlow's own in eager mode, and asyncio's and Python's.

A FIFO queue of 8 float32 values, one element at a time, given in batches to a consumer that counts.

    python benchmarks/queues.py [--help] [--quick] [--rows task] [--markdown FILE]
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import harness
import numpy as np
from harness import Contender, Row, Run
from report import Section

from asyncfeed.queues import FIFOQueue

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PACKAGES = ("asyncfeed", "numpy", "tensorflow")
BATCH = 32
ROOM = 32
WIDTH = 8
OURS = "asyncfeed"
OURS_THREADS = "asyncfeed, threads"
TF = "tf.queue, arrays"
TF_TENSORS = "tf.queue, tensors"
PLAIN = "asyncio.Queue"
PLAIN_THREADS = "queue.Queue"
Consume = Callable[[Any], None]


def elements(items: int) -> list[np.ndarray]:
    """Return the elements: each holds its number."""
    return list(np.repeat(np.arange(items, dtype=np.float32)[:, None], WIDTH, axis=1))


def in_batches(items: int, take: Callable[[], Any], consume: Consume) -> None:
    """Take items one by one; hand them on 32 at a time, as the harness counts them."""
    for start in range(0, items, BATCH):
        consume([take() for _ in range(min(BATCH, items - start))])


# -- one after the other: task


def asyncio_turns(make: Callable[[int], Any], put: str, get: str) -> Run:
    """Return a run in which one task puts and gets each element."""

    def run(_work: Any, items: int, consume: Consume) -> None:
        async def main() -> None:
            line, values = make(ROOM), elements(items)
            enqueue, dequeue = getattr(line, put), getattr(line, get)
            for start in range(0, items, BATCH):
                batch = []
                for value in values[start : start + BATCH]:
                    await enqueue(value)
                    batch.append(await dequeue())
                consume(batch)

        asyncio.run(main())

    return run


def thread_turns(
    make: Callable[[int], Any], put: str, get: str, convert: Callable[[Any], Any] | None = None
) -> Run:
    """Return a run in which one thread puts and gets each element."""

    def run(_work: Any, items: int, consume: Consume) -> None:
        line, values = make(ROOM), elements(items)
        enqueue, dequeue = getattr(line, put), getattr(line, get)
        if convert is not None:
            values = [convert(value) for value in values]
        for start in range(0, items, BATCH):
            batch = []
            for value in values[start : start + BATCH]:
                enqueue(value)
                batch.append(dequeue())
            consume(batch)

    return run


# -- from one to another: between


def asyncio_between(make: Callable[[int], Any], put: str, get: str) -> Run:
    """Return a run from one task to another."""

    def run(_work: Any, items: int, consume: Consume) -> None:
        async def main() -> None:
            line = make(ROOM)
            enqueue, dequeue = getattr(line, put), getattr(line, get)

            async def produce() -> None:
                for value in elements(items):
                    await enqueue(value)

            producer = asyncio.create_task(produce())
            for start in range(0, items, BATCH):
                consume([await dequeue() for _ in range(min(BATCH, items - start))])
            await producer

        asyncio.run(main())

    return run


def thread_between(make: Callable[[int], Any], put: str, get: str) -> Run:
    """Return a run from one thread to another."""

    def run(_work: Any, items: int, consume: Consume) -> None:
        line = make(ROOM)
        enqueue = getattr(line, put)

        def produce() -> None:
            for value in elements(items):
                enqueue(value)

        producer = threading.Thread(target=produce, daemon=True)
        producer.start()
        in_batches(items, getattr(line, get), consume)
        producer.join()

    return run


# -- whole batches


def many(make: Callable[[int], Any], suffix: str) -> Run:
    """Return a run in which a thread puts and gets 32 elements at a time."""

    def run(_work: Any, items: int, consume: Consume) -> None:
        line, values = make(ROOM), np.array(elements(items))
        enqueue, dequeue = getattr(line, f"enqueue_many{suffix}"), getattr(line, f"dequeue_many{suffix}")
        for start in range(0, items, BATCH):
            batch = values[start : start + BATCH]
            enqueue((batch,))
            consume(np.asarray(dequeue(len(batch)))[:, 0])

    return run


# -- the rows


def ours(room: int) -> FIFOQueue:
    return FIFOQueue(room, "float32", shapes=[(WIDTH,)])


def contenders(row: str) -> Mapping[str, Callable[[], Iterable[Contender]]]:
    """Return who takes part in a row."""

    def theirs() -> Callable[[int], Any]:
        import tensorflow as tf

        return lambda room: tf.queue.FIFOQueue(room, tf.float32, shapes=[(WIDTH,)])

    def tensors() -> Iterable[Contender]:
        import tensorflow as tf

        note = "the elements are tensors before the clock starts to count them"
        yield Contender(TF_TENSORS, {"": thread_turns(theirs(), "enqueue", "dequeue", tf.constant)}, note=note)

    def one(name: str, run: Callable[[], Run]) -> Callable[[], Iterable[Contender]]:
        return lambda: [Contender(name, {"": run()})]

    if row == "batches":
        return {
            OURS: one(OURS, lambda: many(ours, "_blocking")),
            TF: one(TF, lambda: many(theirs(), "")),
        }
    in_task, in_thread = (asyncio_turns, thread_turns) if row == "task" else (asyncio_between, thread_between)
    found: dict[str, Callable[[], Iterable[Contender]]] = {
        OURS: one(OURS, lambda: in_task(ours, "enqueue", "dequeue")),
        OURS_THREADS: one(OURS_THREADS, lambda: in_thread(ours, "enqueue_blocking", "dequeue_blocking")),
        TF: one(TF, lambda: in_thread(theirs(), "enqueue", "dequeue")),
        PLAIN: one(PLAIN, lambda: in_task(asyncio.Queue, "put", "get")),
        PLAIN_THREADS: one(PLAIN_THREADS, lambda: in_thread(queue.Queue, "put", "get")),
    }
    if row == "task":
        found[TF_TENSORS] = tensors
    return found


TITLES = {
    "task": "Queues: enqueue an element, dequeue it again",
    "between": "Queues: from one task or thread to another, element by element",
    "batches": "Queues: 32 elements at a time",
}


def check(contender: Contender, work: Any, items: int = 1_003) -> None:
    """Raise unless every element arrives, in order."""
    for run in contender.settings.values():
        batches: list[Any] = []
        run(work, items, batches.append)
        if [float(np.ravel(each)[0]) for batch in batches for each in batch] != list(range(items)):
            raise harness.WrongError(f"{contender.name} lost, repeated or moved elements")


def measure(row: str, *, quick: bool) -> Section:
    """Measure one row, its contenders in turns."""
    section = Section(TITLES[row], PACKAGES)
    found, missing = harness.available(contenders(row).values())
    harness.forget_heap()
    entries = [harness.enter(each, None, 0.1 if quick else 1.0, check=check) for each in found]
    times = harness.race(entries, None, 3 if quick else 5, within=20)
    section.tables.append(
        harness.side_by_side(entries, times, base=OURS, unit="us/element", value=lambda seconds: seconds * 1e6)
    )
    section.remarks += [f"{entry.name}: {entry.note}." for entry in entries if entry.note]
    section.remarks += missing
    least = 1 if row == "batches" else 10
    for mine in (OURS, OURS_THREADS):
        if goal := harness.faster(times, mine, [TF, TF_TENSORS], least):
            section.goals.append(goal)
    return section


ROWS = {
    "task": Row(
        "one task, or one thread, enqueues an element and dequeues it again; TensorFlow's do so in a thread",
        *(35, partial(measure, "task")),
    ),
    "between": Row(
        "from one task to another, or from one thread to another, through a queue of 32",
        *(30, partial(measure, "between")),
    ),
    "batches": Row("`enqueue_many` and `dequeue_many` of 32, in one thread", 20, partial(measure, "batches")),
}


if __name__ == "__main__":
    harness.main("Queues, element by element.", ROWS)
