"""`ByteRanges` gives a decoder the parts of one file, in any order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from asyncfeed.reading.copies import on_thread
from asyncfeed.reading.file import GIVEN, Bytes, File
from asyncfeed.reading.memory import MemoryStore
from asyncfeed.reading.reader import AsyncReader, Range, Reader, value
from asyncfeed.reading.scope import current
from asyncfeed.reading.stream import reader_for
from asyncfeed.reading.threaded import ThreadedReader


class ByteRanges:
    """A file of which parts are read, in any order. It does not change between the reads, or they fail."""

    def __init__(self, file: File, reader: AsyncReader) -> None:
        self.file = file
        """The file, with its size."""
        self._reader = reader
        self._held = 0

    def hold(self, nbytes: int) -> None:
        """Count the bytes that are held of the file, for the memory limit of the run. Call this on the loop."""
        scope = current.get()
        if scope is not None and nbytes != self._held:
            scope.charge(nbytes - self._held)
            self._held = nbytes

    @property
    def size(self) -> int:
        """Number of bytes in the file."""
        return self.file.size or 0

    async def read(self, *ranges: Range) -> list[Bytes]:
        """Return parts of the file, each in memory of its own. Read together, near ones may take one request.

        Raises what went wrong with the first part that could not be read. A part must lie in the file.
        """
        return list(map(value, await self._reader.read_ranges(self.file, ranges)))

    @property
    def blocking(self) -> Reader | None:
        """The reader of the file if its methods block, as for local files: threads may call it. Otherwise None."""
        return self._reader.blocking if isinstance(self._reader, ThreadedReader) else None

    def read_now(self, *ranges: Range) -> list[Bytes]:
        """Do what `read` does, and block. Call this on a thread, if `blocking` is a reader."""
        assert self.blocking is not None
        return list(map(value, self.blocking.read_ranges(self.file, ranges)))

    def start(self, fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Start a call on a thread, and return its future. Await it: an exception that nobody sees is logged."""
        return on_thread(fn, *args)


@asynccontextmanager
async def opened_ranges(
    source: File | str | os.PathLike[str] | bytes | bytearray | memoryview | Bytes,
) -> AsyncIterator[ByteRanges]:
    """Return an async context manager that gives the `ByteRanges` of a file, or of bytes in memory.

    A file of unknown size is looked up first.
    """
    if isinstance(source, (bytes, bytearray, memoryview, np.ndarray)):
        file = MemoryStore({GIVEN: bytes(source)}).files()[0]
    else:
        file = source if isinstance(source, File) else File(os.fspath(source))
    async with reader_for(file.store) as reader:
        if file.size is None:
            file = value(*await reader.look((file,)))
        ranges = ByteRanges(file, reader)
        try:
            yield ranges
        finally:
            ranges.hold(0)
