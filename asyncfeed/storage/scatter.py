"""Reading many local files into memory that is there already."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from stat import S_ISREG
from threading import Semaphore
from time import perf_counter, thread_time
from typing import Any

from asyncfeed.storage.base import File
from asyncfeed.storage.local import FLAGS

AHEAD = 16
"""How many files are open ahead of the one that is read."""
THREADS = 8
"""How many threads may open ahead at the same time; more than these wait for each other's reads anyway."""
HINTS = hasattr(os, "posix_fadvise")
WAITS = 1.25
"""Reads wait for the disk where the time that passes is so many times that of the processor."""
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

    def open(self, files: Sequence[File]) -> Generator[int, None, None]:
        """Go through the files, open; a descriptor is closed when the next is asked for.

        Close the iterator (`contextlib.closing`) where it may not be gone through to its end. Blocks: use it on
        a thread. At most 16 descriptors are open.
        """
        before, cpu = perf_counter(), thread_time()
        if self.waits and self._turns.acquire(blocking=False):
            try:
                yield from _open_ahead(files)
            finally:
                self._turns.release()
            wall = perf_counter() - before
        else:
            spent = []
            for file in files:
                fd = os.open(file.path, FLAGS)
                try:
                    yield fd
                finally:
                    os.close(fd)
                now = perf_counter()
                spent.append(now - before)
                before = now
            wall = sum(sorted(spent)[: len(spent) - len(spent) // HELD_UP])
        self.waits = HINTS and wall > WAITS * (thread_time() - cpu)


def _open_ahead(files: Sequence[File]) -> Generator[int, None, None]:
    coming = iter(files)
    opened: deque[int] = deque()
    try:
        _open(islice(coming, AHEAD), opened)
        while opened:
            yield opened[0]
            os.close(opened.popleft())
            _open(islice(coming, 1), opened)
    finally:
        for fd in opened:
            os.close(fd)


def _open(files: Iterable[File], opened: deque[int]) -> None:
    for file in files:
        fd = os.open(file.path, FLAGS)
        opened.append(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)


def scatter(fd: int, file: File, parts: Sequence[Any], size: int) -> bool:
    """Read an open file of exactly `size` bytes into buffers that are there, one after the other.

    Returns False for any other file: one that is not as it was listed, of another size, no file at all. Then
    the buffers may hold anything, and `read_into` says what is wrong. Blocks: call it on a thread.
    """
    status = os.fstat(fd)
    as_listed = file.mtime_ns is None or file.mtime_ns == status.st_mtime_ns
    return (
        status.st_size == size
        and as_listed
        and (file.size is None or file.size == size)
        and S_ISREG(status.st_mode)
        and os.readv(fd, parts) == size
    )
