"""What reads files: a `Reader` on threads, an `AsyncReader` on the loop, and the `Store` that makes one of them.

The methods of both take many files and return an outcome for each of them, in the order asked for: what was read,
or the exception that says why it was not. They never raise because of a file. A file that is not there is a
`FileNotFoundError`, one that may not be read a `PermissionError`. One that is not as it was listed, or that ends
early, is `Corrupt`. All name the file.

A new store is a subclass of `Store` and one of `Reader` or `AsyncReader`. Only `look` and `read_ranges` must be
written: everything else is made of these two, and may be overridden for speed.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Sequence
from typing import BinaryIO, TypeVar

from asyncfeed.errors import Corrupt
from asyncfeed.reading.file import Bytes, File

T = TypeVar("T")

Range = tuple[int, int]
"""The first byte, and the byte after the last."""
Buffers = Sequence[memoryview | bytearray]
"""Memory of bytes that is filled one buffer after the other."""
BLOCK = 1 << 20
"""Bytes in a block of a stream. Larger blocks take more memory for each open file, smaller ones more requests."""


class Store:
    """Where files are. A value: small, immutable, comparable, hashable, and pickled with each of its files.

    It holds no connection, and its repr shows no secret.
    """

    def reader(self) -> Reader | AsyncReader:
        """Return a new reader of this store. It opens nothing before it is used."""
        raise NotImplementedError


class Reader:
    """Reads the files of one store. Its methods block, so they are called on threads: several at the same time."""

    def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the files with the size and the version that they have now."""
        raise NotImplementedError

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return parts of a file, each in memory of its own. A part that ends behind the file is `Corrupt`."""
        raise NotImplementedError

    def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole files, each in memory of its own: writable, and as large as the file."""
        return [
            found if isinstance(found, Exception) else self.read_ranges(found, [(0, found.size or 0)])[0]
            for found in map(_as_listed, files, self.look(files))
        ]

    def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read whole files into memory that is there, and return None for each that filled its buffers exactly.

        If a file failed, its buffers may hold anything.
        """
        return list(map(fill, files, self.read(files), into))

    def open(self, file: File) -> BinaryIO:
        """Return a file to read and seek in, which the caller closes. Raises what is wrong with the file."""
        return io.BufferedReader(_Ranges(self, value(*self.look((file,)))), BLOCK)

    def close(self) -> None:
        """Close what was opened for more than one call. No call is under way, and none follows."""

    @property
    def closes(self) -> bool:
        """Whether `close` does anything: it is called on a thread, which is not free."""
        return type(self).close is not Reader.close


class AsyncReader:
    """The same, on the event loop. `open` is awaited before anything else, and `close` after everything."""

    async def open(self) -> None:
        """Open what all reads share. If this fails or is cancelled, `close` is called nevertheless."""

    async def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the files with the size and the version that they have now."""
        raise NotImplementedError

    async def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return parts of a file, each in memory of its own. A part that ends behind the file is `Corrupt`."""
        raise NotImplementedError

    async def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole files, each in memory of its own: writable, and as large as the file."""
        outcomes: list[Bytes | Exception] = []
        for found in map(_as_listed, files, await self.look(files)):
            if isinstance(found, Exception):
                outcomes.append(found)
            else:
                outcomes += await self.read_ranges(found, [(0, found.size or 0)])
        return outcomes

    async def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read whole files into memory that is there, and return None for each that filled its buffers exactly.

        If a file failed, its buffers may hold anything. If the call is cancelled, nothing is written into them
        after it has ended.
        """
        return list(map(fill, files, await self.read(files), into))

    async def stream(self, file: File) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file, block after block. The caller closes it, unless it has ended.

        A stream is not compared with what was listed: a file that grows is read as far as it goes now.
        """
        found = value(*await self.look((file,)))
        size = found.size or 0
        for start in range(0, size, BLOCK):
            yield value(*await self.read_ranges(found, [(start, min(start + BLOCK, size))])).tobytes()

    async def close(self) -> None:
        """Close what was opened, once. No call is under way unless the grace of the run is over."""

    def abandon(self) -> None:
        """Let go of what was opened, instead of `close`: the loop has been closed, so nothing can be awaited."""


def value(outcome: T | Exception) -> T:
    """Return what was read, or raise why it was not."""
    if isinstance(outcome, Exception):
        try:
            raise outcome
        finally:
            del outcome  # or else it would keep this frame, which keeps it
    return outcome


def fill(file: File, outcome: Bytes | Exception, into: Buffers) -> Exception | None:
    """Copy what was read of a file into buffers; return what is wrong instead, if it does not fill them."""
    if isinstance(outcome, Exception):
        return outcome
    size = sum(map(len, into))
    if len(outcome) != size:
        return wrong_size(file, len(outcome), size)
    start = 0
    for buffer in into:
        buffer[:] = outcome.data[start : start + len(buffer)]
        start += len(buffer)
    return None


def wrong_size(file: File, found: int, expected: int) -> Corrupt:
    """Return the error of a file that has another size than the memory it was to fill."""
    return Corrupt(f"{file.path} has {found} bytes, and {expected} were expected")


def ends_before(file: File, stop: int) -> Corrupt:
    """Return the error of a file that is shorter than a part of it that was asked for."""
    return Corrupt(f"{file.path} ends before byte {stop}: a part of it was asked for that is not there")


def changed(file: File, size: int | None, version: int | str | None) -> Corrupt | None:
    """Return the error if a file that now has this size and version is not as it was listed; None if it is.

    What was not listed is not compared.
    """
    if (file.size is None or file.size == size) and (file.version is None or file.version == version):
        return None
    what = f"was {file.size} bytes, is {size}"
    if file.size is None or file.size == size:
        what = "it was written to"
    return Corrupt(f"{file.path} changed since it was listed ({what}): call files(...) again once it is complete")


def _as_listed(file: File, found: File | Exception) -> File | Exception:
    """Return what was found, or the error if that is not what was listed."""
    if isinstance(found, Exception):
        return found
    return changed(file, found.size, found.version) or found


class _Ranges(io.RawIOBase):
    """A file of any store as Python's own files are: it can be read and sought in."""

    def __init__(self, reader: Reader, file: File) -> None:
        self._reader = reader
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size or 0}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}, which is before the file")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        stop = min(self._at + len(buffer), self._file.size or 0)
        if stop <= self._at:
            return 0
        part = value(*self._reader.read_ranges(self._file, [(self._at, stop)]))
        buffer[: len(part)] = part.data
        self._at = stop
        return len(part)
