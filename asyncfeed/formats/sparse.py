"""A file of which only some parts are in memory, for libraries that read from a Python file object."""

from __future__ import annotations

import io
from bisect import bisect_right

from asyncfeed.errors import Corrupt
from asyncfeed.reading.file import Bytes, File


class SparseFile:
    """Parts of a file, as a file object to read and seek in. Reading what is not there raises `Corrupt`.

    pyarrow calls `read_buffer`, and then copies nothing.
    """

    mode = "rb"
    closed = False

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size
        self._at = 0
        self._parts: list[tuple[int, memoryview]] = []
        """The parts by their start. They may overlap."""

    def add(self, start: int, data: Bytes) -> None:
        """Add a part of the file that begins at `start`."""
        self._parts.append((start, data.data))
        self._parts.sort(key=_start)

    def drop(self, start: int) -> None:
        """Drop the part that begins at `start`."""
        self._parts = [part for part in self._parts if part[0] != start]

    def read_buffer(self, size: int = -1) -> memoryview:
        """Return the next bytes without a copy; fewer at the end of the file."""
        at = self._at
        stop = self._size if size is None or size < 0 else min(at + size, self._size)
        if stop <= at:
            return memoryview(b"")
        for place in range(bisect_right(self._parts, at, key=_start) - 1, -1, -1):
            start, data = self._parts[place]
            if stop <= start + len(data):
                break
        else:
            raise Corrupt(f"{self._file.path} points outside of its own parts, to bytes {at} to {stop}")
        self._at = stop
        return data[at - start : stop - start]

    def part(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range."""
        self.seek(start)
        return self.read(stop - start)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        return bytes(self.read_buffer(size))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Continue at another position."""
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def size(self) -> int:
        """Return the size of the whole file."""
        return self._size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the parts belong to the decoder."""


def _start(part: tuple[int, memoryview]) -> int:
    return part[0]
