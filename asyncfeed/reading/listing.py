"""Listing local files: from paths and patterns to many `File`s, held compactly."""

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
    """Many files, held compactly: 24 bytes each beside the path. A `File` is made when it is asked for.

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
        """How many bytes the files hold together."""
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

    A pattern holds `*`, `?` or `[...]`, `{a,b}` for alternatives, or `**` for any number of directories; it
    matches regular files only,
    a leading dot only where it is written, and `**` does not go through links to directories. Something
    that exists just as it is written is a path, whatever its characters. Paths stay where they stand in the
    list, as often as they stand there; the files of all patterns, sorted and each once, stand at the first
    pattern.

    A file found through a link may not lie outside `root`: by default the part of the pattern before its
    first wildcard. With `root`, paths without wildcards must lie in it, too. Raises `PipelineError` for a
    description that cannot be meant, `FileNotFoundError` and `IsADirectoryError` for paths. Blocks: one
    system call per file.
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
    """Return the file of this very name, or None if there is none and the name is a pattern."""
    try:
        # The literal name first: a list of real paths may well hold brackets.
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

    Of several alternatives in braces one may match nothing, as .jpeg in "*.{jpg,jpeg}". Its directory must be
    there, though, and so must a file that it names without a wildcard: nobody would miss what is left out.
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
    """Return a path as text, or raise where it cannot be one of a local file."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str):
        raise PipelineError(f"files: a path must be a str or an os.PathLike of str, not {given!r}")
    if not text or "\0" in text:
        raise PipelineError(f"files: {text!r} cannot be a path: it is empty or holds a NUL character")
    url = _URL.match(text)
    if url:  # only the scheme is shown: the rest may hold a password
        scheme = url[1].lower()
        fix = "write a plain path" if scheme == "file" else "object stores are not in this version; copy the files"
        raise PipelineError(f"files: {scheme}://... is not a local path: {fix}")
    return text


def _missing(error: OSError, text: str) -> OSError:
    hint = "; ~ is not expanded here, pass os.path.expanduser(...)" if text.startswith("~") else ""
    where = os.path.abspath(os.curdir)  # noqa: PTH100
    if not os.path.isabs(text):  # noqa: PTH117
        hint += f"; it is relative to {where!r}"
    return OSError(error.errno, f"{error.strerror}{hint}", text)  # Python makes it the type of the errno
