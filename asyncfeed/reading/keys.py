"""Objects by name: many names in little memory, and patterns of names."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise, starmap
from operator import lt
from typing import NamedTuple, overload

from asyncfeed.reading.file import File
from asyncfeed.reading.reader import Store

UNKNOWN = -1
"""The size of an object whose size is not known, in an `ObjectList`."""
_CLASS = re.compile(r"\[(!?)(\]?[^\]/]*)\]")

Found = tuple[str, int | None, str | None, int]
"""A key, the size in bytes, the etag, and the number of the `Place`. An unknown size or etag is None."""


class Place(NamedTuple):
    """Where the objects of an `ObjectList` are."""

    start: str
    """The text before each key, which makes it the path of a file."""
    store: Store


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

    def tobytes(self) -> bytes:
        """Return the texts, and where each ends. Only equal texts have equal bytes."""
        return bytes(self._joined) + self._ends.tobytes()

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
    """Objects of one store or several, held compactly. A `File` is made when it is asked for.

    Memory: 24 bytes for each object, beside the characters of its key and etag. With several stores 4 more.
    """

    __slots__ = ("_etags", "_keys", "_places", "_sizes", "_which")

    def __init__(self, places: Iterable[Place], found: Iterable[Found] = ()) -> None:
        self._places = list(places)
        self._keys = Texts()
        self._etags = Texts()
        self._sizes = array("q")
        self._which = array("I")
        """The number of the place of each object. It is empty as long as all objects are of the first place."""
        for each in found:
            self.append(*each)

    def append(self, key: str, size: int | None = None, etag: str | None = None, place: int = 0) -> None:
        """Add an object of the place with this number."""
        if place and not self._which:
            self._which.extend(bytes(len(self)))
        if place or self._which:
            self._which.append(place)
        self._keys.append(key)
        self._etags.append(etag or "")
        self._sizes.append(UNKNOWN if size is None else size)

    def extend(self, found: Iterable[Found]) -> None:
        """Add objects."""
        for each in found:
            self.append(*each)

    @property
    def places(self) -> Sequence[Place]:
        """Where the objects are. Each object has the number of its place."""
        return self._places

    def add_place(self, place: Place) -> int:
        """Add a place, and return its number."""
        self._places.append(place)
        return len(self._places) - 1

    @property
    def reads_on_loop(self) -> bool:
        """Whether some are of a store that is read on the loop."""
        return any(place.store.reads_on_loop for place in self._places)

    @property
    def nbytes(self) -> int:
        """Total size in bytes of the objects whose size is known."""
        return sum(size for size in self._sizes if size != UNKNOWN)

    @property
    def memory(self) -> int:
        """Memory that the list takes, in bytes."""
        return self._keys.nbytes + self._etags.nbytes + 8 * len(self._sizes) + 4 * len(self._which)

    def digest(self, places: Iterable[int] | None = None) -> str:
        """Return what stands for the objects, or those at these places: keys, sizes and etags, in order.

        The names of buckets do not count, so a copy of a bucket has the same digest if it has the same etags.
        """
        if places is not None:
            return ObjectList(self._places, map(self._found, places)).digest()
        found = sha256(self._sizes.tobytes())
        for each in (self._keys, self._etags, self._which):
            found.update(each.tobytes())
        return found.hexdigest()[:16]

    def found(self) -> Iterator[Found]:
        """Yield what is known of each object."""
        return map(self._found, range(len(self)))

    def pick(self, places: Iterable[int]) -> list[File]:
        """Return the objects at these places, in this order."""
        return [self[at] for at in places]

    def in_order(self) -> ObjectList:
        """Return the objects sorted by URL, each once."""
        keys = self._keys
        if not self._which and all(starmap(lt, pairwise(keys))):
            return self
        starts = [place.start for place in self._places]
        which = self._which or bytes(len(self))
        ordered = ObjectList(self._places)
        last: tuple[str, str] | None = None
        for start, key, at in sorted(zip((starts[each] for each in which), keys, range(len(keys)), strict=True)):
            if (start, key) != last:
                ordered.append(*self._found(at))
            last = start, key
        return ordered

    def _found(self, at: int) -> Found:
        size = self._sizes[at]
        place = self._which[at] if self._which else 0
        return self._keys[at], None if size == UNKNOWN else size, self._etags[at] or None, place

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, at: int) -> File: ...
    @overload
    def __getitem__(self, at: slice) -> ObjectList: ...
    def __getitem__(self, at: int | slice) -> File | ObjectList:
        if isinstance(at, slice):
            return ObjectList(self._places, map(self._found, range(*at.indices(len(self)))))
        key, size, etag, place = self._found(at)
        start, store = self._places[place]
        return File(start + key, size, etag=etag, store=store)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectList):
            return NotImplemented
        mine = (self._places, self._which, self._sizes, self._keys, self._etags)
        return mine == (other._places, other._which, other._sizes, other._keys, other._etags)

    def __hash__(self) -> int:
        return hash((len(self), *(place.start for place in self._places)))

    def __repr__(self) -> str:
        stores = [place.store for place in self._places]
        return f"ObjectList({len(self)} objects of {stores[0]!r}{', ...' if len(stores) > 1 else ''})"


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
