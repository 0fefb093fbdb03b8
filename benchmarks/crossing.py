"""From Python into `tf.data`: `to_tf()` beside `from_generator`, both over the same ready objects.

What is compared is the crossing alone. The objects are ready in a list, the consumer is a graph that counts the
elements (`Dataset.reduce`), as a training step in a graph takes them, so Python is needed only on the way in.
Each kind of element is measured without and with another thread that computes in Python all the time; with it,
whoever wants the GIL waits up to the switch interval of 5 ms.

    python benchmarks/crossing.py [--help] [--quick] [--rows scalars] [--markdown FILE]
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import harness
import numpy as np
from harness import Contender, Entry, Made, Row, WrongError
from report import Goal, Section

import asyncfeed as af

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

PACKAGES = ("asyncfeed", "numpy", "tensorflow")
OURS, THEIRS = "asyncfeed", "from_generator"
COPIED, BUSY = ", not aligned", ", a busy thread"
UNTUNED = tf.data.Options()
UNTUNED.autotune.enabled = False
"""Where it tunes, TensorFlow may miss that an iterator has ended, and wait until it looks again: to 1.28 s after
the beginning, 2.56 s, and so on, in 9 of 14 runs of ours and 5 of `from_generator`."""
MEGABYTE = 1 << 20


# -- the elements


def scalars(items: int) -> Sequence[Any]:
    """Return numbers."""
    return range(items)


def batches(aligned: bool, items: int) -> Sequence[Any]:
    """Return arrays of 1 MB."""
    ready = megabytes(aligned)
    return (ready * (items // len(ready) + 1))[:items]


@cache
def megabytes(aligned: bool) -> list[Any]:
    """Return 16 arrays of 1 MB that begin at a multiple of 64 bytes, as a pipeline's batches do, or 16 beyond."""
    made = []
    for number in range(16):
        room = np.empty(MEGABYTE + 128, np.uint8)
        begin = -room.ctypes.data % 64 + (0 if aligned else 16)
        array = room[begin : begin + MEGABYTE].view(np.float32).reshape(32, -1)
        array[:] = number
        made.append(array)
    return made


def tuples(items: int) -> Sequence[Any]:
    """Return tuples of 8 arrays of 16 float32."""
    ready = eights()
    return (ready * (items // len(ready) + 1))[:items]


@cache
def eights() -> list[Any]:
    """Return 1,000 of them."""
    return [tuple(np.full(16, 8 * number + part, np.float32) for part in range(8)) for number in range(1_000)]


# -- the contenders


def count_of(dataset: Any) -> Any:
    """Return how many elements a dataset has, by going through it."""
    return dataset.reduce(np.int64(0), lambda count, *_: count + 1)


counted = tf.function(count_of)


class InGraph:
    """A dataset that is gone through in a graph, each time this is iterated."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[range]:
        yield range(int(counted(self.dataset)))


class Beside(Made):
    """A run beside a thread that computes in Python."""

    def __call__(self, work: Any, items: int, consume: Callable[[Any], None]) -> None:
        """Iterate."""
        over = False

        def spin() -> None:
            while not over:
                pass

        thread = threading.Thread(target=spin, daemon=True)
        thread.start()
        try:
            super().__call__(work, items, consume)
        finally:
            over = True
            thread.join()


def prefetched(dataset: Any, buffer: int | None) -> InGraph:
    """Return a dataset with a buffer behind it."""
    dataset = dataset if buffer is None else dataset.prefetch(buffer)
    return InGraph(dataset.with_options(UNTUNED))


def ours(objects: Callable[[int], Sequence[Any]], buffer: int | None, _: Any, items: int) -> InGraph:
    """Return our dataset."""
    return prefetched(af.items(objects(items)).to_tf(), buffer)


def theirs(objects: Callable[[int], Sequence[Any]], buffer: int | None, _: Any, items: int) -> InGraph:
    """Return TensorFlow's dataset over a generator."""
    ready = objects(items)

    def generate() -> Iterator[Any]:
        yield from ready

    signature = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(np.shape(leaf), tf.as_dtype(np.asarray(leaf).dtype)), ready[0]
    )
    return prefetched(tf.data.Dataset.from_generator(generate, output_signature=signature), buffer)


def contenders(objects: Callable[[int], Sequence[Any]], suffix: str = "") -> Iterator[tuple[Contender, Contender]]:
    """Yield each way for some objects, alone and beside a busy thread."""
    buffers = {"alone": None, "prefetch(2)": 2, "prefetch(8)": 8}
    for name, make in ((OURS, ours), (THEIRS, theirs)):
        made = [
            Contender(
                name + suffix + busy,
                {setting: kind(partial(make, objects, buffer)) for setting, buffer in buffers.items()},
            )
            for busy, kind in (("", Made), (BUSY, Beside))
        ]
        yield made[0], made[1]


def check(objects: Callable[[int], Sequence[Any]], contender: Contender, work: Any, items: int = 40) -> None:
    """Raise unless the elements equal the objects, bit by bit, and the consumer counts all of them."""
    expected = [tf.nest.flatten(each) for each in objects(items)]
    for setting, run in contender.settings.items():
        assert isinstance(run, Made)
        made = run.prepare(work, items)
        assert isinstance(made, InGraph)
        got = [tf.nest.flatten(each) for each in made.dataset.as_numpy_iterator()]
        run.drop()
        equal = [
            len(one) == len(other)
            and all(
                np.asarray(a).dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True)
            )
            for one, other in zip(expected, got, strict=True)
        ]
        if not all(equal):
            raise WrongError(f"{contender.name} ({setting}) changed the data")


# -- the rows


def enough(entry: Entry, seconds: float) -> int:
    """Return how many items take so long: of a short trial beside a busy thread most is the start of the run."""
    return max(entry.items, round(seconds / harness.cost(entry.run, None, entry.items) / 64) * 64)


def measure(title: str, kinds: dict[str, Callable[[int], Sequence[Any]]], least: float, *, quick: bool) -> Section:
    """Measure elements, of each kind by the suffix of its contenders, in turns without and with a busy thread."""
    section = Section(f"Into tf.data: {title}", PACKAGES)
    seconds = 0.1 if quick else 1.0
    entries: dict[str, list[Entry]] = {"": [], BUSY: []}
    for suffix, objects in kinds.items():
        for pair in contenders(objects, suffix):
            for busy, contender in zip(entries, pair, strict=True):
                entry = harness.enter(contender, None, seconds, check=partial(check, objects))
                entries[busy].append(replace(entry, items=enough(entry, seconds)))
    times = harness.race([*entries[""], *entries[BUSY]], None, 2 if quick else 7, within=25)
    for suffix in kinds:
        for busy in entries:
            goal = harness.faster(times, OURS + suffix + busy, [THEIRS + suffix + busy], least)
            section.goals.extend([goal] if goal else [])
        kept = harness.ratio(times, over=OURS + suffix, under=OURS + suffix + BUSY)
        what = f"{OURS}{suffix}: its rate beside a busy thread / alone"
        section.goals.append(Goal(what, ">= 0.5", kept.show(), kept.median >= 0.5))
    for busy, raced in entries.items():
        section.tables.append(
            harness.side_by_side(raced, times, base=OURS + busy, unit="elements/s", value=lambda each: 1 / each)
        )
    section.remarks.append(f"{len(times[OURS])} turns of about {seconds:g} s each.")
    noted = {entry.name: entry.note for raced in entries.values() for entry in raced if entry.note}
    section.remarks.extend(f"{name}: {note}." for name, note in noted.items())
    return section


ROWS = {
    "scalars": Row("int64 scalars, one an element", 45, partial(measure, "scalars", {"": scalars}, 1)),
    "batches": Row(
        "ready float32 arrays of 1 MB: aligned as a pipeline's batches are, which both sides take without a copy, "
        "and not aligned",
        *(65, partial(measure, "1 MB", {"": partial(batches, True), COPIED: partial(batches, False)}, 2)),
    ),
    "tuples": Row("tuples of 8 arrays of 16 float32", 45, partial(measure, "tuples of 8", {"": tuples}, 1)),
}


if __name__ == "__main__":
    harness.main("From Python into tf.data: to_tf() beside from_generator.", ROWS)
