"""Memory of batches, used again once nobody looks at it any more.

Memory that is new costs the system a page fault every 4 KB; for batches of megabytes that is as much as reading
them. Invariants:

* Memory is given out again only after the last array, view, tensor or buffer that shows it is gone: each time it
  is given out it gets an owner of its own, which all of them keep alive, and the end of the owner brings it back.
* What is out and what is free together are never more than what was out at some time.
* Memory comes back on any thread, also in the middle of a garbage collection: nothing there waits for a lock.
"""

from __future__ import annotations

import weakref
from collections import deque
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.stages.aligned import aligned_empty

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST = 1 << 18
"""Bytes. Smaller arrays come from the heap, which uses its memory again by itself: with those of 128 KB no
difference was measured, with ragged ones of just below 1 MB ten times the page faults."""
KEPT = 16
"""How many pieces are kept at most: what a consumer that held many batches lets go at once is not wanted again."""
BYTE = np.dtype(np.uint8)


class Pool:
    """Makes arrays as `aligned_empty` does, in memory that earlier ones had where that is free.

    A pool belongs to one stage of one run: what is free goes with it, and what is out then goes with its last
    view. Memory: at most 16 pieces are free, which no memory limit counts: what is out is counted, or was. Any
    number of threads may call it.

    >>> pool = Pool()
    >>> pool.empty((64, 1024), np.dtype("f8")).nbytes
    524288
    """

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=KEPT)

    @property
    def nbytes(self) -> int:
        """How many bytes are free."""
        return sum(memory.nbytes for memory in tuple(self._free))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a writable array of this shape, not filled, that starts at a multiple of 64 bytes."""
        size = prod(shape) * dtype.itemsize
        if size < LEAST or dtype.hasobject:
            return aligned_empty(shape, dtype)
        memory = self._take(_rounded(size))
        owner = _Owner(memory)
        weakref.finalize(owner, _bring_back, weakref.ref(self._free), memory).atexit = False
        return np.ndarray(shape, dtype, np.asarray(owner))

    def _take(self, size: int) -> NDArray[np.uint8]:
        free = self._free
        try:
            for _ in range(len(free)):
                memory = free.pop()  # the one that came last may still be in the processor's cache
                if memory.nbytes == size:
                    return memory
                free.appendleft(memory)
            missing = size
            while missing > 0:  # of other sizes, and so in the way
                missing -= free.popleft().nbytes
        except IndexError:  # nothing is left; other threads take, too
            pass
        return aligned_empty((size,), BYTE)


class _Owner:
    """What an array says it lives in: no array itself, so that every view of it keeps this very object alive.

    numpy makes a view refer to the first owner of the memory that it finds behind the array it is made from,
    past arrays in between; an object that is no array is never passed over.
    """

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__


def _bring_back(free: weakref.ref[deque[NDArray[np.uint8]]], memory: NDArray[np.uint8]) -> None:
    """Add memory to what is free, where the pool still lives; atomic, as `deque.append` is."""
    alive = free()
    if alive is not None:
        alive.append(memory)


def _rounded(size: int) -> int:
    """Return a size that others near it have, too: at most an eighth more, and that is not even touched."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step
