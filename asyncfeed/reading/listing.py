"""Lists local files: turns paths and patterns into many `File`s, held compactly."""

from __future__ import annotations

import heapq
import os
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import accumulate, islice
from stat import S_ISREG
from typing import Any, Final, overload

import numpy as np

from asyncfeed.reading.file import Bytes, File, Numbers
from asyncfeed.reading.given import Given, Pattern, literal, told_apart
from asyncfeed.reading.glob import Boundary, Found, alternatives, fixed_part, has_magic, nothing, walk
from asyncfeed.reading.name_walk import found_names
from asyncfeed.reading.packed_names import ENCODING, ERRORS, Names

UNKNOWN: Final = -1
"""The size of a file that was not listed with its size."""


class FileList(Sequence[File]):
    """Many files, held compactly: 25 bytes for each file, beside its path. A `File` is made when it is asked for.

    >>> FileList(["a.npy", "b.npy"], [17, 20], [0, 0])[1]
    File('b.npy', 20 bytes)
    """

    __slots__ = ("_bounds", "_equal_size", "_mtimes", "_paths", "_sizes")

    def __init__(self, paths: Iterable[str], sizes: Iterable[int], mtimes: Iterable[int]) -> None:
        self._paths = bytearray()
        """The paths as the system writes them, each with a zero byte at its end."""
        self._bounds = array("q", [0])
        """Where each path begins, and where the last one ends, with its zero byte."""
        self._sizes = array("q", sizes)
        self._mtimes = array("q", mtimes)
        self._equal_size: tuple[int, int | None] = (0, None)
        """The size that all files have, None if they differ. And for how many files that was found."""
        for path in paths:
            self._add(path)
        if not len(self) == len(self._sizes) == len(self._mtimes):
            raise ValueError("FileList needs one size and one time for each path")

    @classmethod
    def packed(cls, names: Names, sizes: array[int], mtimes: array[int]) -> FileList:
        """Return a list of these files. It takes the memory of all arguments: do not use them afterwards."""
        found = cls((), (), ())
        found._paths, found._sizes, found._mtimes = names.block, sizes, mtimes
        found._bounds = array("q", names.bounds().tobytes())
        return found

    def _add(self, path: str) -> None:
        self._paths += path.encode(ENCODING, ERRORS)
        self._paths.append(0)
        self._bounds.append(len(self._paths))

    def append(self, path: str, size: int, mtime_ns: int) -> None:
        """Add a file. No other thread may use the list meanwhile."""
        self._sizes.append(size)
        self._mtimes.append(mtime_ns)
        self._add(path)

    def extend(self, found: Iterable[Found]) -> None:
        """Add files. No other thread may use the list meanwhile."""
        found = iter(found)
        while some := tuple(islice(found, 256)):
            paths, sizes, mtimes = zip(*some, strict=True)
            block = "\0".join((*paths, "")).encode(ENCODING, ERRORS)
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 0) + (1 + len(self._paths))
            self._bounds.frombytes(ends.tobytes())
            self._paths += block
            self._sizes.extend(sizes)
            self._mtimes.extend(mtimes)

    @property
    def nbytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(self._sizes)

    def path(self, at: int) -> str:
        """Return the path of a file."""
        bounds = self._bounds
        return self._paths[bounds[at] : bounds[at + 1] - 1].decode(ENCODING, ERRORS)

    def paths(self) -> list[str]:
        """Return all paths."""
        return self._paths[:-1].decode(ENCODING, ERRORS).split("\0") if self._paths else []

    def pick(self, places: Iterable[int]) -> list[File]:
        """Return the files at these places, in this order."""
        paths, bounds, sizes, mtimes = self._paths, self._bounds, self._sizes, self._mtimes
        return [
            # As `path`. A call for each file would take a third of the time of all this.
            File(paths[bounds[at] : bounds[at + 1] - 1].decode(ENCODING, ERRORS), sizes[at], mtimes[at])
            for at in places
        ]

    def part(self, places: Sequence[int]) -> FileList:
        """Return a list of the files at these places, in this order."""
        paths, bounds = memoryview(self._paths), self._bounds
        part = FileList((), (), ())
        pieces = [paths[bounds[at] : bounds[at + 1]] for at in places]
        part._paths = bytearray().join(pieces)
        part._bounds.extend(accumulate(map(len, pieces)))
        part._sizes = array("q", map(self._sizes.__getitem__, places))
        part._mtimes = array("q", map(self._mtimes.__getitem__, places))
        return part

    @property
    def sized(self) -> bool:
        """Whether the sizes of the files are known."""
        return True

    @property
    def equal_size(self) -> int | None:
        """The size that all files have; None if they differ."""
        count, size = self._equal_size
        if count != len(self):
            sizes = np.frombuffer(self._sizes, np.int64)
            size = int(sizes[0]) if (sizes == sizes[0]).all() else None
            self._equal_size = len(self), size
        return size

    def sizes_at(self, places: Iterable[int]) -> list[int]:
        """Return the sizes of the files at these places."""
        return list(map(self._sizes.__getitem__, places))

    def encoded_paths(self, places: Iterable[int]) -> list[bytes]:
        """Return the paths of the files at these places, as the system writes them."""
        bounds = self._bounds
        with memoryview(self._paths) as paths:
            return [paths[bounds[at] : bounds[at + 1] - 1].tobytes() for at in places]

    def views(self) -> tuple[Bytes, Numbers, Numbers]:
        """Return all paths, each with a zero byte at its end, where each begins, and the sizes. Nothing is copied.

        While the views are held, nothing can be appended.
        """
        return (
            np.frombuffer(self._paths, np.uint8),
            np.frombuffer(self._bounds, np.int64),
            np.frombuffer(self._sizes, np.int64),
        )

    def digest(self, places: Iterable[int] | None = None) -> str:
        """Return what stands for the files, or those at these places: their names and sizes, in order.

        Of a name only the part below the folder that holds all files counts, so a copy of the folder has the same
        digest. It takes 0.2 s for a million files.
        """
        paths, sizes = self.paths(), self._sizes
        if places is not None:
            chosen = list(places)
            paths, sizes = [paths[at] for at in chosen], array("q", [sizes[at] for at in chosen])
        folder = common_folder(paths)
        names = "\0".join(["", *paths]).replace(f"\0{folder}", "\0")
        return sha256(names.encode("utf-8", "surrogatepass") + sizes.tobytes()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, at: int) -> File: ...
    @overload
    def __getitem__(self, at: slice) -> FileList: ...
    def __getitem__(self, at: int | slice) -> File | FileList:
        if isinstance(at, slice):
            return FileList(self.paths()[at], self._sizes[at], self._mtimes[at])
        place = range(len(self))[at]
        return File(self.path(place), self._sizes[place], self._mtimes[place])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileList):
            return NotImplemented
        mine = (self._sizes, self._mtimes, self._paths)
        return mine == (other._sizes, other._mtimes, other._paths)

    def __hash__(self) -> int:
        return hash((len(self), *(self.path(at) for at in (0, len(self) - 1) if len(self))))

    def __repr__(self) -> str:
        return f"FileList({len(self)} files, {self.nbytes} bytes)"


class FileSpan(Sequence[File]):
    """Some files of a list, by number. A `File` is made when it is asked for.

    >>> span = FileSpan(FileList(["a.npy", "b.npy"], [17, 20], [0, 0]), [1, 0])
    >>> span[0], list(span[1:])
    (File('b.npy', 20 bytes), [File('a.npy', 17 bytes)])
    """

    __slots__ = ("files", "numbers")

    nbytes = 0
    """As of a `File`: they are not read."""

    def __init__(self, files: FileList, numbers: Sequence[int]) -> None:
        self.files = files
        self.numbers = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the files of the span, and not the whole list."""
        return FileSpan, (self.files.part(self.numbers), range(len(self)))

    @classmethod
    def joined(cls, spans: Sequence[FileSpan]) -> FileSpan:
        """Return spans of one list as one span."""
        return spans[0] if len(spans) == 1 else cls(spans[0].files, [at for each in spans for at in each.numbers])

    def sizes(self) -> list[int]:
        """Return the sizes of the files; `UNKNOWN` for each if the list has none."""
        size = self.files.equal_size
        return self.files.sizes_at(self.numbers) if size is None else [size] * len(self.numbers)

    def encoded_paths(self) -> list[bytes]:
        """Return the paths of the files, as the system writes them."""
        return self.files.encoded_paths(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> File: ...
    @overload
    def __getitem__(self, at: slice) -> FileSpan: ...
    def __getitem__(self, at: int | slice) -> File | FileSpan:
        if isinstance(at, slice):
            return FileSpan(self.files, self.numbers[at])
        return self.files[self.numbers[at]]

    def __iter__(self) -> Iterator[File]:
        return iter(self.files.pick(self.numbers))

    def __repr__(self) -> str:
        return f"FileSpan({list(self)!r})"


def common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all paths have in common, with its slash. Return "" if there is none.

    >>> common_folder(["a/b/1.npy", "a/b/2.npy"]), common_folder(["a/1.npy", "b/1.npy"])
    ('a/b/', '')
    """
    if not paths:
        return ""
    first, last = min(paths), max(paths)
    common = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first)
    )
    return first[: first.rfind("/", 0, common) + 1]


def expand(patterns: Pattern | Iterable[Pattern], root: Pattern | None = None) -> FileList:
    """List the files that paths and patterns name.

    A pattern holds `*`, `?` or `[...]`, `{a,b}` for alternatives, or `**` for any number of directories. It
    matches regular files only. It matches a leading dot only if the pattern has one. `**` does not follow links to
    directories. If a file with exactly the given name exists, the name is a path, even if it has wildcards.

    Order: a path keeps its position in the list, and may be there several times. The files of all patterns are
    sorted, without duplicates, and stand at the position of the first pattern.

    A file found through a link may not lie outside `root`. The default of `root` is the part of the pattern before
    its first wildcard. If `root` is given, paths without wildcards must lie in it, too.

    Raises `PipelineError` for a pattern that cannot be right, `FileNotFoundError` and `IsADirectoryError` for
    paths. This blocks: it makes one system call for each file.
    """
    given = told_apart(patterns, root)
    if all(text in given.magic for text in given.texts):
        found = _with_sizes(found_names(given))
        if found is not None:
            return found
    found = FileList((), (), ())
    found.extend(_found(given))
    return found


def _with_sizes(names: Names) -> FileList | None:
    """Return files whose names were found by patterns, with their sizes. Return None if one is no file any more.

    This takes half the time of `_found`, which looks at each file when its turn comes.
    """
    sizes, mtimes = array("q"), array("q")
    for paths in names.runs(4096):
        for path in paths:
            status = os.stat(path)  # noqa: PTH116 - a Path object per file costs more than the call
            if not S_ISREG(status.st_mode):
                return None
            sizes.append(status.st_size)
            mtimes.append(status.st_mtime_ns)
    return FileList.packed(names, sizes, mtimes)


class Listing:
    """The files of one run, listed as they are wanted. Later epochs see the files that the first one found.

    Several threads may call `files`: the thread of an epoch that was left early may still be at work.
    """

    def __init__(self, patterns: Pattern | Iterable[Pattern], root: Pattern | None) -> None:
        self._patterns = patterns
        self._root = root
        self._files = FileList((), (), ())
        self._more: Iterator[Found] | None = None
        """What is not listed yet. None before the first file, and after an error: then it is listed again."""
        self._lock = threading.Lock()

    def files(self) -> Iterator[File]:
        """Yield the files of one epoch. This blocks."""
        at = 0
        while (file := self._file(at)) is not None:
            yield file
            at += 1

    def _file(self, at: int) -> File | None:
        """Return the file at a place. List it if it is the next one. Return None if there is none."""
        with self._lock:
            if at < len(self._files):
                return self._files[at]
            if self._more is None:
                self._more = islice(_found(told_apart(self._patterns, self._root)), at, None)
            try:
                found = next(self._more, None)
            except BaseException:
                self._more = None
                raise
            if found is None:
                return None
            self._files.append(*found)
            return File(*found)


def _found(given: Given) -> Iterator[Found]:
    """Yield what paths and patterns name, in order. Each file is looked at when its turn comes."""
    texts, magic, boundary = given
    listed = False
    for text in texts:
        if text not in magic:
            yield literal(text, boundary)
        elif not listed:
            listed = True
            yield from _merged([_matching(each, boundary) for each in texts if each in magic])


def _merged(sorted_ones: list[Iterator[Found]]) -> Iterator[Found]:
    """Yield the files of several sorted listings, sorted, each once."""
    if len(sorted_ones) == 1:
        yield from sorted_ones[0]
        return
    last = None
    for found in heapq.merge(*sorted_ones):
        if found[0] != last:
            yield found
        last = found[0]


def _matching(pattern: str, boundary: Boundary | None) -> Iterator[Found]:
    """Yield the files that a pattern matches, sorted, each once.

    If there are several alternatives in braces, one of them may match nothing, as .jpeg in "*.{jpg,jpeg}". But its
    directory must exist, and so must a file that an alternative names without a wildcard. Otherwise files could be
    missing without a word.
    """
    choices = alternatives(pattern)
    if len(choices) == 1:
        yield from walk(pattern, boundary)
        return
    ones = [
        walk(each, boundary, optional=True)
        if has_magic(each) and not os.path.exists(each)  # noqa: PTH110
        else iter([literal(each, boundary)])
        for each in choices
    ]
    none = True
    for found in _merged(ones):
        none = False
        yield found
    if none:
        raise nothing(pattern, list(map(fixed_part, choices)))
