"""A `File`: the path, size and version of a file in a store. It is not read."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from asyncfeed.reading.reader import Store

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""The bytes of a file: one dimension, contiguous, writable. The holder of the array owns them."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]
"""Places in memory, in files or in lists."""


def address_of(memory: np.ndarray[Any, Any]) -> int:
    """Return the address of an array that is not empty and can be written to.

    `memory.ctypes` takes four times as long.
    """
    return addressof(c_char.from_buffer(memory.data))


GIVEN = "<bytes>"
"""The name in errors for bytes that came from no file."""


class File:
    """A file that has been listed and not been read.

    Treat it as immutable. It is a plain class because a frozen one takes five times as long to make. A reader
    compares size and version with what it finds, so a file that changes between listing and reading is an error.

    Args:
        path: Where the file is.
        size: Number of bytes; None if it is not known.
        mtime_ns: The time of the last write, in nanoseconds since 1970; None if it is not known.
        etag: The version, for stores that have one instead of a time.
        store: The store that holds the file; None is the local disk.

    Example:
        >>> File("a.npy", 17)
        File('a.npy', 17 bytes)
    """

    __slots__ = ("path", "size", "store", "version")

    def __init__(
        self,
        path: str,
        size: int | None = None,
        mtime_ns: int | None = None,
        *,
        etag: str | None = None,
        store: Store | None = None,
    ) -> None:
        self.path = path
        self.size = size
        self.version: int | str | None = mtime_ns if etag is None else etag
        """The value that changes when the file is written to: its `mtime_ns` or its `etag`."""
        self.store = store

    @property
    def mtime_ns(self) -> int | None:
        """The time of the last write, in nanoseconds since 1970; None if it is not known."""
        return self.version if isinstance(self.version, int) else None

    @property
    def etag(self) -> str | None:
        """The store's name for this version of the file; None if it is not known."""
        return self.version if isinstance(self.version, str) else None

    @property
    def nbytes(self) -> int:
        """Bytes that the item takes in memory: 0, because the file is not read."""
        return 0

    def __fspath__(self) -> str:
        return self.path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, File):
            return NotImplemented
        mine = (type(self), self.path, self.size, self.version, self.store)
        return mine == (type(other), other.path, other.size, other.version, other.store)

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        size = "" if self.size is None else f", {self.size} byte{'' if self.size == 1 else 's'}"
        return f"File({self.path!r}{size})"
