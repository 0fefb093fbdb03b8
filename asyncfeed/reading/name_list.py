"""Many local files of which only the names are known."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import overload

import numpy as np

from asyncfeed.reading.file import Bytes, File, Numbers
from asyncfeed.reading.given import Pattern, told_apart
from asyncfeed.reading.listing import UNKNOWN, FileList, common_folder
from asyncfeed.reading.name_walk import found_names
from asyncfeed.reading.packed_names import ENCODING, ERRORS, Names


def expand_names(patterns: Pattern | Iterable[Pattern], root: Pattern | None = None) -> NameList:
    """List the files that paths and patterns name, without their sizes.

    The arguments, the order and the errors are those of `expand`. This blocks.
    """
    return NameList(found_names(told_apart(patterns, root)))


class NameList(FileList):
    """Many files without their sizes: 9 bytes for each file, beside its path. Nothing can be appended.

    >>> NameList(Names.of(["a.npy", "b.npy"]))[1]
    File('b.npy')
    """

    __slots__ = ()

    def __init__(self, names: Names) -> None:
        super().__init__((), (), ())
        self._paths = names.block
        self._bounds = array("q", names.bounds().tobytes())

    def pick(self, places: Iterable[int]) -> list[File]:
        """Return the files at these places, in this order."""
        paths, bounds = self._paths, self._bounds
        return [File(paths[bounds[at] : bounds[at + 1] - 1].decode(ENCODING, ERRORS)) for at in places]

    def part(self, places: Sequence[int]) -> NameList:
        """Return a list of the files at these places, in this order."""
        paths, bounds = memoryview(self._paths), self._bounds
        pieces = [paths[bounds[at] : bounds[at + 1]] for at in places]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces)) - 1
        return NameList(Names(bytearray().join(pieces), lengths))

    @property
    def sized(self) -> bool:
        """Whether the sizes of the files are known: they are not."""
        return False

    @property
    def equal_size(self) -> int:
        """`UNKNOWN`, as the size of each file."""
        return UNKNOWN

    def sizes_at(self, places: Iterable[int]) -> list[int]:
        """Return `UNKNOWN` for each of these places."""
        return [UNKNOWN for _ in places]

    def views(self) -> tuple[Bytes, Numbers, Numbers]:
        """Return all paths, each with a zero byte at its end, where each begins, and `UNKNOWN` for each size."""
        paths, bounds, _ = super().views()
        return paths, bounds, np.broadcast_to(np.int64(UNKNOWN), len(self))

    def digest(self, places: Iterable[int] | None = None) -> str:
        """Return what stands for the files, or those at these places: their names, in order.

        As for other lists, a copy of the folder has the same digest. A list with sizes has another one.
        """
        paths = self.paths()
        if places is not None:
            paths = [paths[at] for at in places]
        folder = common_folder(paths)
        names = "\0".join(["", *paths]).replace(f"\0{folder}", "\0")
        return sha256(b"names" + names.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @overload
    def __getitem__(self, at: int) -> File: ...
    @overload
    def __getitem__(self, at: slice) -> NameList: ...
    def __getitem__(self, at: int | slice) -> File | NameList:
        places = range(len(self))[at]
        return File(self.path(places)) if isinstance(places, int) else self.part(places)

    def __repr__(self) -> str:
        return f"NameList({len(self)} files)"
