"""The parent's side of the blocks of a worker process: results that the parent shows where they were written.

A **block** is a file without a name that a worker process makes for one large array (`block_writer.py`). The
parent maps it too, and the array of the result is a view of it. So the parent copies nothing. Invariants:

* At any time a block belongs to one side, and only that side writes it. A block belongs to the worker until the
  worker sends an array in it. Then it belongs to the parent until the last view of that array is gone, and the
  next order to the worker says so.
* A block holds one array. So a view holds no more memory than it would hold of an array of its own.
* The blocks of a worker have at most `BLOCKS_BYTES` together, or they are at most `BLOCKS_FEW`. The blocks of all
  workers are bounded in number (`mapping.py`). A worker that may not make a block, or cannot, sends a copy through
  the arena. So no worker waits for a block.
* A new block costs as much as several copies. So blocks are made slowly (`block_writer.py`), and dropped only if
  they are in the way. The parent decides that. If an array came as a copy, the blocks that were free then did not
  fit. The oldest of them are dropped until there is room for the array.
* A worker that ends or dies leaves its blocks to their views. The last view unmaps them. A worker that is kept for
  another run keeps `BLOCKS_KEPT_BYTES` of those that are free, and leaves all others to their views.
* A worker sends a new block before the first result in it. So all results that are complete when it dies can be
  shown.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from asyncfeed.engine.constants import BLOCKS_BYTES, BLOCKS_KEPT_BYTES
from asyncfeed.engine.processes.mapping import SHOWN, Mapping, mapped, most_mappings

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BlockOrders(NamedTuple):
    """What the parent tells a worker about its blocks, before the items of a group."""

    free: list[int]
    """The numbers of blocks that the worker may write again."""
    dropped: list[int]
    """The numbers of blocks that the worker must forget. They may be free."""
    allowed: int
    """How many new blocks the worker may make."""
    allowed_bytes: int
    """How many bytes they may have, unless the worker has few blocks."""


class Blocks:
    """The blocks of one worker, as its parent sees them. The thread that has the worker calls it."""

    def __init__(self) -> None:
        self._last = 0
        """The number of the newest block. Both sides count them, from 1."""
        self._free: dict[int, Mapping] = {}
        """The blocks that the worker has, in the order in which they were returned."""
        self._given: dict[Mapping, int] = {}
        """The numbers of the blocks that arrays of this run show."""
        self._returned: deque[Mapping] = deque()
        """The blocks whose last view is gone. Finalizers append to it."""
        self._bytes = 0
        """Bytes of the blocks that are free or shown in this run."""
        self._missed = 0
        """Bytes of the arrays that were copied since the last order, because there was no block for them."""

    def add(self, fds: list[int]) -> bool:
        """Map a new block of the worker. Return False if that cannot be. The descriptors belong to the block."""
        try:
            (fd,) = fds
            if len(mapped) >= most_mappings():
                raise OSError("too many blocks")
            block = Mapping(fd, os.fstat(fd).st_size)
        except (OSError, ValueError):  # without free descriptors, the system has delivered none
            for fd in fds:
                os.close(fd)
            return False
        self._last += 1
        self._free[self._last] = block
        self._bytes += block.memory.size
        return True

    def show(self, number: int, size: int) -> NDArray[np.uint8]:
        """Return the first bytes of a block as a writable array, which the worker has just sent."""
        block = self._free.pop(number)
        self._given[block] = number
        return SHOWN.show(block, size, weakref.ref(self._returned))

    def miss(self, size: int) -> None:
        """Note that an array of this size came as a copy."""
        self._missed += size

    def orders(self) -> BlockOrders:
        """Return which blocks the worker gets back. It must be told."""
        free: list[int] = []
        dropped: list[int] = []
        if self._missed:
            room = BLOCKS_BYTES - self._bytes if len(mapped) < most_mappings() else 0
            dropped += self._drop(self._free_bytes - self._missed + max(0, room))
            self._missed = 0
        for _ in range(len(self._returned)):
            block = self._returned.popleft()
            number = self._given.pop(block)
            if SHOWN.seen_by_none(block):
                free.append(number)
                self._free[number] = block
            else:
                self._bytes -= block.memory.size
                dropped.append(number)
        return BlockOrders(free, dropped, most_mappings() - len(mapped), BLOCKS_BYTES - self._bytes)

    def rest(self) -> BlockOrders:
        """End the run. Return what the worker must be told. It must then forget the blocks that are not free."""
        self._missed = 0
        free, dropped, _, _ = self.orders()
        dropped += self._drop(BLOCKS_KEPT_BYTES)
        self._leave()
        return BlockOrders(free, dropped, 0, 0)

    def clear(self) -> None:
        """Leave all blocks to their views. The worker has ended."""
        self._drop(0)
        self._leave()

    def _leave(self) -> None:
        """Leave the blocks that arrays show to their views."""
        given, self._given = self._given, {}
        self._returned = deque()
        for block in given:
            self._bytes -= block.memory.size
            SHOWN.make_private(block)  # its file descriptor is not needed any longer

    def _drop(self, most: int) -> list[int]:
        """Drop the oldest free blocks while they have more than `most` bytes. Return their numbers."""
        numbers = []
        nbytes = self._free_bytes
        while nbytes > most and self._free:
            numbers.append(next(iter(self._free)))
            size = self._free.pop(numbers[-1]).memory.size
            nbytes -= size
            self._bytes -= size
        return numbers

    @property
    def _free_bytes(self) -> int:
        return sum(block.memory.size for block in self._free.values())

    def forget(self) -> None:
        """Do as `clear` does, but take no lock. The file descriptors of blocks stay open until their views go."""
        self._returned = deque()
        self._given = {}
        self._free = {}
        self._bytes = 0
