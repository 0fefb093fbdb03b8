"""Memory of batches. It is reused when no array shows it any more.

New memory costs the system a page fault every 4 KB. For batches of megabytes that is as much as reading
them. Invariants:

* Memory is reused only after the last array, view, tensor or buffer that shows it is gone. Each time the pool
  gives memory out, the memory gets a new owner, which all of them keep alive. The end of the owner returns the
  memory.
* Memory in use and free memory together are never more than the largest amount that was in use at some time.
* Free memory is at most 256 MB, or a sixteenth of the largest memory limit of an open run if that is more. It is
  never more than that limit. After the last run it is at most 256 MB. Threads that return memory at the same
  moment may exceed this by one piece each.
* Memory is returned on any thread, also in the middle of a garbage collection. So returning it waits for no lock.

There is one pool for the process, `SHARED`. So if each epoch is its own run, it finds the memory of the epoch
before. While no run is open, free memory stays until a run begins or ends more than a minute after the memory was
returned, or until `SHARED.clear()`. A forked process begins with an empty pool.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from math import prod
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from asyncfeed.stacking.aligned import aligned_empty

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST = 1 << 18
"""Bytes. Smaller arrays come from the heap, which uses its memory again by itself: with those of 128 KB no
difference was measured, with ragged ones of just below 1 MB ten times the page faults."""
SHARE = 16
"""The part of a run's memory limit that may be free: 1/16. The limit does not count free memory, so a larger part
would break it; a smaller part would make large batches anew each time."""
MAX_IDLE_BYTES = 256 << 20
"""What may be free while no run is open: eight batches of 32 files of 1 MB. If it is smaller, the next epoch of a
loop finds less of its memory; if it is larger, a process that trains no more keeps more."""
IDLE_SECONDS = 60.0
"""How long memory may have been free when a run begins or ends. If it is smaller, memory is given back during an
evaluation between two epochs; if it is larger, memory of sizes that nobody asks for stays longer."""
BYTE = np.dtype(np.uint8)


class _Piece(NamedTuple):
    memory: NDArray[np.uint8]
    since: float
    """The time at which it was returned."""


class Pool:
    """Makes arrays as `aligned_empty` does, in the free memory of earlier arrays if there is some.

    If the pool is gone, memory in use is freed with its last view. Any number of threads may call it.

    >>> pool = Pool()
    >>> pool.empty((64, 1024), np.dtype("f8")).nbytes
    524288
    """

    def __init__(self) -> None:
        self.most = MAX_IDLE_BYTES
        """Number of bytes that may be free."""
        self._limits: list[int] = []
        self._lock = threading.Lock()
        self._free: deque[_Piece] = deque()

    @property
    def nbytes(self) -> int:
        """Number of bytes that are free."""
        while True:
            # No tuple: to make one may collect garbage, which gives memory back while the tuple is made. Without
            # the GIL another thread may give memory back during the copy. Then the copy is made again.
            try:
                return sum(piece.memory.nbytes for piece in self._free.copy())
            except RuntimeError:
                pass

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a writable array of this shape, not filled, that starts at a multiple of 64 bytes."""
        size = prod(shape) * dtype.itemsize
        if size < LEAST or dtype.hasobject:
            return aligned_empty(shape, dtype)
        memory = self._take(rounded(size))
        owner = _Owner(memory)
        weakref.finalize(owner, _bring_back, weakref.ref(self), weakref.ref(self._free), memory).atexit = False
        return np.ndarray(shape, dtype, np.asarray(owner))

    def opened(self, limit: int) -> None:
        """Note that a run with this memory limit begins. `closed` must be called at its end."""
        with self._lock:
            self._limits.append(limit)
            self._bound()

    def closed(self, limit: int) -> None:
        """Note that a run with this memory limit has ended."""
        with self._lock:
            if limit in self._limits:  # else it began before a fork
                self._limits.remove(limit)
            self._bound()

    def take_back(self, free: deque[_Piece] | None, memory: NDArray[np.uint8]) -> None:
        """Add memory to the free memory if there is room, unless it was given out before a fork."""
        if free is self._free and self.nbytes + memory.nbytes <= self.most:
            self._free.append(_Piece(memory, monotonic()))

    def clear(self) -> None:
        """Give the free memory back to the system."""
        self._free.clear()

    def forget(self) -> None:
        """Reset the pool in a forked process. Memory that was in use at the fork is not returned."""
        self._lock = threading.Lock()  # another thread may have had it
        self._limits = []
        self._free = deque()

    def _bound(self) -> None:
        limit = max(self._limits, default=None)
        self.most = (
            min(self.most, MAX_IDLE_BYTES) if limit is None else min(limit, max(limit // SHARE, MAX_IDLE_BYTES))
        )
        late = monotonic() - IDLE_SECONDS
        self._drop(lambda free: free[0].since < late)
        self._drop(lambda _: self.nbytes > self.most)

    def _drop(self, unwanted: Callable[[deque[_Piece]], bool]) -> None:
        """Give the oldest free memory back to the system, while it is not needed."""
        try:
            while self._free and unwanted(self._free):
                self._free.popleft()
        except IndexError:  # another thread has taken the last
            pass

    def _take(self, size: int) -> NDArray[np.uint8]:
        free = self._free
        passed: list[_Piece] = []
        found: NDArray[np.uint8] | None = None
        try:
            for _ in range(len(free)):
                piece = free.pop()  # the memory returned last may still be in the processor's cache
                if piece.memory.nbytes == size:
                    found = piece.memory
                    break
                passed.append(piece)
        except IndexError:  # other threads take, too
            pass
        free.extend(reversed(passed))
        if found is not None:
            return found
        try:
            missing = size
            while missing > 0:  # of other sizes, and so in the way
                missing -= free.popleft().memory.nbytes
        except IndexError:  # nothing is left
            pass
        return aligned_empty((size,), BYTE)


class _Owner:
    """The owner of an array's memory. It is no array itself, so every view keeps this very object alive.

    A NumPy view refers to the first owner of the memory behind the array that it is made from, and skips arrays in
    between. It never skips an object that is no array.
    """

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__


def _bring_back(pool: weakref.ref[Pool], free: weakref.ref[deque[_Piece]], memory: NDArray[np.uint8]) -> None:
    """Add the memory to the free memory if the pool still exists and has room. This never waits."""
    alive = pool()
    if alive is not None:
        alive.take_back(free(), memory)


def rounded(size: int) -> int:
    """Round a size up, so that similar sizes share memory.

    The result is at most an eighth more, which is not touched.
    """
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


SHARED = Pool()
"""The pool of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SHARED.forget)


def shared_pool() -> Pool:
    """Return the pool of this process."""
    return SHARED
