"""How files are read: a `Reader` on threads, an `AsyncReader` on the loop, and the `Store` that makes one of them.

The methods of both take many files and return an outcome for each file, in the order of the files: what was read,
or the exception that says why it was not read. They never raise because of a file. These exceptions all name the
file:

* `FileNotFoundError`: the file is not there.
* `PermissionError`: it may not be read.
* `Corrupt`: it differs from what was listed, or it ends early.

A new store is a subclass of `Store` and a subclass of `Reader` or `AsyncReader`. Only `look` and `read_ranges`
must be written. The other methods use these two, and may be overridden for speed.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import AsyncGenerator, Sequence
from enum import Enum
from stat import S_ISDIR
from typing import BinaryIO, ClassVar, NamedTuple, TypeVar

import numpy as np

from asyncfeed.attempts.retry import Policy, Wanted
from asyncfeed.errors import Corrupt, StoreError
from asyncfeed.reading.file import Bytes, File, Numbers, address_of
from asyncfeed.stats import SlowPaths

T = TypeVar("T")

Range = tuple[int, int]
"""The number of the first byte, and of the byte after the last one."""
Buffers = Sequence[memoryview | bytearray]
"""Memory to read into. The buffers are filled one after the other."""
BLOCK = 1 << 20
"""Bytes in a block of a stream. Larger blocks take more memory for each open file, smaller ones more requests."""


class Store:
    """A place where files are, as a value: small, immutable, comparable and hashable.

    Each file is pickled with its store. A store holds no connection, and its repr shows no secret.
    """

    reads_on_loop: ClassVar[bool] = False
    """Whether `reader` returns an `AsyncReader`. `load` then waits for whole files on the loop, not on threads."""

    @property
    def policy(self) -> Policy:
        """How an `AsyncReader` of this store reads if `load` says nothing else. By default a file is read once."""
        return Policy()

    @property
    def identity(self) -> str | None:
        """The name of the store, the same in every process, without any secret. Cached files are found by it.

        None: the files of this store are not cached.
        """
        return None

    def reader(self) -> Reader | AsyncReader:
        """Return a new reader of this store. The reader opens nothing before it is used."""
        raise NotImplementedError


class Rows(NamedTuple):
    """Memory for some files: `sizes` bytes of `memory`, which has one axis, from `starts` on."""

    memory: Bytes
    starts: Numbers
    sizes: Numbers

    def addresses(self) -> Numbers:
        """Return the address of the memory of each file."""
        return self.starts + address_of(self.memory) if len(self.memory) else self.starts

    def parts(self) -> list[memoryview]:
        """Return the memory of each file."""
        memory, ends = self.memory.data, (self.starts + self.sizes).tolist()
        return [memory[start:end] for start, end in zip(self.starts.tolist(), ends, strict=True)]


Columns = Sequence[Sequence[Rows]]
"""Memory for files that are read in pieces: for each piece, rows for all files, which may be in several arrays."""


def sizes_of(columns: Columns) -> list[Numbers]:
    """Return the sizes of each piece of the files."""
    return [rows[0].sizes if len(rows) == 1 else np.concatenate([each.sizes for each in rows]) for rows in columns]


def parts_of(columns: Columns) -> list[tuple[memoryview, ...]]:
    """Return the memory of each file, in pieces."""
    return list(zip(*([part for each in rows for part in each.parts()] for rows in columns), strict=True))


class Waits(Enum):
    """What a call that read files waited for, beside the GIL."""

    UNKNOWN = "unknown"
    """Only the clock can tell. A thread that waited for the GIL looks like one that waited for a disk."""
    NONE = "none"
    """Nothing: no other thread would have read these files sooner."""
    KERNEL = "kernel"
    """Nothing, but the kernel read the files without the GIL: another thread can read others at the same time."""
    TOGETHER = "together"
    """The disk, for all files at the same time."""


class Reader:
    """Reads the files of one store. Its methods block, so they are called on threads, several at the same time."""

    waits = Waits.UNKNOWN
    """What the last call of `read_rows` waited for, of any thread."""

    def follow(self, wanted: Wanted, again: SlowPaths) -> None:
        """Note how `load` wants files to be read. This is called before all other methods.

        A reader that asks another one passes it on. `again` counts what is shown with the statistics of the run.
        """

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

    def read_rows(self, files: Sequence[File], columns: Columns) -> dict[int, Exception]:
        """Read whole files into the rows of arrays, and return the error of each file that failed, by its place.

        The first bytes of a file go into its row of the first column, the next ones into its row of the second.
        If a file failed, its memory may hold anything.
        """
        outcomes = self.read_into(files, parts_of(columns))
        return {place: error for place, error in enumerate(outcomes) if error is not None}

    def open(self, file: File) -> BinaryIO:
        """Return the file, opened to read and seek in. The caller closes it. Raises if it cannot be opened."""
        return as_file(self, value(*self.look((file,))))

    def close(self) -> None:
        """Close everything that was opened for more than one call. No call is running, and none follows."""

    @property
    def closes(self) -> bool:
        """Whether `close` does anything. If not, it is not called, which saves a call on a thread."""
        return type(self).close is not Reader.close


class AsyncReader:
    """Reads the files of one store on the event loop.

    `open` is awaited before all other calls, `close` after them.
    """

    async def open(self) -> None:
        """Open what all reads share, such as a connection pool.

        If this fails or is cancelled, `close` still follows.
        """

    def follow(self, policy: Policy, again: SlowPaths) -> None:
        """Note how long a request may take, and when it is made a second time. This is called before `open`.

        A reader that makes no requests of its own ignores it. Reads that failed are made again by others. `again`
        counts requests beside slow ones.
        """

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

    async def contents(self, files: Sequence[File]) -> list[memoryview | Exception]:
        """Return whole files. Memory that can be written to belongs to the caller; other memory saves a copy."""
        return [each if isinstance(each, Exception) else each.data for each in await self.read(files)]

    async def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read whole files into memory that is there, and return None for each that filled its buffers exactly.

        If a file failed, its buffers may hold anything. If the call is cancelled, nothing is written into them
        after it has ended.
        """
        return list(map(fill, files, await self.read(files), into))

    async def stream(self, file: File, start: int = 0) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file from byte `start` on, in blocks. The caller closes it, unless it has ended.

        A stream is not compared with what was listed: a file that grows is read as far as it goes now.
        """
        found = value(*await self.look((file,)))
        size = found.size or 0
        for at in range(start, size, BLOCK):
            yield value(*await self.read_ranges(found, [(at, min(at + BLOCK, size))])).tobytes()

    async def close(self) -> None:
        """Close everything that was opened. This is called once. No call is running, unless the grace is over."""

    def abandon(self) -> None:
        """Drop everything that was opened.

        This replaces `close` if the loop is closed: nothing can be awaited then.
        """


def as_file(reader: Reader, file: File) -> BinaryIO:
    """Return a Python file object that reads parts of a file whose size is known."""
    return io.BufferedReader(_Ranges(reader, file), BLOCK)


def value(outcome: T | Exception) -> T:
    """Return the value of an outcome, or raise its exception."""
    if isinstance(outcome, Exception):
        try:
            raise outcome
        finally:
            del outcome  # else the exception and this frame would hold each other
    return outcome


def fill(file: File, outcome: Bytes | memoryview | Exception, into: Buffers) -> Exception | None:
    """Copy the contents of a file into buffers.

    Return None, or the error if they do not fill the buffers exactly.
    """
    if isinstance(outcome, Exception):
        return outcome
    size = sum(map(len, into))
    if len(outcome) != size:
        return wrong_size(file, len(outcome), size)
    data = outcome if isinstance(outcome, memoryview) else outcome.data
    start = 0
    for buffer in into:
        buffer[:] = data[start : start + len(buffer)]
        start += len(buffer)
    return None


def not_a_file(path: str, mode: int) -> OSError:
    """Return the error for a path that exists and is no regular file."""
    if S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return StoreError(f"{path} is not a regular file but a pipe, a socket or a device, which cannot be read whole")


def wrong_size(file: File, found: int, expected: int) -> Corrupt:
    """Return the error of a file whose size differs from that of the memory to fill."""
    return Corrupt(f"{file.path} has {found} bytes, and {expected} were expected")


def ends_before(file: File, stop: int) -> Corrupt:
    """Return the error of a file that ends before the end of the part to read."""
    return Corrupt(f"{file.path} ends before byte {stop}: a part of it was asked for that is not there")


def changed(file: File, size: int | None, version: int | str | None) -> Corrupt | None:
    """Return an error if the size or the version differs from what was listed; None if both agree.

    A size or version that was not listed is not compared.
    """
    if (file.size is None or file.size == size) and (file.version is None or file.version == version):
        return None
    what = f"was {file.size} bytes, is {size}"
    if file.size is None or file.size == size:
        what = "it was written to"
    return Corrupt(f"{file.path} changed since it was listed ({what}): call files(...) again once it is complete")


def _as_listed(file: File, found: File | Exception) -> File | Exception:
    """Return the file that was found, or the error if it differs from the listed one."""
    if isinstance(found, Exception):
        return found
    return changed(file, found.size, found.version) or found


class _Ranges(io.RawIOBase):
    """A file of any store, as a Python file object that can be read and sought in."""

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
