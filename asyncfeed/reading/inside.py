"""What matches in one directory, as names without sizes, in the order of the paths.

A large directory is read and sorted with numpy, a small one with `os.scandir`. Both give the same.
"""

from __future__ import annotations

import os
import re
from bisect import bisect
from collections.abc import Iterable, Iterator
from operator import itemgetter
from stat import S_ISDIR
from typing import Final

import numpy as np

from asyncfeed.reading.directory import (
    DIRECTORY,
    LINK,
    REGULAR,
    UNKNOWN,
    DirectoryReader,
    Entries,
    SmallDirectory,
    supported,
)
from asyncfeed.reading.file import Bytes, Numbers
from asyncfeed.reading.glob import Directory, Entry, Search
from asyncfeed.reading.packed_names import ENCODING, ERRORS, Flags, Names, gathered, slices

MIN_BYTES: Final = 1 << 14
"""Least bytes of records in a directory that is read with numpy. For a smaller one `os.scandir` is faster."""

_ONE_STAR: Final = re.compile(r"([^*?\[]*)\*([^*?\[]*)")
"""A pattern that numpy compares with all names at once."""

Piece = Names | list[str] | Entry | Directory
"""What a directory holds: paths of files, an entry that must be looked at, or a directory to visit."""


class InsideReader:
    """Finds what matches in one directory after the other. One thread may use it."""

    def __init__(self) -> None:
        self._reader = DirectoryReader() if supported() else None

    def read(self, here: Directory, search: Search) -> Iterator[Piece]:
        """Return what matches in a directory, and the directories in it to visit, in the order of the paths.

        No list is empty. What is read is read in this call.

        Raises:
            OSError: The directory cannot be read.
        """
        found = self._with_numpy(here, search)
        return _scanned(here, search) if found is None else _in_order(*found, here, search)

    def _with_numpy(self, here: Directory, search: Search) -> tuple[Names, list[Entry]] | None:
        """Return the names of regular files that match, and the entries that may be links or directories.

        Return None if the directory is small, or cannot be read in this way.
        """
        if self._reader is None:
            return None
        where = here.prefix or "."
        regular: list[Names] = []
        others: list[Entry] = []
        try:
            for entries in self._reader.read(where, MIN_BYTES):
                kinds = entries.kinds
                if (kinds == UNKNOWN).any():
                    return None
                regular.append(_matched(entries, here, search))
                for at in np.flatnonzero((kinds == DIRECTORY) | (kinds == LINK)):
                    start, stop = entries.starts[at], entries.starts[at] + entries.lengths[at]
                    name = entries.memory[start:stop].tobytes().decode(ENCODING, ERRORS)
                    others.append(_Entry(name, os.path.join(where, name), int(kinds[at])))  # noqa: PTH118
        except (OSError, SmallDirectory):  # after an error, `os.scandir` works, or raises it again
            return None
        return Names.joined(regular), others


class _Entry:
    """A link or a directory."""

    __slots__ = ("_kind", "_path", "name")

    def __init__(self, name: str, path: str, kind: int) -> None:
        self.name = name
        self._path = path
        self._kind = kind

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if self._kind == DIRECTORY or not follow_symlinks:
            return self._kind == DIRECTORY
        try:
            return S_ISDIR(self.stat().st_mode)
        except FileNotFoundError:
            return False

    def is_symlink(self) -> bool:
        return self._kind == LINK

    def stat(self) -> os.stat_result:
        return os.stat(self._path)  # noqa: PTH116


def _scanned(here: Directory, search: Search) -> Iterator[Piece]:
    """Return what `os.scandir` finds in a directory. This works on every system."""
    part, matches = search.last(here)
    prefix = here.prefix
    paths: list[str] = []
    others: list[tuple[str, Entry | Directory]] = []
    with os.scandir(prefix or ".") as entries:
        for entry in entries:
            name = entry.name
            if not entry.is_file(follow_symlinks=False):
                others += [(f"{prefix}{key}", piece) for key, piece in _keyed(entry, here, search)]
            elif part and (name[0] != "." or part[0] == ".") and matches(name):
                paths.append(prefix + name)
    paths.sort()
    others.sort(key=itemgetter(0))
    return _alternating(paths, others)


def _alternating(paths: list[str], others: list[tuple[str, Entry | Directory]]) -> Iterator[Piece]:
    """Yield paths, and other pieces by their paths, in the order of all paths."""
    start = 0
    for path, piece in others:
        stop = bisect(paths, path, start)
        if start < stop:
            yield paths[start:stop]
        yield piece
        start = stop
    if start < len(paths):
        yield paths[start:]


def _keyed(entry: Entry, here: Directory, search: Search) -> Iterator[tuple[str, Entry | Directory]]:
    """Yield what an entry is, by the name that it is sorted by."""
    matched, onward = search.step(entry, here.active)
    if matched:
        yield entry.name, entry
    if onward:  # the paths of what is in it begin so
        yield f"{entry.name}/", search.enter(entry, here, onward)


def _matched(entries: Entries, here: Directory, search: Search) -> Names:
    """Return the names of regular files that match."""
    part, matches = search.last(here)
    memory, starts, lengths, kinds = entries
    fits = kinds == REGULAR
    if not part:
        fits[:] = False
    elif part[0] != ".":
        fits &= memory[starts] != ord(".")
    ends = _ONE_STAR.fullmatch(part) if part.isascii() else None
    if ends is None:
        names = gathered(memory, starts[fits], lengths[fits])
        return names.arranged(np.array([bool(matches(text)) for text in names.texts()], np.bool_))
    before, after = ends[1].encode(), ends[2].encode()
    fits &= lengths >= len(before) + len(after)
    if not fits.all():
        starts, lengths = starts[fits], lengths[fits]
    fits = _equal(memory, starts, before) & _equal(memory, starts + lengths - len(after), after)
    if not fits.all():
        starts, lengths = starts[fits], lengths[fits]
    return gathered(memory, starts, lengths)


def _equal(memory: Bytes, starts: Numbers, text: bytes) -> Flags:
    """Return for each place whether the memory has this text from there on."""
    if not text:
        return np.ones(len(starts), np.bool_)
    equal: Flags = slices(memory, len(text))[starts].view(f"S{len(text)}") == text
    return equal


def _in_order(regular: Names, others: Iterable[Entry], here: Directory, search: Search) -> Iterator[Piece]:
    """Yield paths, and other pieces, in the order of all paths."""
    keyed = [each for entry in others for each in _keyed(entry, here, search)]
    names = Names.joined([regular, Names.of([key for key, _ in keyed])]) if keyed else regular
    order = names.order()
    paths = names.arranged(order, here.prefix.encode(ENCODING, ERRORS))
    if not keyed:
        yield from filter(len, [paths])
        return
    bounds, start = paths.bounds(), 0
    for place in np.flatnonzero(order >= len(regular)).tolist():
        if start < place:
            yield Names(paths.block[bounds[start] : bounds[place]], paths.lengths[start:place])
        yield keyed[order[place] - len(regular)][1]
        start = place + 1
    if start < len(paths):
        yield Names(paths.block[bounds[start] :], paths.lengths[start:])
