"""Pages of the objects that patterns match, as a store lists them.

A store gives its keys in order, and folders are listed in that order. So the objects of several patterns come
sorted, and the first ones are known before the last ones.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from time import monotonic
from typing import Any, NamedTuple, cast

from asyncfeed.errors import PipelineError, Unavailable, note
from asyncfeed.extras import installed
from asyncfeed.reading.glob import alternatives, fixed_part, has_magic
from asyncfeed.reading.keys import Found, ObjectList, Place, matcher
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_client import LISTING_RETRIES, Sent, connect
from asyncfeed.reading.obstore_errors import translate
from asyncfeed.reading.requests import end_futures, loop_runs
from asyncfeed.reading.urls import WEB
from asyncfeed.reading.versioned import quoted

PAGE = 1000
"""Number of objects that one request lists. A page of S3 has as many."""
SLICE = 200
"""Number of objects that are looked at in one turn of the loop. 200 take half a millisecond."""

Match = Callable[[str], object]
Named = tuple[int, str]
"""The number of a place, and a key or a pattern of keys."""


class Folder(NamedTuple):
    """What one listing goes through: everything of a place whose key begins with `path`."""

    place: int
    path: str
    patterns: dict[str, list[str]]
    """The patterns that may match something in it, and those of their alternatives that may."""


class Folders:
    """The folders that hold everything that patterns match, in the order of their URLs. None lies in another."""

    def __init__(self, names: ObjectList, *, sorted_only: bool) -> None:
        self._places = names.places
        self._sorted_only = sorted_only
        """Whether keys that do not rise are an error."""
        self.position = ""
        """The key behind which the listing of a folder goes on. It is only known with `sorted_only`."""
        self._clients: dict[int, Any] = {}
        self._asked_at = 0.0
        """When the last page was asked for."""
        found: dict[int, dict[str, list[str]]] = {}
        for number, pattern in dict.fromkeys(each for each in named(names) if is_pattern(names, each)):
            found.setdefault(number, {})[pattern] = alternatives(pattern)
        self._folders = [
            folder
            for number in sorted(found, key=lambda each: self._places[each].start)
            for folder in _outermost(number, found[number])
        ]
        self._looked_in: dict[Named, list[int]] = {}
        """The patterns without a match so far, and the numbers of their folders."""
        for number, folder in enumerate(self._folders):
            for pattern in folder.patterns:
                self._looked_in.setdefault((folder.place, pattern), []).append(number)

    def __len__(self) -> int:
        return len(self._folders)

    async def pages(self, number: int, position: str | None = None) -> AsyncGenerator[Sequence[Found]]:
        """Yield the objects in a folder that match, from the start or behind a `position`.

        Raises `PipelineError` at the end of the last folder of a pattern that has matched nothing.
        """
        folder = self._folders[number]
        where = self._where(number)
        chosen = _Chosen(folder, where if self._sorted_only else None, position)
        try:
            async with aclosing(self._listed(folder, position)) as listed:
                async for page in listed:
                    for at in range(0, len(page), SLICE):
                        matching = chosen.take(page[at : at + SLICE])
                        self._note(folder, matching)
                        self.position = chosen.position
                        yield matching
                        await asyncio.sleep(0)  # others have their turn, also if nothing matches
            matching = chosen.rest()
            self._note(folder, matching)
            self.position = chosen.position
            yield matching
        except PipelineError:
            raise
        except Exception as error:  # noqa: BLE001 - translated
            raise self._shown(error, folder, where) from None
        for pattern in folder.patterns:
            looked_in = self._looked_in.get((folder.place, pattern))
            if looked_in is not None and looked_in[-1] == number:
                raise PipelineError(
                    f"files: {self._places[folder.place].start + pattern!r} matches no object; it looked in "
                    + " and ".join(repr(self._where(each)) for each in looked_in)
                )

    async def _listed(self, folder: Folder, position: str | None) -> AsyncGenerator[Any]:
        """Yield the pages of a folder. The request for the next one is under way while one is taken."""
        if folder.place not in self._clients:
            store = cast("ObjectStore", self._places[folder.place].store)
            self._clients[folder.place] = connect(store, retries=LISTING_RETRIES)
        obstore = installed("obstore", "cloud")
        stream = obstore.list(self._clients[folder.place], folder.path or None, offset=position, chunk_size=PAGE)
        self._asked_at = monotonic()
        ahead: asyncio.Future[Any] = anext(stream)
        try:
            with suppress(StopAsyncIteration):
                while True:
                    page = await ahead
                    self._asked_at = monotonic()
                    ahead = anext(stream)
                    yield page
        finally:
            await end_futures([ahead])
            sent = Sent(1)
            sent.note(ahead)
            # The exception of the last future refers to this frame. Together they would keep the connection.
            del ahead, stream
            if loop_runs():
                await sent.settle()
            else:
                sent.abandon()

    def _shown(self, error: Exception, folder: Folder, where: str) -> Exception:
        """Return the error to show for a listing that failed, with its patterns and how long it took."""
        shown = translate(error, where)
        if isinstance(shown, Unavailable):
            patterns = " and ".join(repr(self._places[folder.place].start + each) for each in folder.patterns)
            seconds = monotonic() - self._asked_at
            note(
                shown,
                f"asyncfeed: listing for {patterns} failed {seconds:.3g} s after the last page was asked for; "
                f"obstore makes up to {LISTING_RETRIES + 1} attempts, and does not tell of them",
            )
        return shown

    def let_go(self) -> None:
        """Let go of the connections."""
        self._clients.clear()

    def _note(self, folder: Folder, matching: Sequence[Found]) -> None:
        """Note which patterns have a match by now."""
        if not self._looked_in or not matching:
            return
        for pattern, choices in folder.patterns.items():
            if (folder.place, pattern) in self._looked_in:
                match = _match(choices)
                if any(match(each[0]) for each in matching):
                    del self._looked_in[folder.place, pattern]

    def _where(self, number: int) -> str:
        return self._places[self._folders[number].place].start + self._folders[number].path


class _Chosen:
    """Chooses what matches from the pages of a folder, in their order."""

    def __init__(self, folder: Folder, sorted_in: str | None, position: str | None) -> None:
        self._match = _match([each for choices in folder.patterns.values() for each in choices])
        self._place = folder.place
        self._sorted_in = sorted_in
        """The name of the folder if its keys must rise."""
        self._position = position
        """Everything up to this key was taken before. None if nothing was."""
        self._last = self._before_empty = position or ""
        self._empty: Found | None = None
        """The object that was listed last, if it has no bytes. It may stand for a folder."""

    @property
    def position(self) -> str:
        """The key up to which everything that matches was returned."""
        return self._last if self._empty is None else self._before_empty

    def take(self, page: Iterable[Any]) -> list[Found]:
        chosen: list[Found] = []
        for each in page:
            key, size = each["path"], each["size"]
            if self._position is not None and self._is_known(key, size):
                continue
            before = self._last
            if self._sorted_in is not None:
                self._check_order(key, size)
            empty = self._empty
            if empty is not None:
                if not key.startswith(f"{empty[0]}/"):
                    chosen.append(empty)
                self._empty = None
            if self._match(key):
                found = key, size, quoted(each["e_tag"]), self._place
                if size:
                    chosen.append(found)
                else:  # an object that stands for a folder is followed by what is in it
                    self._empty, self._before_empty = found, before
        return chosen

    def rest(self) -> list[Found]:
        empty, self._empty = self._empty, None
        return [] if empty is None else [empty]

    def _is_known(self, key: str, size: int) -> bool:
        """Return whether an object was taken before. obstore asks the store without the slash of a position."""
        assert self._position is not None
        if key <= self._position and (size or key == self._position or f"{key}/" <= self._position):
            return True
        self._position = None  # keys rise
        return False

    def _check_order(self, key: str, size: int) -> None:
        if key > self._last:
            self._last = key
            return
        if not size and f"{key}/" > self._last:  # the slash at the end of a folder is not shown
            self._last = f"{key}/"
            return
        raise PipelineError(
            f"files: the store does not list {self._sorted_in!r} in the order of the names, so that "
            'listing="streamed" cannot sort; leave it out'
        )


def _match(choices: Iterable[str]) -> Match:
    return re.compile("|".join(f"(?:{matcher(each).pattern})" for each in choices), re.DOTALL).fullmatch


def _outermost(place: int, patterns: dict[str, list[str]]) -> list[Folder]:
    """Return the folders of patterns that lie in no other one of them, sorted. "" is the whole store."""
    choices = sorted(
        ("" if (folder := fixed_part(each)) == "." else folder, pattern, each)
        for pattern, alternative in patterns.items()
        for each in alternative
    )
    outer: list[Folder] = []
    for path, pattern, each in choices:
        if not outer or not path.startswith(outer[-1].path):
            outer.append(Folder(place, path, {}))
        outer[-1].patterns.setdefault(pattern, []).append(each)
    return outer


def named(names: ObjectList) -> Iterable[Named]:
    """Return the names in a list."""
    return ((number, key) for key, _, _, number in names.found())


def is_web(place: Place) -> bool:
    """Return whether a place is a web server. It cannot be asked what it has."""
    return cast("ObjectStore", place.store).scheme in WEB


def is_pattern(names: ObjectList, each: Named) -> bool:
    """Return whether a name is a pattern. The URLs of a web server are none."""
    return has_magic(each[1]) and not is_web(names.places[each[0]])
