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

from asyncfeed.errors import PipelineError, StoreError, TimedOut, Unavailable, note
from asyncfeed.extras import installed
from asyncfeed.reading.glob import alternatives, fixed_part, has_magic
from asyncfeed.reading.keys import Found, ObjectList, Place, matcher
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_client import LISTING_RETRIES, Sent, connect
from asyncfeed.reading.obstore_errors import ODD, refused_key, translate
from asyncfeed.reading.requests import end_futures, loop_runs
from asyncfeed.reading.s3_pages import is_odd, never_ends, pages, why_not
from asyncfeed.reading.urls import WEB
from asyncfeed.reading.versioned import quoted

PAGE = 1000
"""Number of objects that one request lists. A page of S3 has as many."""
SLICE = 200
"""Number of objects that are looked at in one turn of the loop. 200 take half a millisecond."""
QUIET_SECONDS = 5
"""Time without a new object after which a bucket of S3 is listed by `s3_pages`, which sees pages without objects.
Nothing fails because of it. With less time, slow pages are asked for twice."""
LONGEST_SECONDS = 600
"""Time without a new object after which the listing of any other store fails. Pages without objects are not seen
there. A request that is not answered fails much earlier."""

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
        """Yield the pages of a folder: those of obstore, and `s3_pages` behind what obstore cannot list."""
        store = cast("ObjectStore", self._places[folder.place].store)
        where = f"{store.url}/{folder.path}"
        if folder.place not in self._clients:
            self._clients[folder.place] = connect(store, retries=LISTING_RETRIES)
        passed = _Passed(where, position)
        no = why_not(store)
        refused = repr(position) if is_odd(position or "") else None
        if refused is None:
            try:
                async with aclosing(self._of_obstore(folder, position, waits=no is not None)) as listed:
                    async for page in listed:
                        passed.note(page)
                        yield page
            except Exception as error:
                refused = refused_key(error)
                if refused is None and not isinstance(error, _Quiet):
                    raise
            else:
                return
        if no is not None:
            raise StoreError(
                f"{where}: cannot be listed for the key {refused}: {ODD}; {no}. Rename the object, list with "
                "fsspec (store=), or name the files in a manifest"
            )
        if not passed.rises:  # what a store without an order has not listed yet lies behind no key
            passed = _Passed(where, position)
        known = frozenset(passed.behind)
        self._asked_at = monotonic()
        async with aclosing(pages(store, self._clients[folder.place], folder.path, passed.position)) as own:
            async for page in own:
                self._asked_at = monotonic()
                new = [each for each in page if each["size"] or each["path"] not in known]
                passed.note(new)
                yield new

    async def _of_obstore(self, folder: Folder, position: str | None, *, waits: bool) -> AsyncGenerator[Any]:
        """Yield the pages of obstore. The request for the next one is under way while one is taken.

        Raises `_Quiet` if none comes for a while. If `waits`, it waits for longer, and raises `TimedOut`.
        """
        obstore = installed("obstore", "cloud")
        stream = obstore.list(self._clients[folder.place], folder.path or None, offset=position, chunk_size=PAGE)
        self._asked_at = monotonic()
        ahead: asyncio.Future[Any] = anext(stream)
        try:
            with suppress(StopAsyncIteration):
                while True:
                    await asyncio.wait([ahead], timeout=LONGEST_SECONDS if waits else QUIET_SECONDS)
                    if not ahead.done():
                        text = f"no object was listed within {LONGEST_SECONDS} s"
                        raise TimedOut(text, kind="timeout") if waits else _Quiet
                    page = ahead.result()
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
                f"a page takes up to {LISTING_RETRIES + 1} attempts",
            )
        return shown.with_traceback(None)  # its frames hold the connection

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


class _Quiet(Exception):
    """obstore has not told of any object for a while."""


class _Passed:
    """Knows what of a folder was listed: how another listing goes on behind it, and whether it comes again."""

    def __init__(self, where: str, position: str | None) -> None:
        self.position = position
        """The last key that is known exactly. obstore shows no slash at the end of an object without bytes."""
        self.behind: set[str] = set()
        """The objects without bytes behind this key."""
        self.rises = True
        """Whether the keys came in their order."""
        self._where = where
        self._mark: Any = None
        """An object that was listed. Each mark stands for twice as many pages as the one before. So a listing that
        goes in a circle is noticed at its third round at the latest."""
        self._again = 0
        """How many times the mark came again. Without bytes it may come once: as an object, and for a folder."""
        self._pages = self._left = 1
        """The number of pages that a mark stands for, and how many of these are left."""

    def note(self, page: Sequence[Any]) -> None:
        """Note a page. Raise `StoreError` if the listing repeats itself."""
        mark = self._mark
        if mark is not None:
            self._again += sum(each["path"] == mark["path"] and each == mark for each in page)
            if self._again > (0 if mark["size"] else 1):
                raise never_ends(self._where, f"{mark['path']!r} was listed twice")
        for each in page:
            if each["size"]:
                self.rises &= self.position is None or self.position < each["path"]
                self.position, self.behind = each["path"], set()
            else:
                self.behind.add(each["path"])
        self._left -= 1
        if self._left <= 0 and len(page):
            self._pages *= 2
            self._left = self._pages
            self._mark, self._again = page[-1], 0


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
            f"files: the store does not list {self._sorted_in!r} in the order of the names, or lists some twice, "
            'so that listing="streamed" cannot sort; leave it out'
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
