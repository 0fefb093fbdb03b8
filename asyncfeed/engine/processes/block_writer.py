"""The worker's side of the blocks: memory shared with the parent, in which results are written.

The parent's side, and the invariants of both, are in `blocks.py`. Here:

* An array that a function returned is copied into a block once. A function that reads files into arrays makes the
  arrays in blocks (`BlockPool`), and nothing is copied.
* A block that was made for an array of such a function is sent if the result holds the array as it was made. If
  the result does not hold it, the block is free again.
* If the function has kept a view of such an array, the worker never writes the block again.
* A new block costs as much as several copies, and pays only if it is used several times. So a block is made for an
  array only after `BLOCK_AFTER_COPIES` arrays were copied for the lack of one.
* If no block can be had, the array is made in the memory of the process, or goes through the arena.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from asyncfeed.engine.constants import BLOCK_AFTER_COPIES, BLOCK_ARRAY_BYTES, BLOCKS_FEW
from asyncfeed.engine.processes.blocks import BlockOrders
from asyncfeed.engine.processes.mapping import Mapping, Shown
from asyncfeed.stacking.pool import Pool, rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAN_MAKE_BLOCKS = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether the system has what blocks need. On other systems, all results go through the arena."""


class _Block(NamedTuple):
    number: int
    mapping: Mapping
    owner: weakref.ref[Shown] | None = None
    """The owner of the array that was made in it."""

    @property
    def kept(self) -> bool:
        """Whether the function still has a view of the array."""
        return self.owner is not None and self.owner() is not None


class BlockWriter:
    """The blocks of this worker process. Its main thread calls it."""

    def __init__(self, announce: Callable[[int], bool]) -> None:
        self._announce = announce
        """Sends the file of a new block to the parent. Returns whether the parent has mapped it."""
        self._last = 0
        self._allowed = self._allowed_bytes = 0
        self._copied = 0
        """Number of arrays since the last new block for which there was none."""
        self._free: dict[int, Mapping] = {}
        self._given: dict[int, Mapping] = {}
        """The blocks that the parent has."""
        self._made: dict[int, _Block] = {}
        """The blocks in which the function makes arrays during this call, by the address of the array."""
        self._placed: list[_Block] = []
        """The blocks of the value that is being written."""
        self._sent: list[_Block] = []
        """The blocks of the arrays that were made during this call and were sent."""

    def begin(self, orders: BlockOrders) -> None:
        """Take back blocks, and forget others, as the parent says."""
        for number in orders.free:
            if number in self._given:
                self._free[number] = self._given.pop(number)
        for number in orders.dropped:
            self._free.pop(number, None)
            self._given.pop(number, None)
        self._allowed = orders.allowed if CAN_MAKE_BLOCKS else 0
        self._allowed_bytes = orders.allowed_bytes

    def make(self, size: int) -> NDArray[np.uint8] | None:
        """Return new memory for an array, or None. The memory starts at a page."""
        block = self._take(size)
        if block is None:
            return None
        address = block.mapping.address
        owner = Shown(address, size, block.mapping.memory)
        self._made[address] = block._replace(owner=weakref.ref(owner))
        return np.asarray(owner)

    def place(self, data: Any) -> int:
        """Return the number of a block that holds these bytes from its start. Return 0 if there is none."""
        view = np.frombuffer(data, np.uint8)
        block = self._made.pop(view.__array_interface__["data"][0], None)
        if block is None:
            block = self._take(view.size)
            if block is None:
                return 0
            block.mapping.memory[: view.size] = view  # without the GIL
        self._placed.append(block)
        return block.number

    def keep(self) -> int:
        """Give the parent the blocks of the value that was written. Return the number of their bytes."""
        for block in self._placed:
            self._given[block.number] = block.mapping
        self._sent += (block for block in self._placed if block.owner is not None)
        nbytes = sum(block.mapping.memory.size for block in self._placed)
        self._placed.clear()
        return nbytes

    def undo(self) -> None:
        """Take back the blocks of a value that could not be written."""
        for block in self._placed:
            if block.owner is None:
                self._free[block.number] = block.mapping
            else:
                self._made[block.mapping.address] = block
        self._placed.clear()

    def end_call(self) -> None:
        """Take back the blocks of arrays that were not sent. Forget the blocks that the function still views."""
        for block in self._made.values():
            if not block.kept:
                self._free[block.number] = block.mapping
        for block in self._sent:
            if block.kept:
                del self._given[block.number]
        self._made.clear()
        self._sent.clear()

    def rest(self, orders: BlockOrders) -> None:
        """End the run. Only free blocks stay."""
        self.begin(orders)
        self._given.clear()
        self._made.clear()
        self._sent.clear()

    def _take(self, size: int) -> _Block | None:
        size = rounded(size)
        for number in reversed(self._free):  # the block returned last may still be in the processor's cache
            if self._free[number].memory.size == size:
                return _Block(number, self._free.pop(number))
        self._copied += 1
        if self._copied <= BLOCK_AFTER_COPIES:
            return None
        blocks = len(self._free) + len(self._given) + len(self._made) + len(self._placed)
        if self._allowed <= 0 or (size > self._allowed_bytes and blocks >= BLOCKS_FEW):
            return None
        self._copied = 0
        self._allowed -= 1
        self._allowed_bytes -= size
        with suppress(OSError):  # the system has no memory, or no descriptor
            fd = os.memfd_create("asyncfeed")
            try:
                os.ftruncate(fd, size)
                mapping = Mapping(fd, size)
            except BaseException:
                os.close(fd)
                raise
            mapped_there = self._announce(fd)
            mapping.close_file()
            if mapped_there:
                self._last += 1
                return _Block(self._last, mapping)
        self._allowed = 0
        return None


class BlockPool(Pool):
    """Makes large arrays in blocks while there are some, and all others as any pool does."""

    def __init__(self, blocks: BlockWriter) -> None:
        super().__init__()
        self._blocks = blocks

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a writable array of this shape, not filled, that starts at a multiple of 64 bytes."""
        size = prod(shape) * dtype.itemsize
        if size >= BLOCK_ARRAY_BYTES and not dtype.hasobject:
            memory = self._blocks.make(size)
            if memory is not None:
                return np.ndarray(shape, dtype, memory)
        return super().empty(shape, dtype)
