"""Reads small local files through a ring of Linux' io_uring, where the kernel has one: see `ring.py`.

The ring gives what a `LocalReader` gives, or nothing: a file that is not exactly as expected is read again by the
`LocalReader`, which finds and reports every error. Its size is always checked. The time of its last change is
checked for the first file of a call and every 64th, because that check takes longer than the read.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np

from asyncfeed.reading.file import Bytes, File, Numbers, address_of
from asyncfeed.reading.listing import UNKNOWN, FileSpan
from asyncfeed.reading.local import LocalReader
from asyncfeed.reading.packed_names import ENCODING, ERRORS
from asyncfeed.reading.reader import Columns, Waits
from asyncfeed.reading.ring import FILES, Ring, Wanted
from asyncfeed.reading.sampled import blocks_read, waited_for

log = logging.getLogger("asyncfeed")

SWITCH = "ASYNCFEED_IO_URING"
"""The environment variable that turns the ring off, with the value 0."""

MOST_RINGS = 16
"""Number of threads that have a ring. The others read file by file. Each ring takes 3 descriptors and up to 1.5
MB. Segments whose functions wait have up to 256 threads, of which few read at a time."""


class _Rings:
    """Rings of several threads, one for each."""

    def __init__(self) -> None:
        self.of_thread = threading.local()
        self.all: list[Ring] = []

    def own(self, files: int) -> Ring | None:
        """Return the ring of this thread; None if it is to do without one."""
        own = self.of_thread
        ring: Ring | None = getattr(own, "ring", None)
        if ring is not None:
            return ring if ring.usable else None
        if len(self.all) >= MOST_RINGS or getattr(own, "tried", False) or refusal():
            return None
        own.tried = True
        try:
            own.ring = ring = Ring(min(files, _most_files()))
        except OSError:  # too many open files or too little memory, now
            return None
        self.all.append(ring)
        return ring


_shared = _Rings()
"""The rings of threads that close theirs when they end. All readers use them."""


@contextmanager
def one_ring() -> Iterator[None]:
    """Let all readers use the same ring on this thread, and close it in the end."""
    own = _shared.of_thread
    own.shares = True
    try:
        yield
    finally:
        own.shares = False
        ring: Ring | None = getattr(own, "ring", None)
        if ring is not None:
            _shared.all.remove(ring)
            ring.close()


class UringReader(LocalReader):
    """Reads local files as a `LocalReader` does. Each thread that reads rows of small files has a ring.

    Threads that have entered `one_ring` use the same ring for all readers. For other threads a reader makes rings.

    Args:
        files: Largest number of files that are read with one system call.
        on_main_thread: Whether the main thread may have a ring. A signal handler of the main thread may raise, and
            a ring must not be left then. The handlers of a worker process do not.
    """

    def __init__(self, files: int = FILES, *, on_main_thread: bool = False) -> None:
        super().__init__()
        self._files = files
        self._on_main_thread = on_main_thread
        self._rings = _Rings()
        self._closed = False

    def _read_small(
        self, files: Sequence[File], columns: Columns, sizes: Sequence[Numbers], totals: Numbers
    ) -> dict[int, Exception]:
        """Read small files with the ring of this thread, if there is one."""
        ring = self._ring() if totals.min() > 0 else None
        if ring is None:
            return super()._read_small(files, columns, sizes, totals)
        before = blocks_read()
        bases = [np.concatenate([each.addresses() for each in rows]) for rows in columns]
        again = []
        count = len(files)
        step = -(-count // -(-count // ring.files))  # calls of equal length
        for start in range(0, count, step):
            part = slice(start, start + step)
            some = files[part] if step < count else files
            paths, starts, listed = _listed(some)
            wanted = Wanted(
                address_of(paths) + starts,
                [each[part] for each in bases],
                [each[part] for each in sizes],
            )
            places = self._read(ring, wanted, totals[part], listed, (paths, columns))
            again += [start + place for place in places]
        self.waits = Waits.TOGETHER if waited_for(before, int(totals.sum())) else Waits.KERNEL
        return self._read_again(files, columns, again)

    def _read(self, ring: Ring, wanted: Wanted, totals: Numbers, listed: Numbers, held: object) -> list[int]:
        """Read files with the ring. Return the places of those that were not read."""
        count = len(totals)
        if len(wanted.paths) != count or not ring.usable:  # it may have broken in the call before
            return list(range(count))
        found = ring.read(wanted, held)
        wrong = (listed != totals) & (listed != UNKNOWN)
        if found is not None:
            wrong |= found != totals
        return np.flatnonzero(wrong).tolist() if wrong.any() else []

    def _ring(self) -> Ring | None:
        """Return the ring of this thread; None if it is to do without one."""
        if getattr(_shared.of_thread, "shares", False):
            return _shared.own(FILES)
        is_main = threading.current_thread() is threading.main_thread()
        if self._closed or (is_main and not self._on_main_thread):
            return None
        ring = self._rings.own(self._files)
        if self._closed:  # by a run whose loop was closed, which waits for no thread
            self.close()
            return None
        return ring

    @property
    def closes(self) -> bool:
        """Whether a thread has a ring that this reader closes."""
        return bool(self._rings.all)

    def close(self) -> None:
        """Close the rings. A thread that makes one meanwhile closes it."""
        self._closed = True
        with suppress(IndexError):  # another thread has closed the last
            while self._rings.all:
                self._rings.all.pop().close()


def _listed(files: Sequence[File]) -> tuple[Bytes, Numbers, Numbers]:
    """Return the paths of files, each with a zero byte at its end, where each begins, and the sizes."""
    if isinstance(files, FileSpan):
        block, bounds, sizes = files.files.views()
        numbers = np.asarray(files.numbers)
        return block, bounds[numbers], sizes[numbers]
    text = "\0".join([*(each.path for each in files), ""])
    block = np.frombuffer(bytearray(text.encode(ENCODING, ERRORS)), np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(block == 0)[:-1] + 1])  # one more if a path has a zero byte
    return block, starts, np.array([UNKNOWN if each.size is None else each.size for each in files])


def _most_files() -> int:
    """Return the number of files of a ring: each counts as an open file of the process."""
    import resource  # noqa: PLC0415 - not on every system

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES if most < 0 else max(1, min(FILES, most // 2))


def refusal() -> str:
    """Return why this process uses no ring. Return "" if it may. It is tried once, and logged if there is none."""
    with _deciding.lock:
        return decided()


@cache
def decided() -> str:
    """Decide it. Only `refusal` calls this, on one thread at a time."""
    why = _try_ring()
    if why:
        log.info("local files are read without io_uring: %s", why)
    return why


class _Deciding:
    """Has the lock of the thread that decides whether there is a ring."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def forget(self) -> None:
        """Make a new lock in a forked process: another thread may have had it at the fork."""
        self.lock = threading.Lock()


_deciding = _Deciding()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_deciding.forget)


def _try_ring() -> str:
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    if sys.platform != "linux" or sys.byteorder != "little":
        return "it needs Linux, and a processor that is little-endian"
    ring = None
    try:
        ring = Ring(2)
        found = _tried(ring)
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, str(error))
        return f"the system refuses it ({code}): it needs Linux 6.1, and many containers forbid it"
    finally:
        if ring is not None:
            ring.close()
    return "" if found else "the kernel has it, but a file that was read came out wrong"


def _tried(ring: Ring) -> bool:
    """Return whether a file is read, and a missing one noticed."""
    with open(__file__, "rb") as file:  # noqa: PTH123
        expected = file.read()
    block = np.frombuffer(os.fsencode(__file__) + b"\0" + os.fsencode(__file__) + b".none\0", np.uint8)
    body = np.zeros((2, len(expected)), np.uint8)
    numbers = np.arange(2)
    paths = block.ctypes.data + numbers * len(os.fsencode(__file__) + b"\0")
    bodies = body.ctypes.data + numbers * len(expected)
    wanted = Wanted(paths, [bodies, bodies + 4], [np.full(2, 4), np.full(2, len(expected) - 4)])
    found = ring.read(wanted, (block, body))
    fails = found is not None and found.tolist() == [len(expected), -errno.ENOENT]
    return fails and body[0].tobytes() == expected
