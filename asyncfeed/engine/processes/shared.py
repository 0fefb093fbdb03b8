"""Shared memory between two processes, in which items reach a worker process and results come back.

An `Arena` is an anonymous file that one process writes and another one reads, in turns. Invariants:

* Nothing here is locked. The two processes take turns by messages, for which each side waits.
* A value counts only when it is complete. A value that a process left half written when it died is never read.
* A reader that forgets what it has read finds no old values if the writer then dies before it writes.
* A writer notes which value it makes before it makes it. So if it dies, the reader knows whether it was at one.
* Arrays are not pickled (pickle protocol 5, buffers out-of-band). The bytes of an array are copied once in and
  once out. A large array of a result is in a block instead, and is copied at most once (`blocks.py`).
* A value that was read does not use the arena, which is written again while the reader still holds the value.
* The file has no name. It is gone when both processes have closed it or died in any way.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.engine.constants import (
    ARENA_ARRAY_BYTES,
    ARENA_KEEP_BYTES,
    ARENA_START_BYTES,
    BLOCK_ARRAY_BYTES,
)
from asyncfeed.stacking.aligned import ALIGNMENT, aligned_empty
from asyncfeed.stages.chain import NO_MEMBER
from asyncfeed.stages.steps import MemberError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from asyncfeed.engine.processes.block_writer import BlockWriter
    from asyncfeed.engine.processes.blocks import Blocks


_BYTES = np.dtype(np.uint8)
_HEAD = Struct("<Qd")  # number of complete values; seconds that they took
_BEGUN = Struct("<QQ")  # after the head: number of values that were begun; that of the member that was, from 1
_STOP = _HEAD.size + _BEGUN.size  # after that: a byte that is 1 if the reader need not go on
_RECORD = Struct("<QQ")  # bytes of the pickle that follows; number of buffers after the pickle
_BUFFER = Struct("<QQ")  # bytes of a buffer; number of the block that holds it, or 0 if it follows in the arena


def _align(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT


class Arena:
    """One direction between two processes. Each of them closes its own `Arena`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = self._at = ALIGNMENT
        self._count = 0
        self._buffers: list[pickle.PickleBuffer] = []
        self._pickler: pickle.Pickler | None = None
        self._by_value = False
        self._outside = 0
        self.blocks: Blocks | None = None
        """The blocks that large arrays are read from. It is set once."""
        self.block_writer: BlockWriter | None = None
        """The blocks that large arrays are written to. It is set once."""
        self._memory = self._map()

    @classmethod
    def new(cls) -> Arena:
        """Return a new arena. The other process opens it by its `fileno`."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("asyncfeed")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            os.ftruncate(fd, ARENA_START_BYTES)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._fd

    def close(self) -> None:
        """Release the memory. Further calls do nothing."""
        fd, self._fd = self._fd, -1
        self._memory = np.empty(0, np.uint8)
        self._pickler = None
        if fd >= 0:
            os.close(fd)

    # -- writing

    def write_by_value(self, by_value: bool) -> None:
        """Set whether classes and functions that the other process cannot import are written by value."""
        self._by_value = by_value
        self._pickler = None

    def dumps(self, value: Any) -> bytes:
        """Return a value as bytes, pickled as by `put`, but including its arrays."""
        if self._by_value:
            import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: PLC0415

            data: bytes = cloudpickle.dumps(value, 5)
            return data
        return pickle.dumps(value, 5)

    def trim(self) -> None:
        """Return memory to the system, and forget all values."""
        self._pickler = None
        if self._memory.size > ARENA_START_BYTES:
            self._resize(ARENA_START_BYTES)
        self.begin()

    def begin(self) -> None:
        """Begin to write a new group of values. It overwrites the group before."""
        if self._memory.size > ARENA_KEEP_BYTES and 4 * self._end < self._memory.size:
            self._resize(ARENA_KEEP_BYTES)
        self._end = ALIGNMENT
        self._outside = 0
        self._count = 0
        self.forget()

    def begin_value(self) -> None:
        """Note that the next value of the group is being made."""
        self.begin_member(NO_MEMBER)

    def begin_member(self, number: int) -> None:
        """Note which member of a list the next value is at, or `NO_MEMBER`."""
        _BEGUN.pack_into(self._memory.data, _HEAD.size, self._count + 1, number + 1)

    def stop(self) -> None:
        """Tell the reader that the rest of the group is not wanted. Any thread may call this."""
        memory = self._memory
        if memory.size:
            memory[_STOP] = 1

    @property
    def written(self) -> int:
        """Number of bytes of the group so far, in the arena and in blocks."""
        return self._end + self._outside

    def put(self, value: Any) -> None:
        """Add a value to the group. If it cannot be pickled, raise pickle's exception and leave the value out."""
        start = self._end
        self._end += _RECORD.size
        if self._pickler is None:
            kind = _by_value_pickler() if self._by_value else _Pickler
            self._pickler = kind(self, 5, buffer_callback=self._takes)
        try:
            self._pickler.dump(value)
            length = self._end - start - _RECORD.size
            raws = [buffer.raw() for buffer in self._buffers]
            numbers = [self._place(raw) for raw in raws]
            for raw, number in zip(raws, numbers, strict=True):
                self.write(_BUFFER.pack(raw.nbytes, number))
            for raw, number in zip(raws, numbers, strict=True):
                if not number:
                    self._end = _align(self._end)
                    self.write(raw)
            self._reserve(start + _RECORD.size)
            _RECORD.pack_into(self._memory.data, start, length, len(raws))
        except BaseException:
            self._end = start
            if self.block_writer is not None:
                self.block_writer.undo()
            raise
        finally:
            self._buffers.clear()
            self._pickler.clear_memo()
        if self.block_writer is not None:
            self._outside += self.block_writer.keep()
        self._count += 1
        self.finish(0.0)

    def finish(self, seconds: float) -> None:
        """Record the number of values in the group, and how long they took."""
        self._write_head(self._count, seconds)

    def _write_head(self, count: int, seconds: float) -> None:
        memory = self._memory
        if not memory.size:
            raise OSError(errno.EBADF, "the memory shared with a worker process is closed")
        _HEAD.pack_into(memory.data, 0, count, seconds)

    def write(self, data: Any) -> int:
        """Append bytes. Pickle calls this."""
        view = np.frombuffer(data, np.uint8)
        end = self._end + view.size
        self._reserve(end)
        self._memory[self._end : end] = view  # without the GIL
        self._end = end
        return view.size

    def _takes(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep a large buffer out of the pickle. Return True for a small one, which pickle then takes in."""
        if buffer.raw().nbytes < ARENA_ARRAY_BYTES:
            return True
        self._buffers.append(buffer)
        return False

    def _place(self, raw: memoryview) -> int:
        """Return the number of the block that holds a buffer, or 0 if the buffer must be written to the arena."""
        if self.block_writer is None or raw.nbytes < BLOCK_ARRAY_BYTES:
            return 0
        return self.block_writer.place(raw)

    def _reserve(self, size: int) -> None:
        if size > self._memory.size:
            self._resize(max(size, 2 * self._memory.size))

    def _resize(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._memory = self._map()

    def _map(self) -> NDArray[np.uint8]:
        # Only the array refers to the map, so the map is freed with the array.
        return np.frombuffer(mmap.mmap(self._fd, os.fstat(self._fd).st_size), np.uint8)

    # -- reading

    def forget(self) -> None:
        """Let the group have no values. A reader calls this before the other process writes the next group."""
        self._write_head(0, 0.0)
        _BEGUN.pack_into(self._memory.data, _HEAD.size, 0, 0)
        self._memory[_STOP] = 0

    def stopped(self) -> bool:
        """Return whether the rest of the group is not wanted."""
        return bool(self._memory[_STOP])

    def unfinished(self) -> bool:
        """Return whether the other process has begun to make a value and not completed it."""
        begun, _ = _BEGUN.unpack_from(self._memory.data, _HEAD.size)
        return bool(begun > _HEAD.unpack_from(self._memory.data)[0])

    def member(self) -> int | None:
        """Return the number of the member that the other process was at. None if it was at none."""
        _, number = _BEGUN.unpack_from(self._memory.data, _HEAD.size)
        return number - 1 if number else None

    def open(self) -> tuple[int, float]:
        """Begin to read the group that the other process wrote. Return the number of values and their seconds."""
        if os.fstat(self._fd).st_size != self._memory.size:
            self._memory = self._map()
        self._at = ALIGNMENT
        count, seconds = _HEAD.unpack_from(self._memory.data)
        return count, seconds

    def get(self) -> Any:
        """Return the next value. If that raises, the values after it can still be read."""
        memory = self._memory
        length, buffers = _RECORD.unpack_from(memory.data, self._at)
        start = self._at + _RECORD.size
        table = start + length
        self._at = table + _BUFFER.size * buffers
        parts: list[tuple[int, int, int]] = []  # size; number of a block, or 0; place in the arena
        for each in range(buffers):
            size, number = _BUFFER.unpack_from(memory.data, table + _BUFFER.size * each)
            if number:
                parts.append((size, number, 0))
            else:
                place = _align(self._at)
                parts.append((size, 0, place))
                self._at = place + size
        arrays = [self._array(*part) for part in parts]
        return pickle.loads(memory[start : start + length].data, buffers=arrays)  # noqa: S301 - it is our own

    def _array(self, size: int, number: int, place: int) -> NDArray[np.uint8]:
        if number:
            assert self.blocks is not None
            return self.blocks.show(number, size)
        if self.blocks is not None and size >= BLOCK_ARRAY_BYTES:
            self.blocks.miss(size)
        copy = aligned_empty((size,), _BYTES)
        copy[:] = self._memory[place : place + size]
        return copy


def _reduce(value: Any) -> Any:
    """Pickle an array with gaps, such as each crop of an image, as a contiguous copy."""
    if type(value) is np.ndarray and not value.flags.forc and not value.dtype.hasobject:
        return np.ascontiguousarray(value).__reduce_ex__(5)
    return NotImplemented


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _reduce(value)


@cache
def _by_value_pickler() -> type[pickle.Pickler]:
    from cloudpickle import Pickler  # noqa: PLC0415 - few need it

    class ByValue(Pickler):  # type: ignore[misc,unused-ignore]
        def reducer_override(self, value: Any) -> Any:
            reduced = _reduce(value)
            return super().reducer_override(value) if reduced is NotImplemented else reduced

    return ByValue


class RemoteTraceback(Exception):
    """The traceback of an exception from another process, as text. It is set as the cause of that exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Failed:
    """An exception that a worker process sends to its parent."""

    __slots__ = ("error", "member", "text", "trace")

    def __init__(self, error: BaseException, dumps: Callable[[Any], bytes] = pickle.dumps) -> None:
        self.member: tuple[int | None, str] | None = None
        if isinstance(error, MemberError):
            self.member = error.member, error.stage
            error = error.error
        self.error: bytes | None = None
        self.text = type(error).__qualname__
        self.trace = ""
        with suppress(Exception):  # some exceptions fail when they are formatted
            self.text = "".join(traceback.format_exception_only(error)).rstrip()
            where = error.__traceback__
            self.trace = "".join(traceback.format_exception(type(error), error, where and where.tb_next))
        with suppress(Exception):
            self.error = dumps(error)

    def unpack(self) -> BaseException:
        """Return the exception, or a `RuntimeError` with its text if it cannot be pickled or loaded."""
        loaded: Any = None
        with suppress(Exception):
            loaded = None if self.error is None else pickle.loads(self.error)  # noqa: S301 - it is our own
        error: BaseException = loaded
        if not isinstance(error, BaseException):
            error = RuntimeError(f"{self.text} (in a worker process; this exception cannot be pickled)")
        with suppress(Exception):  # a frozen dataclass accepts no cause, and is raised without one
            error.__cause__ = RemoteTraceback(self.trace)
        return error if self.member is None else MemberError(*self.member, error)
