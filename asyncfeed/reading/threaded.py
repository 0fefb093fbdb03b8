"""An `AsyncReader` that calls a `Reader` on threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, BinaryIO

from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import AsyncReader, Range, Reader

FIRST = 1 << 16
"""Bytes that the first call on a thread reads of a stream. Each call reads twice as many as the one before."""
BLOCK = 1 << 20
"""Bytes that one call reads at most. Fewer bytes make more calls of 0.1 ms. More bytes take more memory."""


class ThreadedReader(AsyncReader):
    """Calls the methods of a `Reader` on threads. `submit(fn, *args)` starts a call and returns its future.

    A call that has begun cannot be stopped. If it is cancelled, it goes on and its result is dropped.
    """

    def __init__(self, reader: Reader, submit: Callable[..., asyncio.Future[Any]]) -> None:
        self._reader = reader
        self._submit = submit

    @property
    def blocking(self) -> Reader:
        """The reader that it calls."""
        return self._reader

    async def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the files with the size and the version that they have now."""
        found: list[File | Exception] = await self._submit(self._reader.look, files)
        return found

    async def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole files."""
        found: list[Bytes | Exception] = await self._submit(self._reader.read, files)
        return found

    async def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return parts of a file."""
        found: list[Bytes | Exception] = await self._submit(self._reader.read_ranges, file, ranges)
        return found

    async def stream(self, file: File, start: int = 0) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file in blocks of 64 KB to 1 MB. The file is closed in every case."""
        handle = _Handle(self._reader, file, start)
        try:
            await self._submit(handle.open)
            while block := await self._submit(handle.read):
                yield block
        finally:
            opened = handle.leave()
            if opened is not None:
                # A thread closes the file, even if this task is cancelled now: `wait` does not cancel its futures.
                try:
                    closed = self._submit(opened.close)
                except RuntimeError:  # the loop is closed, or the interpreter exits: nothing can be awaited
                    handle.close()
                else:
                    await asyncio.wait([closed])
                    closed.result()

    async def close(self) -> None:
        """Close the reader."""
        if self._reader.closes:
            await self._submit(self._reader.close)


class _Handle:
    """A file that is opened and read on threads. The stream may be left while `open` hangs on a slow disk."""

    def __init__(self, reader: Reader, file: File, start: int) -> None:
        self._reader = reader
        self._file = file
        self._start = start
        self._opened: BinaryIO | None = None
        self._left = False
        self._reading = False
        self._close = False
        self._step = FIRST
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file. If the stream was left meanwhile, close it at once."""
        opened = self._reader.open(self._file)
        if self._start:
            opened.seek(self._start)
        with self._lock:
            if not self._left:
                self._opened = opened
                return
        opened.close()

    def read(self) -> bytes:
        """Return the next bytes."""
        assert self._opened is not None
        with self._lock:
            if self._close:
                return b""
            self._reading = True
        try:
            step, self._step = self._step, min(BLOCK, 2 * self._step)
            return self._opened.read(step)
        finally:
            with self._lock:
                self._reading = False
                close = self._close
            if close:
                self._opened.close()

    def leave(self) -> BinaryIO | None:
        """Return the file, which the caller closes.

        None if it is not open; if it opens later, `open` closes it.
        """
        with self._lock:
            self._left = True
            return self._opened

    def close(self) -> None:
        """Close the file without waiting: at once, or after the read that is running."""
        assert self._opened is not None
        with self._lock:
            self._close = True
            reading = self._reading
        if not reading:
            self._opened.close()
