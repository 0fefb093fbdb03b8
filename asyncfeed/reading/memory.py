"""A store of bytes in memory: for tests, and for bytes that do not come from files."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

import numpy as np

from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import Range, Reader, Store, changed, ends_before


class MemoryStore(Store):
    """Files in memory. The mapping from paths to bytes is not copied; a file is copied when it is read.

    A file is pickled with its store. So each file that is sent to another process carries the bytes of all files.

    >>> import asyncfeed as af
    >>> store = MemoryStore({"a.txt": b"one", "b.txt": b"two"})
    >>> list(af.items(store.files()).load(af.text))
    ['one', 'two']
    """

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.contents = contents

    def files(self) -> list[File]:
        """Return all files, in the order of the mapping."""
        return [File(path, len(data), store=self) for path, data in self.contents.items()]

    def reader(self) -> MemoryReader:
        """Return a reader of these bytes."""
        return MemoryReader(self.contents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryStore) and self.contents == other.contents

    def __hash__(self) -> int:
        return hash(len(self.contents))

    def __repr__(self) -> str:
        return f"MemoryStore({len(self.contents)} files)"


class MemoryReader(Reader):
    """Reads from a mapping. The mapping may change between calls, as a disk may."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents

    def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the files with their sizes."""
        return [
            _missing(file) if data is None else File(file.path, len(data), store=file.store)
            for file, data in zip(files, map(self._contents.get, [file.path for file in files]), strict=True)
        ]

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return copies of parts of a file."""
        data = self._contents.get(file.path)
        if data is None:
            return [_missing(file) for _ in ranges]
        wrong = changed(file, len(data), None)
        return [_part(data, file, start, stop) if wrong is None else wrong for start, stop in ranges]


def _part(data: bytes, file: File, start: int, stop: int) -> Bytes | Exception:
    if stop > len(data):
        return ends_before(file, stop)
    return np.frombuffer(data, np.uint8, stop - start, start).copy()


def _missing(file: File) -> Exception:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file.path)
