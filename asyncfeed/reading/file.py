"""What a file is: known by its path, in a store, and not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from asyncfeed.reading.reader import Store

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""The bytes of a file: one dimension, contiguous, writable, owned by whoever holds it."""

GIVEN = "<bytes>"
"""What errors call bytes that came from no file."""


class File:
    """A file that has been listed and not been read.

    Treat it as immutable. It is a plain class because a frozen one takes five times as long to make. A reader
    compares size and version with what it finds, so a file that changes between listing and reading is an error.

    Args:
        path: Where the file is.
        size: Bytes; None if nobody looked.
        mtime_ns: When it was last written to, in nanoseconds since 1970; None if nobody looked.
        etag: The version instead of a time, for files of stores that have one.
        store: Where the file is; None is the local disk.

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
        """What changes when the file is written to: its `mtime_ns` or its `etag`."""
        self.store = store

    @property
    def mtime_ns(self) -> int | None:
        """When the file was last written to, in nanoseconds since 1970; None if nobody looked."""
        return self.version if isinstance(self.version, int) else None

    @property
    def etag(self) -> str | None:
        """What its store calls this version of the file; None if that is not known."""
        return self.version if isinstance(self.version, str) else None

    @property
    def nbytes(self) -> int:
        """What the file takes in memory before it is read: nothing."""
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
