"""Opens many local files one after the other. If reads wait for the disk, it opens some files ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from itertools import islice
from threading import Semaphore
from time import perf_counter, thread_time

from asyncfeed.reading.file import File

# O_NONBLOCK: opening a named pipe would wait for a writer. With it a pipe opens at once, and is then refused.
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
HERE = -100
"""AT_FDCWD: a path given to a system call is relative to the working directory."""

MAX_FILES_AHEAD = 16
"""Number of files that are open ahead of the file that is read."""
MAX_THREADS_AHEAD = 8
"""Number of threads that may open files ahead at the same time. More threads would wait for each other's reads."""
HINTS = hasattr(os, "posix_fadvise")
WAIT_RATIO = 1.25
"""Reads count as waiting for the disk if their wall time is more than this times their CPU time."""
MAX_TIMED_FILES = 16
"""Number of files of a call that are timed if none is opened ahead. Each reading of the clock takes time, too."""
IGNORED_SHARE = 8
"""One timed file in this number is ignored, the slowest first. It may have waited for the GIL and not for the
disk."""


class Opener:
    """Opens files one after the other. If reads wait for the disk, it opens some ahead, with a hint to the system.

    With the hint, 4 KB files that are not in the page cache are read about twice as fast. For files in the cache
    the hint costs a tenth of a read. So it is given at first, and then while reads wait. Any number of threads may
    call it.
    """

    def __init__(self) -> None:
        self.waits = HINTS
        """Whether the latest reads waited for the disk."""
        self._turns = Semaphore(MAX_THREADS_AHEAD)

    def open(self, files: Sequence[File]) -> Generator[int | OSError, None, None]:
        """Yield a descriptor for each file, or the error if the file cannot be opened.

        A descriptor is closed when the next one is asked for. Close the iterator (`contextlib.closing`) if it may
        be left before its end. This blocks: use it on a thread. At most 16 descriptors are open.
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
        with closing(_open_each(files[:MAX_TIMED_FILES])) as opened:
            for fd in opened:
                yield fd
                now = perf_counter()
                spent.append(now - before)
                before = now
        self._judge(sum(sorted(spent)[: len(spent) - len(spent) // IGNORED_SHARE]), cpu)
        yield from _open_each(files[MAX_TIMED_FILES:])

    def _judge(self, wall: float, cpu: float) -> None:
        """Note whether reads wait. They took `wall` seconds, and began when this thread's CPU time was `cpu`."""
        self.waits = HINTS and wall > WAIT_RATIO * (thread_time() - cpu)


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
        _open(islice(coming, MAX_FILES_AHEAD), opened)
        while opened:
            file, fd = opened[0]
            if fd is None:  # it could not be opened ahead, perhaps because too many files were open
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
    """Open files ahead. A file that cannot be opened now is tried again when its turn comes."""
    for file in files:
        try:
            fd = os.open(file.path, FLAGS)
        except OSError:
            opened.append((file, None))
            continue
        opened.append((file, fd))
        with suppress(OSError):  # only a hint
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
