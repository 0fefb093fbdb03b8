"""Objects by name: many names in little memory, and patterns of names."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from asyncfeed.reading.file import File
from asyncfeed.reading.reader import Store

UNKNOWN = -1
"""The size of an object whose size is not known, in an `ObjectList`."""
_CLASS = re.compile(r"\[(!?)(\]?[^\]/]*)\]")

Found = tuple[str, int | None, str | None]
"""A key, the size in bytes and the etag. The last two are None if they are not known."""


class Texts(Sequence[str]):
    """Many short texts in one piece of memory: 8 bytes for each, beside its characters.

    >>> texts = Texts(["a", "bc"])
    >>> texts.append("d")
    >>> list(texts), texts[1]
    (['a', 'bc', 'd'], 'bc')
    """

    __slots__ = ("_ends", "_joined")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._joined = bytearray()
        self._ends = array("Q")
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        """Add a text. It may hold surrogates, as the names of local files do."""
        self._joined += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._joined))

    @property
    def nbytes(self) -> int:
        """Memory that the texts take, in bytes."""
        return len(self._joined) + 8 * len(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Texts: ...
    def __getitem__(self, at: int | slice) -> str | Texts:
        if isinstance(at, slice):
            return Texts(self[each] for each in range(*at.indices(len(self))))
        end = self._ends[at]
        place = at if at >= 0 else at + len(self._ends)
        start = self._ends[place - 1] if place else 0
        return self._joined[start:end].decode("utf-8", "surrogatepass")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Texts):
            return NotImplemented
        return self._ends == other._ends and self._joined == other._joined

    def __hash__(self) -> int:
        return hash(len(self))


class ObjectList(Sequence[File]):
    """Objects of one store, held compactly. A `File` is made when it is asked for.

    Memory: 24 bytes for each object, beside the characters of its key and etag.
    """

    __slots__ = ("_etags", "_keys", "_sizes", "_start", "_store")

    def __init__(self, start: str, store: Store, found: Iterable[Found] = ()) -> None:
        self._start = start
        """The text before each key, which makes it the path of a file."""
        self._store = store
        self._keys = Texts()
        self._etags = Texts()
        self._sizes = array("q")
        for each in found:
            self.append(*each)

    def append(self, key: str, size: int | None, etag: str | None) -> None:
        """Add an object."""
        self._keys.append(key)
        self._etags.append(etag or "")
        self._sizes.append(UNKNOWN if size is None else size)

    @property
    def nbytes(self) -> int:
        """Total size in bytes of the objects whose size is known."""
        return sum(size for size in self._sizes if size != UNKNOWN)

    @property
    def memory(self) -> int:
        """Memory that the list takes, in bytes."""
        return self._keys.nbytes + self._etags.nbytes + 8 * len(self._sizes)

    def found(self) -> Iterator[Found]:
        """Yield what is known of each object."""
        for key, size, etag in zip(self._keys, self._sizes, self._etags, strict=True):
            yield key, None if size == UNKNOWN else size, etag or None

    def pick(self, places: Iterable[int]) -> list[File]:
        """Return the objects at these places, in this order."""
        return [self[at] for at in places]

    def in_order(self) -> ObjectList:
        """Return the objects sorted by key, each once."""
        keys = self._keys
        before, rising = "", True
        for key in keys:
            if key <= before:
                rising = False
                break
            before = key
        if rising:
            return self
        ordered = ObjectList(self._start, self._store)
        last: str | None = None
        for key, at in sorted(zip(keys, range(len(keys)), strict=True)):
            if key != last:
                ordered.append(key, *self._known(at))
            last = key
        return ordered

    def _known(self, at: int) -> tuple[int | None, str | None]:
        size = self._sizes[at]
        return None if size == UNKNOWN else size, self._etags[at] or None

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, at: int) -> File: ...
    @overload
    def __getitem__(self, at: slice) -> ObjectList: ...
    def __getitem__(self, at: int | slice) -> File | ObjectList:
        if isinstance(at, slice):
            places = range(*at.indices(len(self)))
            return ObjectList(
                self._start, self._store, ((self._keys[each], *self._known(each)) for each in places)
            )
        size, etag = self._known(at)
        return File(self._start + self._keys[at], size, etag=etag, store=self._store)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectList):
            return NotImplemented
        mine = (self._start, self._store, self._sizes, self._keys, self._etags)
        return mine == (other._start, other._store, other._sizes, other._keys, other._etags)

    def __hash__(self) -> int:
        return hash((len(self), self._start))

    def __repr__(self) -> str:
        return f"ObjectList({len(self)} objects of {self._store!r})"


def matcher(pattern: str) -> re.Pattern[str]:
    """Return what matches the keys that a pattern without braces names. It means what it means for local files.

    `*` and `?` match no slash, and no dot at the start of a part. `**` is any number of parts.

    >>> [bool(matcher("a/**/*.npy").fullmatch(key)) for key in ("a/x.npy", "a/b/c/x.npy", "a/.x.npy", "x.npy")]
    [True, True, False, False]
    """
    parts = pattern.split("/")
    if parts[-1] == "**":
        parts.append("*")
    texts = [r"(?:(?!\.)[^/]+/)*" if part == "**" else _part(part) + "/" for part in parts]
    texts[-1] = texts[-1].removesuffix("/")
    # A key that is exactly the pattern is meant, too: names may hold brackets.
    return re.compile(f"{re.escape(pattern)}|{''.join(texts)}", re.DOTALL)


def _part(part: str) -> str:
    made = "" if part.startswith(".") else r"(?!\.)"
    at = 0
    while at < len(part):
        sign = part[at]
        found = _CLASS.match(part, at)
        if found and found[2]:
            made += f"(?!/)[{'^' if found[1] else ''}{_members(found[2])}]"
            at = found.end()
            continue
        made += "[^/]*" if sign == "*" else "[^/]" if sign == "?" else re.escape(sign)
        at += 1
    return made


def _members(text: str) -> str:
    """Return the members of a class of characters as a regular expression has them: only ranges stay special."""
    return re.sub(r"([\\\[\]^&~|])", r"\\\1", text)
