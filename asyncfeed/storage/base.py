"""What storage is: a `File` that is known but not read, and the `Store` it is read from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""The bytes of a file: one dimension, contiguous, writable, owned by whoever holds it."""


class File:
    """A file that has been listed and not been read.

    `size` is in bytes and `mtime_ns` in nanoseconds since 1970, both None where nobody looked. A reader
    compares them with what it finds, so a file that changes between listing and reading is an error.
    Treat it as immutable; it is a plain class because a frozen one takes five times as long to make.

    >>> File("a.npy", 17)
    File('a.npy', 17 bytes)
    """

    __slots__ = ("mtime_ns", "path", "size")

    def __init__(self, path: str, size: int | None = None, mtime_ns: int | None = None) -> None:
        self.path = path
        self.size = size
        self.mtime_ns = mtime_ns

    @property
    def nbytes(self) -> int:
        """What the file takes in memory before it is read: nothing."""
        return 0

    def __fspath__(self) -> str:
        return self.path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, File):
            return NotImplemented
        mine = (type(self), self.path, self.size, self.mtime_ns)
        return mine == (type(other), other.path, other.size, other.mtime_ns)

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        size = "" if self.size is None else f", {self.size} byte{'' if self.size == 1 else 's'}"
        return f"File({self.path!r}{size})"


class Store(Protocol):
    """Where files live, when they do not live on a local disk.

    Keys are relative to the store. A range is (first byte, byte after the last). Buffers come back whole and
    writable. An object that is not there raises `FileNotFoundError`, one that may not be read
    `PermissionError`, and one that comes back short `Corrupt`.
    """

    async def read(self, key: str) -> Bytes:
        """Read a whole object."""
        ...

    async def read_range(self, key: str, start: int, stop: int) -> Bytes:
        """Read bytes start..stop-1 of an object."""
        ...

    async def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Bytes]:
        """Read several ranges of one object, in the order asked for."""
        ...

    async def head(self, key: str) -> File:
        """Return what is known about an object without reading it."""
        ...

    def list(self, prefix: str) -> AsyncIterator[File]:
        """Go through the objects whose keys start with `prefix`, sorted by key."""
        ...
