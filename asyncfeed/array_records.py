"""ArrayRecord files, by number: Google's library reads many records in one call."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from threading import Lock
from typing import Any
from weakref import finalize

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.extras import installed

RANDOM = "readahead_buffer_size:0,max_parallelism:0"
"""Options of the library for records in any order. Its defaults read 16 MB ahead, and start threads."""


def _close(readers: list[Any]) -> None:
    for reader in readers:
        with suppress(Exception):  # a damaged file may fail once more
            reader.close()


class ArrayRecords:
    """The records of local ArrayRecord files, as `bytes`; see `arrayrecord`.

    Any number of threads may read. Reads of one file wait for each other.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        library = installed("array_record.python.array_record_module", "arrayrecord")
        self._readers: list[Any] = []
        finalize(self, _close, self._readers)  # the library leaves its files open
        for path in self.paths:
            size = os.stat(path).st_size  # noqa: PTH116 - the library does not say that a file is not there
            try:
                self._readers.append(library.ArrayRecordReader(path, RANDOM))
                sound = size and self._readers[-1].ok()
            except (ValueError, RuntimeError, OSError) as error:
                raise Corrupt(f"{path} is no ArrayRecord file, or is damaged") from error
            if not sound:
                raise Corrupt(f"{path} is no ArrayRecord file, or is damaged")
        self._locks = [Lock() for _ in self.paths]
        self._firsts = [0, *accumulate(reader.num_records() for reader in self._readers)]

    def __len__(self) -> int:
        count: int = self._firsts[-1]
        return count

    def __getitem__(self, place: int) -> bytes:
        return self.read((place,))[0]

    def read(self, places: Iterable[int]) -> list[bytes]:
        """Return the records with these numbers, in this order. This blocks.

        Args:
            places: Numbers from 0 on, over all files: a list, or an array.

        Raises:
            IndexError: There is no record of this number.
            Corrupt: The file is damaged.
        """
        wanted = list(map(int, places))
        by_file: dict[int, list[int]] = {}
        for at, place in enumerate(wanted):
            if not 0 <= place < len(self):
                raise IndexError(f"there is no record {place}: the files have {len(self)}")
            by_file.setdefault(bisect_right(self._firsts, place) - 1, []).append(at)
        records: list[Any] = [b""] * len(wanted)
        for file, members in by_file.items():
            first = self._firsts[file]
            try:
                with self._locks[file]:
                    found = self._readers[file].read([wanted[at] - first for at in members])
            except (ValueError, RuntimeError, OSError, IndexError) as error:
                raise Corrupt(f"{self.paths[file]} is damaged: {str(error)[:200]}") from error
            for at, record in zip(members, found, strict=True):
                records[at] = record
        return records

    __getitems__ = read
    """`items` asks for many records at once."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayRecords) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash(self.paths)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayRecords, (self.paths,)

    def __repr__(self) -> str:
        return f"arrayrecord({len(self.paths)} files, {len(self)} records)"


def arrayrecord(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> ArrayRecords:
    """Return the records of local ArrayRecord files, by number. It needs `asyncfeed[arrayrecord]`.

    Use it as `items(arrayrecord(paths)).shuffle(seed=1)`. The shuffle is exact over all files, and one call reads
    many records.

    Args:
        paths: One path, or several. The records of the first file come first.

    Returns:
        A dataset with `len`, `[number]` and `read(numbers)`. Records are `bytes`.

    Raises:
        FileNotFoundError: A file is not there.
        Corrupt: A file is no ArrayRecord file, or is damaged.
        PipelineError: There are no paths, or the library is not installed.

    Memory:
        The library keeps the index of each file in memory, and each file open.

    Example:
        >>> arrayrecord([])
        Traceback (most recent call last):
            ...
        asyncfeed.errors.PipelineError: arrayrecord: give at least one path
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise PipelineError("arrayrecord: give at least one path")
    return ArrayRecords([os.fspath(path) for path in given])
