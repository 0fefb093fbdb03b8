"""Lists local files: turns paths and patterns into many `File`s, held compactly."""

from __future__ import annotations

import errno
import os
import re
from array import array
from collections.abc import Iterable, Sequence
from stat import S_ISDIR, S_ISREG
from typing import overload

from asyncfeed.errors import PipelineError
from asyncfeed.reading.file import File
from asyncfeed.reading.glob import Boundary, Found, alternatives, fixed_part, has_magic, nothing, walk
from asyncfeed.reading.local import not_a_file

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

Pattern = str | os.PathLike[str]


class FileList(Sequence[File]):
    """Many files, held compactly: 24 bytes for each file, beside its path. A `File` is made when it is asked for.

    >>> FileList(["a.npy", "b.npy"], [17, 20], [0, 0])[1]
    File('b.npy', 20 bytes)
    """

    __slots__ = ("_mtimes", "_paths", "_sizes")

    def __init__(self, paths: Iterable[str], sizes: Iterable[int], mtimes: Iterable[int]) -> None:
        self._paths = list(paths)
        self._sizes = array("q", sizes)
        self._mtimes = array("q", mtimes)
        if not len(self._paths) == len(self._sizes) == len(self._mtimes):
            raise ValueError("FileList needs one size and one time for each path")

    @property
    def nbytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(self._sizes)

    def pick(self, places: Iterable[int]) -> list[File]:
        """Return the files at these places, in this order."""
        paths, sizes, mtimes = self._paths, self._sizes, self._mtimes
        return [File(paths[at], sizes[at], mtimes[at]) for at in places]

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, at: int) -> File: ...
    @overload
    def __getitem__(self, at: slice) -> FileList: ...
    def __getitem__(self, at: int | slice) -> File | FileList:
        if isinstance(at, slice):
            return FileList(self._paths[at], self._sizes[at], self._mtimes[at])
        return File(self._paths[at], self._sizes[at], self._mtimes[at])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileList):
            return NotImplemented
        mine = (self._sizes, self._mtimes, self._paths)
        return mine == (other._sizes, other._mtimes, other._paths)

    def __hash__(self) -> int:
        return hash((len(self), *self._paths[:1], *self._paths[-1:]))

    def __repr__(self) -> str:
        return f"FileList({len(self)} files, {self.nbytes} bytes)"


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
    texts = [_checked(each) for each in ([patterns] if isinstance(patterns, str | os.PathLike) else patterns)]
    if not texts:
        raise PipelineError("files: the list of paths is empty")
    boundary = None if root is None else Boundary(_checked(root))
    paths: list[Found] = []
    matches: list[Found] = []
    where: int | None = None
    for text in texts:
        found = _literal(text, boundary)
        if found is None:
            where = len(paths) if where is None else where
            matches.extend(_matching(text, boundary))
        else:
            paths.append(found)
    if where is not None:
        paths[where:where] = sorted(matches if len(texts) == 1 else set(matches))
    return FileList([path for path, _, _ in paths], [size for _, size, _ in paths], [time for _, _, time in paths])


def _literal(text: str, boundary: Boundary | None) -> Found | None:
    """Return the file of exactly this name. Return None if there is none and the name is a pattern."""
    try:
        # The literal name first, because real paths may hold brackets.
        status = os.stat(text)  # noqa: PTH116 - a Path object per file costs more than the call
    except (FileNotFoundError, NotADirectoryError) as error:
        if not has_magic(text):
            raise _missing(error, text) from error
        return None
    if S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory: write it as '.../*' for the files in it", text)
    if not S_ISREG(status.st_mode):
        raise not_a_file(text, status.st_mode)
    if boundary is not None:
        boundary.check(text)
    return text, status.st_size, status.st_mtime_ns


def _matching(pattern: str, boundary: Boundary | None) -> Iterable[Found]:
    """Return the files that a pattern matches, each once.

    If there are several alternatives in braces, one of them may match nothing, as .jpeg in "*.{jpg,jpeg}". But its
    directory must exist, and so must a file that an alternative names without a wildcard. Otherwise files could be
    missing without a word.
    """
    choices = alternatives(pattern)
    if len(choices) == 1:
        return walk(pattern, boundary)
    found: set[Found] = set()
    for each in choices:
        file = _literal(each, boundary)
        found.update(walk(each, boundary, optional=True) if file is None else [file])
    if not found:
        raise nothing(pattern, list(map(fixed_part, choices)))
    return found


def _checked(given: object) -> str:
    """Return a path as text. Raise if it cannot be the path of a local file."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str):
        raise PipelineError(f"files: a path must be a str or an os.PathLike of str, not {given!r}")
    if not text or "\0" in text:
        raise PipelineError(f"files: {text!r} cannot be a path: it is empty or holds a NUL character")
    url = _URL.match(text)
    if url:  # only the scheme is shown: the rest may hold a password
        scheme = url[1].lower()
        fix = (
            "write a plain path" if scheme == "file" else "files(...) reads it if all paths are URLs of one store"
        )
        raise PipelineError(f"files: {scheme}://... is not a local path: {fix}")
    return text


def _missing(error: OSError, text: str) -> OSError:
    hint = "; ~ is not expanded here, pass os.path.expanduser(...)" if text.startswith("~") else ""
    where = os.path.abspath(os.curdir)  # noqa: PTH100
    if not os.path.isabs(text):  # noqa: PTH117
        hint += f"; it is relative to {where!r}"
    return OSError(error.errno, f"{error.strerror}{hint}", text)  # Python makes it the type of the errno
