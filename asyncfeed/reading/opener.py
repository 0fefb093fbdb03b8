"""Opening many local files one after the other, some of them ahead if reads wait for the disk."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from itertools import islice
from threading import Semaphore
from time import perf_counter, thread_time

from asyncfeed.reading.file import File

# Opening a named pipe would wait for a writer; without blocking it opens at once and is then refused.
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

AHEAD = 16
"""How many files are open ahead of the one that is read."""
THREADS = 8
"""How many threads may open ahead at the same time; more than these wait for each other's reads anyway."""
HINTS = hasattr(os, "posix_fadvise")
WAITS = 1.25
"""Reads wait for the disk where the time that passes is so many times that of the processor."""
TIMED = 16
"""How many files of a call are timed where none is opened ahead: the clock is not free either."""
HELD_UP = 8
"""One in so many files may have been held up by something else: another thread that has the GIL."""


class Opener:
    """Opens files one after the other and, where reads wait for the disk, some ahead with a hint to the system.

    4 KB files that are not in memory come about twice as fast with the hint; where they are, it costs a tenth of
    a read. So it is given at first, and then while reading waits. Any number of threads may call it.
    """

    def __init__(self) -> None:
        self.waits = HINTS
        """Whether the files read last had to be waited for."""
        self._turns = Semaphore(THREADS)

    def open(self, files: Sequence[File]) -> Generator[int | OSError, None, None]:
        """Go through the files, open: a descriptor for each, or the error if it cannot be opened.

        A descriptor is closed when the next is asked for. Close the iterator (`contextlib.closing`) if it may not
        be gone through to its end. Blocks: use it on a thread. At most 16 descriptors are open.
        """
        before, cpu = perf_counter(), thread_time()
        if self.waits and self._turns.acquire(blocking=False):
            try:
                yield from _open_ahead(files)
            finally:
                self._turns.release()
            self._judge(perf_counter() - before, cpu)
            return
        spent = []
        with closing(_open_each(files[:TIMED])) as opened:
            for fd in opened:
                yield fd
                now = perf_counter()
                spent.append(now - before)
                before = now
        self._judge(sum(sorted(spent)[: len(spent) - len(spent) // HELD_UP]), cpu)
        yield from _open_each(files[TIMED:])

    def _judge(self, wall: float, cpu: float) -> None:
        """Note whether reads wait, if they took so many seconds, and began when the processor had spent `cpu`."""
        self.waits = HINTS and wall > WAITS * (thread_time() - cpu)


def _open_each(files: Sequence[File]) -> Generator[int | OSError, None, None]:
    for file in files:
        try:
            fd = os.open(file.path, FLAGS)
        except OSError as error:
            yield error.with_traceback(None)
            continue
        try:
            yield fd
        finally:
            os.close(fd)


def _open_ahead(files: Sequence[File]) -> Generator[int | OSError, None, None]:
    coming = iter(files)
    opened: deque[tuple[File, int | None]] = deque()
    fd: int | None
    try:
        _open(islice(coming, AHEAD), opened)
        while opened:
            file, fd = opened[0]
            if fd is None:  # perhaps there were too many at the same time
                try:
                    fd = os.open(file.path, FLAGS)
                except OSError as error:
                    yield error.with_traceback(None)
                else:
                    opened[0] = file, fd
                    yield fd
            else:
                yield fd
            opened.popleft()
            if fd is not None:
                os.close(fd)
            _open(islice(coming, 1), opened)
    finally:
        for _, fd in opened:
            if fd is not None:
                os.close(fd)


def _open(files: Iterable[File], opened: deque[tuple[File, int | None]]) -> None:
    """Open files ahead; one that cannot be opened now is tried again when its turn comes."""
    for file in files:
        try:
            fd = os.open(file.path, FLAGS)
        except OSError:
            opened.append((file, None))
            continue
        opened.append((file, fd))
        with suppress(OSError):  # only a hint
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
