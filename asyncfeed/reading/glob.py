"""Finding files by pattern, without ever leaving the directory that the pattern names.

Python's `glob` skips directories that it may not read, and follows links anywhere. Files would be missing, or come
from elsewhere, without an error.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter, methodcaller
from stat import S_ISREG
from typing import NamedTuple, Protocol

from asyncfeed.errors import PipelineError

_MAGIC = re.compile(r"[*?\[]")
_CLASS = re.compile(r"\[!?\]?[^\]/]*\]")
_RECURSIVE = "**"

Found = tuple[str, int, int]
"""A path, its size in bytes, and its time of change in nanoseconds."""


class Boundary:
    """The directory that links may not lead out of, as a real path.

    Memory: one entry for each directory that was checked. `os.path.realpath` runs once for each.
    """

    def __init__(self, root: str) -> None:
        self._top = os.path.realpath(root)
        self._below = os.path.join(self._top, "")  # noqa: PTH118 - keeps "/" as it is
        self._parents: dict[str, str] = {}

    def holds(self, real: str) -> bool:
        """Return whether a real path is the directory, or lies in it."""
        return real == self._top or real.startswith(self._below)

    def check(self, path: str) -> None:
        """Raise if a path leads out of the directory, through a link or through `..`."""
        parent, name = os.path.split(path)
        if parent not in self._parents:
            self._parents[parent] = os.path.realpath(parent)
        real = os.path.join(self._parents[parent], name)  # noqa: PTH118
        if name in {"", ".", ".."} or os.path.islink(real):  # noqa: PTH114
            real = os.path.realpath(real)
        if not self.holds(real):
            raise self.error(path, path)

    def error(self, path: str, link: str) -> PipelineError:
        """Return the error for `path`, which is outside because of `link`."""
        through = "" if link == path else f" through {link!r}"
        return PipelineError(
            f"files: {path!r} leads{through} out of {self._top!r}, and what lies elsewhere is not read; "
            "where that is meant, pass root= with a directory that holds both"
        )


class Directory(NamedTuple):
    """A directory that has not been visited, and the parts of the pattern that its entries may match."""

    prefix: str
    """The text before the names in it: empty, or a path with a slash at its end."""
    real: str
    link: str | None
    """The link that leads out of the boundary; None if there is none."""
    active: tuple[int, ...]


Inside = tuple[str, "Entry", Directory | None]
"""The name that an entry is sorted by, the entry, and its directory if it is to be visited."""

NO_DIRECTORY = "which is not a directory"
ONLY_DIRECTORIES = "which holds matching directories only: add /* to match the files in them"
"""What the error for a pattern without a match adds."""


class Entry(Protocol):
    """An entry of a directory. `os.DirEntry` is one."""

    @property
    def name(self) -> str:
        """Return the name."""
        ...

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a directory, or a link to one."""
        ...

    def is_symlink(self) -> bool:
        """Return whether it is a link."""
        ...

    def stat(self) -> os.stat_result:
        """Return the status of the file, or of the file that a link leads to."""
        ...


class Search(NamedTuple):
    """A pattern without braces, split into the parts after its fixed directory."""

    parts: list[str]
    matchers: list[Callable[[str], object]]
    boundary: Boundary

    def step(self, entry: Entry, active: tuple[int, ...]) -> tuple[bool, tuple[int, ...]]:
        """Return whether an entry matches the whole pattern, and the parts that entries below it may match."""
        name = entry.name
        last = False
        onward: tuple[int, ...] = ()
        for at in active:
            part = self.parts[at]
            if part == _RECURSIVE:
                # As in `pathlib`, links are not followed, because they may form a circle.
                if name[0] != "." and entry.is_dir(follow_symlinks=False):
                    onward += (at,)
            elif (name[0] != "." or part[0] == ".") and self.matchers[at](name):
                if at + 1 == len(self.parts):
                    last = True
                elif entry.is_dir():
                    onward += (at + 1,)
        return last, onward

    def last(self, here: Directory) -> tuple[str, Callable[[str], object]]:
        """Return the last part if the files in a directory may match it, else "", and what matches it."""
        last = len(self.parts) - 1
        return self.parts[last] if last in here.active else "", self.matchers[last]

    def enter(self, entry: Entry, here: Directory, onward: tuple[int, ...]) -> Directory:
        """Return the directory of an entry, in which entries may match the parts `onward`."""
        path = here.prefix + entry.name
        active = _closure(onward, self.parts)
        if not entry.is_symlink():
            return Directory(f"{path}/", f"{here.real}/{entry.name}", here.link, active)
        real = os.path.realpath(path)
        return Directory(f"{path}/", real, None if self.boundary.holds(real) else path, active)

    def check(self, entry: Entry, path: str, here: Directory) -> None:
        """Raise if a file is outside of the boundary, through a link of its own or of its directory."""
        if entry.is_symlink():
            if not self.boundary.holds(os.path.realpath(path)):
                raise self.boundary.error(path, path)
        elif here.link is not None:
            raise self.boundary.error(path, here.link)


def has_magic(text: str) -> bool:
    """Return whether a text is a pattern and no path."""
    return _MAGIC.search(text) is not None or _first_braces(text) is not None


def alternatives(pattern: str) -> list[str]:
    """Expand the braces of a pattern. Return the resulting patterns in order.

    As in a shell, braces must hold a comma, and may be nested. Braces without a comma, and braces in brackets, are
    ordinary characters.

    >>> alternatives("{train,val{1,2}}/*.npy")
    ['train/*.npy', 'val1/*.npy', 'val2/*.npy']
    >>> alternatives("{a}[{]b,c}")
    ['{a}[{]b,c}']
    """
    first = _first_braces(pattern)
    if first is None:
        return [pattern]
    start, choices, end = first
    inner = [one for each in choices for one in alternatives(each)]
    return [pattern[:start] + one + rest for one in inner for rest in alternatives(pattern[end:])]


def _first_braces(pattern: str) -> tuple[int, list[str], int] | None:
    """Return where the first braces with alternatives open, the alternatives, and what follows; or None."""
    at = 0 if "{" in pattern and "," in pattern else len(pattern)  # most patterns have no braces
    while at < len(pattern):
        if pattern[at] == "{":
            choices, end = _choices(pattern, at)
            if choices:
                return at, choices, end
        at = _after(pattern, at)
    return None


def _choices(pattern: str, start: int) -> tuple[list[str], int]:
    """Return the alternatives in the braces that open here, and where the braces end.

    Without a comma return none.
    """
    depth, at = 0, start
    cuts = [start]
    while at < len(pattern):
        char = pattern[at]
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 1:
            cuts.append(at)
        if not depth:
            cuts.append(at)
            found = [pattern[one + 1 : two] for one, two in pairwise(cuts)]
            return (found, at + 1) if len(found) > 1 else ([], at)
        at = _after(pattern, at)
    return [], at


def _after(pattern: str, at: int) -> int:
    """Return the position of the next character; if a `[...]` begins here, the position after it."""
    found = _CLASS.match(pattern, at)
    return found.end() if found else at + 1


def walk(pattern: str, boundary: Boundary | None, *, optional: bool = False) -> Iterator[Found]:
    """Yield the regular files that match a pattern, each once, sorted. A file is looked at when its turn comes.

    Memory: the matching names of a directory and of the directories above it.

    Raises:
        PipelineError: Nothing matches, unless `optional`; or a match lies outside of the boundary.
        OSError: A directory cannot be read, or a link leads to nothing.
    """
    search, top = begin(pattern, boundary)
    try:
        under_way = [(top, iter(_inside(top, search)))]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise nothing(pattern, [top.prefix or "."], NO_DIRECTORY) from error
    found = directories = 0
    while under_way:
        here, entries = under_way[-1]
        for _, entry, below in entries:
            if below is not None:
                under_way.append((below, iter(_inside(below, search))))
                break
            status = entry.stat()
            if S_ISREG(status.st_mode):
                path = here.prefix + entry.name
                if here.link is not None or entry.is_symlink():
                    search.check(entry, path, here)
                found += 1
                yield path, status.st_size, status.st_mtime_ns
            else:
                directories += entry.is_dir()
        else:
            under_way.pop()
    if not found and not optional:
        raise nothing(pattern, [top.prefix or "."], ONLY_DIRECTORIES if directories else "")


def begin(pattern: str, boundary: Boundary | None) -> tuple[Search, Directory]:
    """Return what a pattern without braces looks for, and the directory in which its search begins."""
    base, parts = _split(pattern)
    directory = base or "."
    if boundary is None:
        boundary = Boundary(directory)
    real = os.path.realpath(directory)
    link = None if boundary.holds(real) else directory
    search = Search(parts, [_matcher(part) for part in parts], boundary)
    return search, Directory(base, real, link, _closure((0,), parts))


def _inside(here: Directory, search: Search) -> Iterable[Inside]:
    """Return what matches in a directory, and the directories in it to visit, in the order of the paths."""
    inside: list[Inside] = []
    last = len(search.parts) - 1
    if here.active == (last,):  # most files are here: no directory below can match
        matches, hidden = search.matchers[last], search.parts[last][0] == "."
        with os.scandir(here.prefix or ".") as entries:
            found = [entry for entry in entries if matches(entry.name) and (hidden or entry.name[0] != ".")]
        found.sort(key=attrgetter("name"))
        return ((entry.name, entry, None) for entry in found)
    with os.scandir(here.prefix or ".") as entries:
        for entry in entries:
            matched, onward = search.step(entry, here.active)
            if matched:
                inside.append((entry.name, entry, None))
            if onward:  # the paths of what is in it begin so
                inside.append((f"{entry.name}/", entry, search.enter(entry, here, onward)))
    inside.sort(key=itemgetter(0))
    return inside


def _closure(active: tuple[int, ...], parts: list[str]) -> tuple[int, ...]:
    """Add the part after each `**`, because `**` also matches no directory at all."""
    return tuple(sorted({*active, *(at + 1 for at in active if parts[at] == _RECURSIVE)}))


def _split(pattern: str) -> tuple[str, list[str]]:
    """Return the part before the first wildcard, with its slash, and the parts after it."""
    magic = _MAGIC.search(pattern)
    cut = pattern.rfind("/", 0, magic.start() if magic else len(pattern)) + 1
    parts: list[str] = []
    for part in pattern[cut:].split("/"):
        if part == "..":
            raise PipelineError(f"files: {pattern!r} goes up with .. after a wildcard; write the directory itself")
        if part not in {"", "."} and not (part == _RECURSIVE and parts[-1:] == [_RECURSIVE]):
            parts.append(part)
    if pattern.endswith("/"):
        raise PipelineError(f"files: {pattern!r} names directories; write {pattern + '*'!r} for the files in them")
    return pattern[:cut], parts if parts[-1] != _RECURSIVE else [*parts, "*"]


def _matcher(part: str) -> Callable[[str], object]:
    end = part[1:]
    if part[0] == "*" and not _MAGIC.search(end):
        return methodcaller("endswith", end)  # a third of the time
    return re.compile(fnmatch.translate(part)).match


def nothing(pattern: str, directories: Sequence[str], hint: str = "") -> PipelineError:
    """Return the error for a pattern without a match in these directories."""
    # `Path.absolute` keeps the dots, `resolve` drops the links.
    where = " and ".join(dict.fromkeys(repr(os.path.abspath(each)) for each in directories))  # noqa: PTH100
    if pattern.startswith("~"):
        hint = "as ~ is not expanded here: pass os.path.expanduser(...)"
    return PipelineError(f"files: {pattern!r} matches no file; it looked in {where}" + (hint and f", {hint}"))


def fixed_part(pattern: str) -> str:
    """Return the directory in which the search for a pattern without braces begins."""
    return _split(pattern)[0] or "."
