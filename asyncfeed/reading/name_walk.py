"""Lists the names of files only: no file is looked at, unless it is a link or is named without a wildcard.

The result has the same paths in the same order as `listing.expand`, and the same errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from stat import S_ISREG
from typing import Final

from asyncfeed.reading.given import Given, literal
from asyncfeed.reading.glob import (
    NO_DIRECTORY,
    ONLY_DIRECTORIES,
    Boundary,
    Directory,
    alternatives,
    begin,
    fixed_part,
    has_magic,
    nothing,
)
from asyncfeed.reading.inside import InsideReader
from asyncfeed.reading.packed_names import Names

_MAX_TEXTS: Final = 10_000
"""Number of paths that are kept as text until they are packed. With fewer, small directories take longer."""

_Paths = Names | list[str]
"""Some paths. There is at least one."""


def found_names(given: Given) -> Names:
    """Return what paths and patterns name, without sizes.

    The order and the errors are those of `listing.expand`. If several things are wrong, another one of them may be
    raised. This blocks.
    """
    return Names.joined(_packed(_pieces(given.texts, given.magic, _Walk(given.boundary))))


def _pieces(texts: Sequence[str], magic: set[str], walk: _Walk) -> Iterator[_Paths]:
    """Yield what paths and patterns name, in order."""
    listed = False
    for text in texts:
        if text not in magic:
            yield [walk.literal(text)]
        elif not listed:
            listed = True
            yield from _merged([walk.matching(each) for each in texts if each in magic])


def _packed(pieces: Iterable[_Paths]) -> list[Names]:
    """Return paths packed."""
    parts: list[Names] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, list):
            texts += piece
            if len(texts) < _MAX_TEXTS:
                continue
        if texts:
            parts.append(Names.of(texts))
            texts = []
        if isinstance(piece, Names):
            parts.append(piece)
    return [*parts, Names.of(texts)] if texts else parts


def _merged(listings: Sequence[list[Names]]) -> list[Names]:
    """Return the paths of several sorted listings, sorted, each once."""
    listings = sorted(filter(None, listings), key=lambda names: names[0].text(0))
    parts = list(chain.from_iterable(listings))
    if all(one[-1].text(-1) < other[0].text(0) for one, other in pairwise(listings)):
        return parts
    return [Names.joined(parts).unique()]


class _Walk:
    """Finds the names that patterns match."""

    def __init__(self, boundary: Boundary | None) -> None:
        self._boundary = boundary
        self._reader = InsideReader()

    def literal(self, text: str) -> str:
        """Return a path, if a file has exactly this name."""
        return literal(text, self._boundary)[0]

    def matching(self, pattern: str) -> list[Names]:
        """Return the paths of the files that a pattern matches, sorted, each once.

        As in `expand`, one of several alternatives in braces may match nothing. But its directory must exist, and
        so must a file that an alternative names without a wildcard.
        """
        choices = alternatives(pattern)
        if len(choices) == 1:
            return _packed(self._found(pattern))
        found = _merged(
            [
                _packed(self._found(each, optional=True))
                if has_magic(each) and not os.path.exists(each)  # noqa: PTH110
                else [Names.of([self.literal(each)])]
                for each in choices
            ]
        )
        if not found:
            raise nothing(pattern, list(map(fixed_part, choices)))
        return found

    def _found(self, pattern: str, *, optional: bool = False) -> Iterator[_Paths]:
        """Yield the paths of the regular files that a pattern without braces matches, sorted."""
        search, top = begin(pattern, self._boundary)
        try:
            under_way = [(top, self._reader.read(top, search))]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise nothing(pattern, [top.prefix or "."], NO_DIRECTORY) from error
        files = directories = 0
        while under_way:
            here, pieces = under_way[-1]
            for piece in pieces:
                if isinstance(piece, Directory):
                    under_way.append((piece, self._reader.read(piece, search)))
                    break
                if isinstance(piece, Names | list):
                    if here.link is not None:
                        path = piece[0] if isinstance(piece, list) else piece.text(0)
                        raise search.boundary.error(path, here.link)
                elif S_ISREG(piece.stat().st_mode):
                    path = here.prefix + piece.name
                    search.check(piece, path, here)
                    piece = [path]
                else:
                    directories += piece.is_dir()
                    continue
                files += len(piece)
                yield piece
            else:
                under_way.pop()
        if not files and not optional:
            raise nothing(pattern, [top.prefix or "."], ONLY_DIRECTORIES if directories else "")
