"""A ring of Linux' io_uring: many small files are opened, read and closed with one system call, without the GIL.

For each file two requests are written into the ring, which is memory shared with the kernel: open the file into a
slot of the ring, and read it. The read asks for one byte more than the file should have, so its result tells
whether the file ends where it should. Then one system call, without the GIL, submits all opens and after them all
reads, and waits for them. A last one closes all slots. numpy writes the requests of all files together, so there
is no Python for each file.

The kernel serves requests in order, each at once if it need not wait. A file whose open waits for the disk is not
open yet when its read is served, and the read fails. Such reads are submitted a second time when all opens are
done. Links between requests would do the same in one call, but then a file that is in memory takes 1.1 times as
long.

Invariants:

* Only the thread that made a ring uses it. A forked child never does.
* `read` returns when the kernel is done with all requests. Until then the ring refers to all memory that they use.
  A signal ends the wait early, so completions are counted.
* If the system call itself fails, the ring is broken: it is not used again, and keeps that memory for ever.
* The numbers that the kernel writes are read only after the call that made it write them. No other thread of the
  kernel writes them (`_DEFER_TASKRUN`), so no memory barrier is needed.

A thread that gives up the GIL beside a trainer that runs Python gets it back after 5 ms. So `read` gives it up
once, while it waits. numpy gives it up for operations on more than 500 elements. The call that closes slots
keeps it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from asyncfeed.reading.file import Numbers
from asyncfeed.reading.opener import HERE

FILES: Final = 256
"""Largest number of files that are read with one system call. Each has a slot, which counts as an open file."""
_PER_FILE: Final = 2
_MOST_ENTRIES: Final = 500
"""Largest number of entries of an array for which numpy keeps the GIL."""
SETUP: Final = 425
ENTER: Final = 426
_REGISTER: Final = 427
_GETEVENTS: Final = 1
_SUBMIT_ALL: Final = 1 << 7
_SINGLE_ISSUER: Final = 1 << 12
_DEFER_TASKRUN: Final = 1 << 13
_UPDATE: Final = 6
_FILES2: Final = 13
_WORKERS: Final = 19
_SPARSE: Final = 1
_SQES_AT: Final = 0x10000000
_READV: Final = 1
_OPENAT: Final = 18
_FIXED_FILE: Final = 1
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
WRAP: Final = 0xFFFFFFFF
"""The numbers of entries begin anew after this one."""
WORKERS: Final = 32
"""Number of threads of the kernel that may wait for the disk at the same time for a ring, for opens above all."""

_SQE = np.dtype(
    {
        "names": ["opcode", "flags", "fd", "off", "addr", "len", "open_flags", "expected", "request", "slot"],
        "formats": ["u1", "u1", "<i4", "<u8", "<u8", "<u4", "<u4", "<i4", "<u4", "<u4"],
        "offsets": [0, 1, 4, 8, 16, 24, 28, 32, 36, 44],
        "itemsize": 64,
    }
)
_CQE_BYTES: Final = 16
_EXPECTED, _REQUEST, _RESULT = range(3)
"""The first three of the four numbers of a completion. The first two are the user data of the request: the result
that it should have, and its number."""
_IOVEC = np.dtype([("base", "<u8"), ("len", "<u8")])


_PARAMS_AT = {
    "sq_entries": 0, "cq_entries": 4, "flags": 8, "sq_head": 40, "sq_tail": 44, "sq_array": 64, "cq_head": 80,
    "cq_tail": 84, "cqes": 100,
}  # fmt: skip
_PARAMS = np.dtype(
    {"names": [*_PARAMS_AT], "formats": ["<u4"] * 9, "offsets": [*_PARAMS_AT.values()], "itemsize": 120}
)
"""What the kernel says of a ring: its sizes, and where the parts of the shared memory are."""


_NO_COPY: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""Without this, a map has a copy of the descriptor."""


class Wanted(NamedTuple):
    """What to read of some files. The arrays have one entry for each file."""

    paths: Numbers
    """The addresses of the paths. Each has a zero byte at its end."""
    bases: Sequence[Numbers]
    """For each piece of a file, the addresses of its memory."""
    sizes: Sequence[Numbers]
    """For each piece of a file, its number of bytes."""


class Memory:
    """The memory that a ring shares with the kernel, and the requests in it."""

    def __init__(self, fd: int, at: dict[str, int], files: int) -> None:
        queued, served = at["sq_entries"], at["cq_entries"]
        size = max(at["sq_array"] + 4 * queued, at["cqes"] + _CQE_BYTES * served)
        rings = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, **_NO_COPY)
        requests = mmap.mmap(fd, _SQE.itemsize * queued, flags=mmap.MAP_SHARED, offset=_SQES_AT, **_NO_COPY)
        self._maps = [rings, requests]
        self.sq_head, self.sq_tail, self.cq_head, self.cq_tail = (
            np.frombuffer(rings, "<u4", 1, at[name]) for name in ("sq_head", "sq_tail", "cq_head", "cq_tail")
        )
        self.queue = np.frombuffer(rings, "<u4", queued, at["sq_array"])
        """The numbers of the requests to serve."""
        self.served = np.frombuffer(rings, "<i4", 4 * served, at["cqes"]).reshape(-1, 4)
        """What became of requests."""
        self.numbers = np.arange(_PER_FILE * files, dtype=np.uint32)
        """The number of each request: first those that open files, then those that read them."""
        self._extra = np.zeros(1, np.uint8)
        self.iovecs = np.zeros((files, 0), _IOVEC)
        """Where each file goes: its pieces, and one byte that should not be there."""
        entries = np.frombuffer(requests, _SQE, _PER_FILE * files)
        entries["request"] = self.numbers
        self.opens, self.reads = entries[:files], entries[files:]
        slots = self.numbers[:files]
        self.opens["opcode"], self.opens["fd"] = _OPENAT, HERE
        self.opens["open_flags"], self.opens["slot"] = _OPEN_FLAGS, slots + 1
        self.reads["opcode"], self.reads["flags"], self.reads["fd"] = _READV, _FIXED_FILE, slots
        self._none = np.full(files, -1, np.int32)
        self.closing = np.array([0, self._none.ctypes.data], "<u8")
        """What the kernel is told to close slots: from the first one on, each gets the descriptor -1."""

    def lay_out(self, pieces: int) -> None:
        """Prepare for files that are read in so many pieces. Most calls have as many as the one before."""
        files, before = self.iovecs.shape
        if before == pieces + 1:
            return
        self.iovecs = np.zeros((files, pieces + 1), _IOVEC)
        self.iovecs["base"][:, pieces], self.iovecs["len"][:, pieces] = self._extra.ctypes.data, 1
        self.reads["addr"] = self.iovecs.ctypes.data + self.iovecs.strides[0] * np.arange(files)
        self.reads["len"] = pieces + 1

    def close(self) -> None:
        """Give it back."""
        maps = self._maps
        vars(self).clear()  # a map with views cannot be closed
        for each in maps:
            # In Python without the GIL, views that another thread made go a little later, and the map with them.
            with suppress(BufferError):
                each.close()


class Ring:
    """Reads files in groups. It holds three descriptors, and about 200 KB.

    Raises `OSError` if the kernel gives no ring: it is older than 6.1, or forbids rings, as in many containers.
    """

    def __init__(self, files: int = FILES) -> None:
        self.files = files
        """Largest number of files of a call."""
        self.broken = False
        """Whether it must not be used again."""
        self._owner = os.getpid(), threading.get_ident()
        self._held: object = None
        """What the kernel uses now."""
        params = np.zeros(1, _PARAMS)
        params["flags"] = _SUBMIT_ALL | _SINGLE_ISSUER | _DEFER_TASKRUN
        self._fd = call(SETUP, _PER_FILE * files, ctypes.c_void_p(params.ctypes.data))
        self._memory: Memory | None = None
        try:
            self._memory = Memory(self._fd, dict(zip(_PARAMS_AT, map(int, params[0]), strict=True)), files)
            self._register(_FILES2, np.array([files | _SPARSE << 32, 0, 0, 0], "<u8"), 32)
            self._register(_WORKERS, np.array([WORKERS, WORKERS], "<u4"), 2)
        except BaseException:
            self.close()
            raise

    def _register(self, what: int, argument: np.ndarray[Any, Any], count: int) -> None:
        """Make a call that the kernel answers at once. It keeps the GIL."""
        call(_REGISTER, self._fd, what, ctypes.c_void_p(argument.ctypes.data), count, libc=_libc_with_gil())

    @property
    def usable(self) -> bool:
        """Whether this thread may use it."""
        return not self.broken and self._owner == (os.getpid(), threading.get_ident())

    def read(self, wanted: Wanted, held: object) -> np.ndarray[Any, np.dtype[np.int32]] | None:
        """Read files. Return None if each has as many bytes as were asked for.

        Else return how many bytes each gave, or the negated number of its error. A longer file gives one byte more
        than was asked for. `held` is what all addresses point into. It is kept until the kernel is done.
        """
        memory = self._memory
        if memory is None or not self.usable:
            raise RuntimeError("a ring is used by the thread that made it, and by no other process")
        count = len(wanted.paths)
        self._held = wanted, held
        memory.opens["addr"][:count] = wanted.paths
        memory.reads["expected"][:count] = sum(wanted.sizes)
        memory.lay_out(len(wanted.sizes))
        bases, sizes = memory.iovecs["base"][:count], memory.iovecs["len"][:count]
        for piece, (base, size) in enumerate(zip(wanted.bases, wanted.sizes, strict=True)):
            bases[:, piece], sizes[:, piece] = base, size
        results = self._results(memory, count)
        self._held = None
        if not self.broken:
            self._close_slots(memory, count)
        if results is None:
            return None
        opened, got = results[:, :count]
        outcome: np.ndarray[Any, np.dtype[np.int32]] = np.where(opened < 0, opened, got)
        return outcome

    def _results(self, memory: Memory, count: int) -> np.ndarray[Any, np.dtype[np.int32]] | None:
        """Return what became of the opens and the reads of `count` files; None if all are as expected."""
        opens, reads = (each[:count] for each in memory.numbers.reshape(_PER_FILE, self.files))
        served = self._serve(memory, opens, reads)
        if all((each[:, _EXPECTED] == each[:, _RESULT]).all() for each in served):
            return None
        results = np.zeros((_PER_FILE, self.files), np.int32)
        for each in served:
            results.flat[each[:, _REQUEST]] = each[:, _RESULT]
        opened, got = results[:, :count]
        late = np.flatnonzero((got == -errno.EBADF) & (opened >= 0))
        if late.size:
            for each in self._serve(memory, reads[late]):
                results.flat[each[:, _REQUEST]] = each[:, _RESULT]
        return results

    def _close_slots(self, memory: Memory, count: int) -> None:
        """Close the files in the first `count` slots. A slot without a file stays as it is."""
        self.broken = True
        with suppress(OSError):  # the files were read, but this ring has no free slots: `close` closes them
            self._register(_UPDATE, memory.closing, count)
            self.broken = False

    def _serve(
        self, memory: Memory, *requests: np.ndarray[Any, np.dtype[np.uint32]]
    ) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
        """Have the kernel serve requests. Return what became of each, in any order, until the next call."""
        start, first = int(memory.sq_tail[0]), int(memory.cq_head[0])
        count = 0
        for some in requests:
            before = 0
            for place in _parts(start + count, len(some), len(memory.queue)):
                after = before + place.stop - place.start
                memory.queue[place] = some[before:after]
                before = after
            count += len(some)
        self.broken = True  # until all have been served
        memory.sq_tail[0] = (start + count) & WRAP
        submitted = 0
        while (done := (int(memory.cq_tail[0]) - first) & WRAP) < count:
            _enter(self._fd, count - submitted, count - done)
            submitted = (int(memory.sq_head[0]) - start) & WRAP
        self.broken = False
        memory.cq_head[0] = (first + count) & WRAP  # the kernel writes there again in the next call only
        return [memory.served[place] for place in _parts(first, count, len(memory.served))]

    def close(self) -> None:
        """Close it. Any thread may call this when no call is running."""
        self.broken = True
        memory, self._memory = self._memory, None
        if memory is not None:
            if self._held is not None:
                _lost.append((self._held, memory.iovecs))
            memory.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _parts(start: int, count: int, size: int) -> list[slice]:
    """Return where `count` entries are in a ring of this size, of which the first has this number."""
    at = start % size
    end = at + count
    return [
        slice(each, min(each + _MOST_ENTRIES, stop))
        for begin, stop in ((at, min(end, size)), (0, end - size))
        for each in range(begin, stop, _MOST_ENTRIES)
    ]


def _enter(fd: int, submit: int, wait: int) -> None:
    """Submit requests and wait. Either may be cut short, by a signal or for want of memory: call it again."""
    try:
        call(ENTER, fd, submit, wait, _GETEVENTS, None, 0)
    except OSError as error:
        if error.errno not in (errno.EINTR, errno.EAGAIN, errno.EBUSY):
            raise


def call(number: int, *args: Any, libc: ctypes.CDLL | None = None) -> int:
    """Make a system call, without the GIL unless `libc` keeps it."""
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in (number, *args)]
    result: int = (libc or _libc()).syscall(*given)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _libc_with_gil() -> ctypes.CDLL:
    return ctypes.PyDLL(None, use_errno=True)


_lost: Final[list[object]] = []
"""Memory that the kernel may still use, of rings that broke."""
