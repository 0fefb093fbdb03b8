"""A `ByteStream` gives a decoder of records the bytes of one file, in order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial

import numpy as np

from asyncfeed.errors import Corrupt
from asyncfeed.reading.compression import BY_MAGIC, Compression, Magic
from asyncfeed.reading.decompressed import decompressed
from asyncfeed.reading.file import GIVEN, Bytes, File
from asyncfeed.reading.reader import AsyncReader, Store
from asyncfeed.reading.scope import current, new_reader
from asyncfeed.reading.threaded import ThreadedReader


class ByteStream:
    """A file that is read from its start to its end: in blocks, or in parts of a given size."""

    def __init__(self, file: File, blocks: AsyncGenerator[bytes]) -> None:
        self.file = file
        self.offset = 0
        """Number of bytes that were taken."""
        self._blocks = blocks
        self._rest = memoryview(b"")

    async def block(self) -> bytes:
        """Return the next bytes, as many as are available at once. At the end of the file return no bytes."""
        taken = bytes(self._rest) if self._rest else await anext(self._blocks, b"")
        self._rest = memoryview(b"")
        self.offset += len(taken)
        return taken

    async def read(self, size: int) -> bytes:
        """Return the next `size` bytes.

        At the end of the file return no bytes. Raise `Corrupt` if it ends between.
        """
        rest = self._rest
        if size <= len(rest):
            self._rest = rest[size:]
            self.offset += size
            return bytes(rest[:size])
        parts, missing = [rest], size - len(rest)
        while missing > 0:
            block = await anext(self._blocks, b"")
            if not block:
                break
            parts.append(memoryview(block)[:missing])
            self._rest = memoryview(block)[missing:]
            missing -= len(block)
        if missing > 0:
            self._rest = memoryview(b"")
            if missing == size:
                return b""
            found = f"{size - missing} of {size} bytes"
            raise Corrupt(f"{self.file.path} is cut short: {found} are there at offset {self.offset}")
        self.offset += size
        return b"".join(parts)


@asynccontextmanager
async def opened(
    source: File | str | os.PathLike[str] | bytes | bytearray | memoryview | Bytes,
    compression: Compression | None = None,
    magic: Magic = BY_MAGIC,
) -> AsyncIterator[ByteStream]:
    """Return an async context manager that gives the `ByteStream` of a file, or of bytes in memory.

    With a `compression`, the stream has the decompressed bytes. `magic` tells the format if it is "auto".

    In a run the run's reader reads the file, on the run's threads if the file is local. Outside a run a reader is
    made for this use and closed after it, and the threads are those of the loop's default executor.
    """
    async with AsyncExitStack() as closing:
        if isinstance(source, (bytes, bytearray, memoryview, np.ndarray)):
            file, blocks = File(GIVEN), _given(bytes(source))
        else:
            file = source if isinstance(source, File) else File(os.fspath(source))
            reader = await closing.enter_async_context(reader_for(file.store))
            blocks = await closing.enter_async_context(aclosing(reader.stream(file)))
        if compression is not None:
            blocks = await closing.enter_async_context(
                aclosing(decompressed(file.path, blocks, compression, magic))
            )
        yield ByteStream(file, blocks)


async def _given(data: bytes) -> AsyncGenerator[bytes]:
    if data:
        yield data


@asynccontextmanager
async def reader_for(store: Store | None) -> AsyncIterator[AsyncReader]:
    """Return an async context manager that gives the run's reader of a store, or one for this use."""
    scope = current.get()
    if scope is not None:
        yield await scope.async_reader(store)
        return
    made = new_reader(store)
    if not isinstance(made, AsyncReader):
        made = ThreadedReader(made, partial(asyncio.get_running_loop().run_in_executor, None))
    try:
        await made.open()
        yield made
    finally:
        await made.close()
