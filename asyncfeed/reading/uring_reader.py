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
from collections.abc import Sequence
from functools import cache

import numpy as np

from asyncfeed.reading.file import Bytes, File, Numbers
from asyncfeed.reading.listing import ENCODING, ERRORS, FileSpan
from asyncfeed.reading.local import LocalReader
from asyncfeed.reading.opener import FLAGS
from asyncfeed.reading.reader import Rows
from asyncfeed.reading.ring import FILES, Ring, Wanted

log = logging.getLogger("asyncfeed")

SWITCH = "ASYNCFEED_IO_URING"
"""The environment variable that turns the ring off, with the value 0."""
LARGEST = 1 << 16
"""Bytes of a file up to which the ring is faster than calls of a thread. A larger one takes longer to copy."""
UNKNOWN = -1
"""The size of a file that was not listed with its size."""
SAMPLED = 64
"""One file in this number is looked at, for the time of its last change and its disk."""


class UringReader(LocalReader):
    """Reads local files as a `LocalReader` does. Each thread that reads rows of small files has a ring.

    Args:
        files: Largest number of files that are read with one system call.
        on_main_thread: Whether the main thread may have a ring. A signal handler of the main thread may raise, and
            a ring must not be left then. The handlers of a worker process do not.
    """

    def __init__(self, files: int = FILES, *, on_main_thread: bool = False) -> None:
        super().__init__()
        self._files = files
        self._on_main_thread = on_main_thread
        self._of_thread = threading.local()
        self._rings: list[Ring] = []
        self._disks: dict[int, bool] = {}
        """Whether the ring reads the files of a disk without handing them to other threads."""

    def read_rows(self, files: Sequence[File], heads: Bytes, rows: Sequence[Rows]) -> dict[int, Exception]:
        """Read whole files into the rows of arrays."""
        sizes = rows[0].sizes if len(rows) == 1 else np.concatenate([each.sizes for each in rows])
        totals = sizes + heads.shape[1]
        ring = self._ring() if totals.min() > 0 and totals.max() <= LARGEST else None
        if ring is None:
            self.waits_together = False
            return super().read_rows(files, heads, rows)
        bodies = np.concatenate([each.starts + each.memory.ctypes.data for each in rows])
        again = []
        for start in range(0, len(files), ring.files):
            part = slice(start, start + ring.files)
            places = self._read(ring, files[part], heads[part], bodies[part], sizes[part], rows)
            again += [start + place for place in places]
        self.waits_together = len(again) < len(files)
        return self._read_again(files, heads, rows, again) if again else {}

    def _read_again(
        self, files: Sequence[File], heads: Bytes, rows: Sequence[Rows], again: list[int]
    ) -> dict[int, Exception]:
        """Read some of the files without the ring."""
        parts = [part for each in rows for part in each.parts()]
        outcomes = self.read_into([files[at] for at in again], [(heads[at].data, parts[at]) for at in again])
        return {at: error for at, error in zip(again, outcomes, strict=True) if error is not None}

    def _read(
        self, ring: Ring, files: Sequence[File], heads: Bytes, bodies: Numbers, sizes: Numbers, held: object
    ) -> list[int]:
        """Read files with the ring. Return the places of those that were not read."""
        count, head = heads.shape
        block, starts, listed = _listed(files)
        if len(starts) != count or not all(map(self._is_as_listed, files[::SAMPLED])):
            return list(range(count))
        tops = heads.ctypes.data + np.arange(count) * head
        found = ring.read(Wanted(block.ctypes.data + starts, tops, head, bodies, sizes), (block, heads, held))
        wrong = (listed != sizes + head) & (listed != UNKNOWN)
        if found is not None:
            wrong |= found != sizes + head
        return np.flatnonzero(wrong).tolist() if wrong.any() else []

    def _is_as_listed(self, file: File) -> bool:
        """Return whether a file did not change since it was listed, and is on a disk that the ring reads well."""
        try:
            status = os.stat(file.path)  # noqa: PTH116 - a Path object per file costs more than the call
        except (OSError, ValueError):
            return False
        if file.version not in (None, status.st_mtime_ns):
            return False
        fits = self._disks.get(status.st_dev)
        if fits is None:
            fits = self._disks[status.st_dev] = _reads_at_once(file.path)
        return fits

    def _ring(self) -> Ring | None:
        """Return the ring of this thread; None if it is to do without one."""
        own = self._of_thread
        ring: Ring | None = getattr(own, "ring", None)
        if ring is not None:
            return ring if ring.usable else None
        is_main = threading.current_thread() is threading.main_thread()
        if getattr(own, "tried", False) or (is_main and not self._on_main_thread) or refusal():
            return None
        own.tried = True
        try:
            own.ring = ring = Ring(min(self._files, _most_files()))
        except OSError:  # too many open files or too little memory, now
            return None
        self._rings.append(ring)
        return ring

    @property
    def closes(self) -> bool:
        """Whether a thread has a ring."""
        return bool(self._rings)

    def close(self) -> None:
        """Close the rings."""
        while self._rings:
            self._rings.pop().close()


def _listed(files: Sequence[File]) -> tuple[Bytes, Numbers, Numbers]:
    """Return the paths of files, each with a zero byte at its end, where each begins, and the sizes."""
    if isinstance(files, FileSpan):
        block, bounds, sizes = files.files.views()
        numbers = np.asarray(files.numbers)
        return block, bounds[numbers], sizes[numbers]
    block = np.frombuffer("\0".join([*(each.path for each in files), ""]).encode(ENCODING, ERRORS), np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(block == 0)[:-1] + 1])  # one more if a path has a zero byte
    return block, starts, np.array([UNKNOWN if each.size is None else each.size for each in files])


def _most_files() -> int:
    """Return the number of files of a ring: each counts as an open file of the process."""
    import resource  # noqa: PLC0415 - not on every system

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES if most < 0 else max(1, min(FILES, most // 2))


def _reads_at_once(path: str) -> bool:
    """Return whether reads of a file on this disk that need not wait are served at once.

    tmpfs, overlayfs and network disks are not asked without waiting. The ring would hand each of their reads to a
    thread of the kernel, and be slower than a thread of our own.
    """
    fd = -1
    try:
        fd = os.open(path, FLAGS)
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:  # it would have waited for the disk
        return True
    except (OSError, AttributeError):
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


@cache
def refusal() -> str:
    """Return why this process uses no ring. Return "" if it may. It is tried once, and logged if there is none."""
    why = _try_ring()
    if why:
        log.info("local files are read without io_uring: %s", why)
    return why


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
    wanted = Wanted(paths, bodies, 4, bodies + 4, np.full(2, len(expected) - 4))
    found = ring.read(wanted, (block, body))
    fails = found is not None and found.tolist() == [len(expected), -errno.ENOENT]
    return fails and body[0].tobytes() == expected
