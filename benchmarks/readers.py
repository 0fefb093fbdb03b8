"""Reading files into batches with us and by hand; `peers_files.py` has the libraries.

Each maker yields contenders whose work is a `FileSet`. All go through the files in a random order.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from filesets import BATCH, SEED, FileSet
from harness import Contender, Made
from work_async import loops

import asyncfeed as af
from asyncfeed.reading.uring_reader import SWITCH, decided

Concurrency = int | str
OURS, OURS_TF, BARE, BARE_REUSED, SERIAL, BY_HAND, IN_MEMORY = (
    "asyncfeed",
    "asyncfeed, to_tf()",
    "preadv, fresh buffers",
    "preadv, one buffer",
    "np.load + np.stack",
    "aiofiles, 32 in flight",
    "batches in memory",
)
NO_RING = f"{OURS}, without io_uring"
NO_RING_PROCESSES = f'{NO_RING}, on="process"'


def shuffled(files: FileSet, items: int) -> list[str]:
    """Return that many paths in a random order."""
    paths = files.take(items)
    random.Random(SEED).shuffle(paths)
    return paths


def load_npy(path: str) -> Any:
    """Load a file with numpy, on any thread.

    CPython 3.11 keeps one recursion count for all threads that parse literals, as numpy does for each header, and
    raises `SystemError` now and then when they take turns: nothing that a library on top of it could help.
    """
    while True:
        try:
            return np.load(path)
        except SystemError:
            continue


# -- ours


def pipeline(files: FileSet, items: int, concurrency: Any = "auto", on: Any = "thread") -> af.Pipeline[Any]:
    """Return our pipeline, as a user writes it."""
    listed = af.files(files.take(items)).shuffle(seed=SEED)
    batches = listed.load(af.npy, concurrency=concurrency, on=on).batch(BATCH)
    return batches.pad() if files.ragged else batches


def ours() -> Iterator[Contender]:
    """Yield our one way, with nothing set."""
    yield Contender(OURS, {"defaults": Made(pipeline)})


def at(concurrency: Concurrency) -> str:
    """Return the name of our pipeline with `concurrency` set by hand."""
    return f"concurrency {concurrency}"


def ours_at(concurrencies: Iterable[Concurrency]) -> Iterator[Contender]:
    """Yield our pipeline with `concurrency` set by hand, a contender each."""
    for each in concurrencies:
        yield Contender(at(each), {"defaults": Made(partial(pipeline, concurrency=each))})


def ours_tf() -> Iterator[Contender]:
    """Yield our pipeline as a `tf.data.Dataset`."""
    import tensorflow as tf  # noqa: F401 - says that it is missing

    yield Contender(OURS_TF, {"defaults": Made(lambda files, items: pipeline(files, items).to_tf())})


def ours_switching() -> Iterator[Contender]:
    """Yield our pipeline with threads that take turns sooner than every 5 ms."""
    for seconds in (0.0005, 0.0001):
        name = f"{OURS}, setswitchinterval({seconds:g})"
        yield Contender(name, {"defaults": Switching(pipeline, seconds)})


def ours_without_ring() -> Iterator[Contender]:
    """Yield our pipeline as it reads where io_uring is refused, on threads and in processes."""
    for name, on in ((NO_RING, "thread"), (NO_RING_PROCESSES, "process")):
        yield Contender(name, {"defaults": WithoutRing(partial(pipeline, on=on))})


class WithoutRing(Made):
    """A run that reads without io_uring."""

    def __call__(self, work: Any, items: int, consume: Callable[[Any], None]) -> None:
        """Iterate."""
        before = os.environ.get(SWITCH)
        os.environ[SWITCH] = "0"
        decided.cache_clear()
        try:
            super().__call__(work, items, consume)
        finally:
            os.environ.pop(SWITCH)
            if before is not None:
                os.environ[SWITCH] = before
            decided.cache_clear()


class Switching(Made):
    """A run with another switch interval."""

    def __init__(self, make: Callable[[Any, int], Iterable[Any]], seconds: float) -> None:
        super().__init__(make)
        self._seconds = seconds

    def __call__(self, work: Any, items: int, consume: Callable[[Any], None]) -> None:
        """Iterate."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(self._seconds)
        try:
            super().__call__(work, items, consume)
        finally:
            sys.setswitchinterval(before)


# -- by hand


def bare() -> Iterator[Contender]:
    """Yield what cannot be beaten: one thread reads the bodies into the rows of a batch, headers aside."""
    yield Contender(BARE, {"one thread": partial(preadv, False)}, note="headers are not read: the limit")


def in_memory(files: FileSet) -> Iterator[Contender]:
    """Yield batches that were read before the clock started: what is left is the consumer."""
    count = len(files.paths)
    samples = files.collate([files.sample(place) for place in [*range(count), *range(BATCH)]])

    def run(_: FileSet, items: int, consume: Callable[[Any], None]) -> None:
        for start in range(0, items, BATCH):
            at = start % count
            consume(samples[at : at + min(BATCH, items - start)])

    yield Contender(IN_MEMORY, {"one thread": run}, note="nothing is read: what the consumer leaves")


def bare_reused() -> Iterator[Contender]:
    """Yield the same into a buffer that is used again for the next batch."""
    yield Contender(
        BARE_REUSED, {"one thread": partial(preadv, True)}, lends=True, note="each batch overwrites the last"
    )


def preadv(reuse: bool, files: FileSet, items: int, consume: Callable[[Any], None]) -> None:
    """Read the body of each file into its row."""
    paths, offset = shuffled(files, items), files.offset
    batch = np.empty((BATCH, *files.tail), np.float32)
    for start in range(0, items, BATCH):
        group = paths[start : start + BATCH]
        if not reuse or len(group) < BATCH:
            batch = np.empty((len(group), *files.tail), np.float32)
        for path, row in zip(group, batch, strict=True):
            fd = os.open(path, os.O_RDONLY)
            os.preadv(fd, (row,), offset)
            os.close(fd)
        consume(batch)


def by_batch(files: FileSet, items: int) -> Iterator[Any]:
    """Yield batches, one file after the other."""
    paths = shuffled(files, items)
    for start in range(0, items, BATCH):
        yield files.collate([load_npy(path) for path in paths[start : start + BATCH]])


def serial() -> Iterator[Contender]:
    """Yield numpy in a loop."""

    def run(files: FileSet, items: int, consume: Callable[[Any], None]) -> None:
        for batch in by_batch(files, items):
            consume(batch)

    yield Contender(SERIAL, {"one thread": run}, note="padded by hand where files are ragged")


def by_hand() -> Iterator[Contender]:
    """Yield asyncio with aiofiles: 32 files in flight, gathered into a batch."""
    from io import BytesIO

    import aiofiles

    async def load(path: str) -> Any:
        async with aiofiles.open(path, "rb") as file:
            return np.load(BytesIO(await file.read()))

    async def main(files: FileSet, items: int, consume: Callable[[Any], None]) -> None:
        paths = shuffled(files, items)
        for start in range(0, items, BATCH):
            consume(files.collate(await asyncio.gather(*map(load, paths[start : start + BATCH]))))

    def run(loop: Any, files: FileSet, items: int, consume: Callable[[Any], None]) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main(files, items, consume))

    yield Contender(BY_HAND, {name: partial(run, loop) for name, loop in loops().items()})
