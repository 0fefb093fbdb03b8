"""Reads objects through obstore, on the event loop.

A small object takes one request and one turn of the loop: a range from 0 that is a byte longer than the object was
when it was listed. So an object that grew is noticed, and no request asks for its size. Larger objects, parts and
streams take requests whose answer names the version (`If-Match`), because several requests must see the same one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from asyncfeed.attempts.retry import Policy
from asyncfeed.errors import Corrupt
from asyncfeed.extras import installed
from asyncfeed.reading.copies import Copies
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.obstore_client import Connected, Sent, connected
from asyncfeed.reading.obstore_errors import is_beyond, is_changed, is_throttled, translate
from asyncfeed.reading.reader import AsyncReader, Buffers, Range, changed, ends_before, value, wrong_size
from asyncfeed.reading.request import Pending, Request
from asyncfeed.reading.requests import Requests, end
from asyncfeed.reading.traffic import traffic_of
from asyncfeed.reading.urls import WEB
from asyncfeed.reading.versioned import Contents, Versioned, condition, quoted
from asyncfeed.reading.window import MAX_REQUESTS
from asyncfeed.stats import SlowPaths

if TYPE_CHECKING:
    from asyncfeed.reading.objects import ObjectStore

LARGE = 16 << 20
"""Bytes of an object that is read in several requests at a time. One request brings 50 to 90 MB a second."""
PART = 8 << 20
"""Bytes of one of these requests."""
NEAR = 1 << 18
"""Bytes between two parts that are read by one request. More read what nobody wants, fewer make more requests."""
FIRST_BLOCK = 1 << 20
"""Bytes of the first request of a stream. The next ones are larger, because many streams are left early."""
BLOCK = 2 << 20
"""Most bytes of a request of a stream. Two are in memory for each stream, and no limit counts them. If an answer
takes 30 ms, they bring 60 MB a second."""
PIECE = 1 << 16
"""Bytes that a stream yields at a time. They are copied on the loop."""
ANY = 1 << 40
"""The length of a request for a whole object whose size is not known."""


class Part(NamedTuple):
    """One request: these bytes of an object. `start` is -1 for a whole object of a server without ranges."""

    place: int
    file: File
    start: int
    stop: int
    whole: bool = False
    """Whether this one request is to bring the whole object."""


class ObstoreReader(AsyncReader):
    """Reads the objects of one store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        most = MAX_REQUESTS if store.max_requests is None else store.max_requests
        known = store.max_requests is not None
        self._requests = Requests(most, _nbytes, is_throttled, known=known, traffic=traffic_of(store))
        self._sent = Sent(4 * most)
        self._connected: Connected | None = None
        self._obstore: Any = None

    def follow(self, policy: Policy, again: SlowPaths) -> None:
        """Note how long a request may take, and when it is made a second time."""
        self._requests.follow(policy, again)

    async def open(self) -> None:
        """Make the client. It connects when something is read."""
        self._obstore = installed("obstore", "cloud")
        self._connected = connected(self._store)

    async def close(self) -> None:
        """End all requests, and let go of the connections."""
        self._connected = None
        await self._requests.close()
        await self._sent.settle()

    def abandon(self) -> None:
        """Let go of requests and connections, without the loop."""
        self._connected = None
        self._requests.abandon()
        self._sent.abandon()

    async def look(self, files: Sequence[File]) -> list[File | Exception]:
        """Return the objects with the size and the etag that they have now."""
        found = _Looks()
        await self._requests.run(files, self._head, found)
        return found.outcomes

    async def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        """Return whole objects."""
        made: list[Any] = [None] * len(files)
        outcomes = await self._read(files, made, [None] * len(files))
        return [made[place] if error is None else error for place, error in enumerate(outcomes)]

    async def contents(self, files: Sequence[File]) -> list[memoryview | Exception]:
        """Return whole objects as they came; those of several parts in memory of their own."""
        made: list[Any] = [None] * len(files)
        outcomes = await self._read(files, made, [None] * len(files), as_came=True)
        return [memoryview(made[place]) if error is None else error for place, error in enumerate(outcomes)]

    async def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        """Read whole objects into memory that is there."""
        sizes = [sum(map(len, buffers)) for buffers in into]
        return await self._read(files, [_views(buffers) for buffers in into], sizes)

    async def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        """Return parts of an object. Parts that are near each other are read by one request."""
        groups = _merged(ranges)
        parts = [Part(place, file, start, stop) for place, (start, stop, _) in enumerate(groups)]
        taken = _Ranges(file, ranges, [members for _, _, members in groups])
        try:
            if parts:
                await self._requests.run(parts, self._versioned, taken)
            taken.copies.flush()
        finally:
            await taken.copies.settle()
        if not parts or taken.surprised:  # nothing was read, or it is to be told why
            (found,) = await self.look((file,))
            error = found if isinstance(found, Exception) else changed(file, found.size, found.version)
            if error is not None:
                return [error for _ in ranges]
        return [np.empty(0, np.uint8) if each is None else each for each in taken.outcomes]

    async def stream(self, file: File, start: int = 0) -> AsyncGenerator[bytes]:
        """Yield the bytes of an object. The next request is under way while the bytes of one are taken."""
        if file.size is None:
            file = value(*await self.look((file,)))
        size = file.size or 0
        step = FIRST_BLOCK
        ahead: Request | None = None
        try:
            while start < size:
                part = Part(0, file, start, min(size, start + step))
                step = min(BLOCK, 2 * step)
                try:
                    one = self._requests.one(self._versioned, part) if ahead is None else ahead.result()
                    found = await one
                except Exception as error:  # noqa: BLE001 - translated
                    raise await self._explained(error, file) from None
                ahead, start = None, part.stop
                if start < size:
                    ahead = self._requests.start(self._versioned, Part(0, file, start, min(size, start + step)))
                wrong = found.fault(part)
                if wrong is not None:
                    raise wrong
                view = memoryview(found.body)
                for at in range(0, len(view), PIECE):
                    yield bytes(view[at : at + PIECE])
        finally:
            if ahead is not None:
                await end([ahead])

    # -- requests

    @property
    def _client(self) -> Any:
        assert self._connected is not None
        return self._connected.client

    def _head(self, file: File) -> Pending:
        return self._sent.note(self._obstore.head_async(self._client, self._store.key(file)))

    def _get(self, part: Part) -> Pending:
        """Start the request of a part. Its future gives `obstore.Bytes`, or `Contents` with the version."""
        file = part.file
        if part.start < 0 or not part.whole:
            return self._versioned(part)
        if self._store.verify == "etag" and file.etag is not None:
            return self._versioned(part)
        key = self._store.key(file)
        return self._sent.note(self._obstore.get_range_async(self._client, key, start=part.start, end=part.stop))

    def _versioned(self, part: Part) -> Pending:
        options: dict[str, Any] = dict(condition(part.file))
        if part.start >= 0:
            options["range"] = (part.start, part.stop)
        key = self._store.key(part.file)
        first = self._sent.note(self._obstore.get_async(self._client, key, options=options))
        return Versioned(first, self._track).future

    def _track(self, future: Pending) -> None:
        self._requests.track(self._sent.note(future))

    async def _read(
        self, files: Sequence[File], made: list[Any], rooms: Sequence[int | None], *, as_came: bool = False
    ) -> list[Exception | None]:
        """Read whole objects into `made`. Where it holds None, make the memory, or put what came."""
        taken = _Whole(files, made, rooms, as_came=as_came)
        try:
            await self._requests.run(self._parts(files, rooms, taken), self._get, taken)
            taken.copies.flush()
        finally:
            await taken.copies.settle()
        if taken.unsure:
            looked = await self.look([files[place] for place in taken.unsure])
            for place, found in zip(taken.unsure, looked, strict=True):
                taken.outcomes[place] = _why(files[place], found, rooms[place])
                if taken.outcomes[place] is None and made[place] is None:
                    made[place] = np.empty(0, np.uint8)
        return taken.outcomes

    def _parts(self, files: Sequence[File], rooms: Sequence[int | None], taken: _Whole) -> list[Part]:
        """Return the requests to make."""
        parts: list[Part] = []
        web = self._store.scheme in WEB
        for place, (file, room) in enumerate(zip(files, rooms, strict=True)):
            size = room if file.size is None else file.size
            if size == 0 or (room is not None and room != size):
                taken.unsure.append(place)
            elif web and (size is None or size <= LARGE):
                parts.append(Part(place, file, -1, size or ANY, whole=True))
            elif size is None or size <= LARGE:
                parts.append(Part(place, file, 0, ANY if size is None else size + 1, whole=True))
            else:
                taken.expect(place, size)
                starts = range(0, size, PART)
                parts += [Part(place, file, start, min(size, start + PART)) for start in starts]
        return parts

    async def _explained(self, error: Exception, file: File) -> Exception:
        """Return the error to show. If the object changed, look what it is now."""
        if not is_changed(error):
            return translate(error, file.path)
        (found,) = await self.look((file,))
        if isinstance(found, Exception):
            return found
        return changed(file, found.size, found.version) or translate(error, file.path)


def _nbytes(asked: Part | File) -> int:
    """Return the bytes that a request brings; for an object of unknown size as many as one request may bring."""
    return 0 if isinstance(asked, File) else min(asked.stop - max(0, asked.start), LARGE)


class _Looks:
    """Takes the answers to HEAD requests."""

    def __init__(self) -> None:
        self.outcomes: list[File | Exception] = []

    def take(self, file: File, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            self.outcomes.append(translate(outcome, file.path))
        else:
            self.outcomes.append(File(file.path, outcome["size"], etag=quoted(outcome["e_tag"]), store=file.store))

    def pause(self) -> None:
        pass


class _Whole:
    """Takes whole objects, in one part or in several."""

    def __init__(
        self, files: Sequence[File], made: list[Any], rooms: Sequence[int | None], *, as_came: bool
    ) -> None:
        self.outcomes: list[Exception | None] = [None] * len(files)
        self.unsure: list[int] = []
        """The objects that did not come as expected, and must be looked at."""
        self.copies = Copies()
        self._etags: dict[int, str | None] = {}
        """The version of which the first part came."""
        self._made = made
        self._rooms = rooms
        self._as_came = as_came

    def expect(self, place: int, size: int) -> None:
        """Make room for an object of several parts."""
        if self._made[place] is None:
            self._made[place] = np.empty(size, np.uint8)

    def take(self, part: Part, outcome: Any) -> None:
        place = part.place
        if isinstance(outcome, Exception):
            if is_beyond(outcome) or is_changed(outcome):
                self._look(place)
            elif self.outcomes[place] is None:
                self.outcomes[place] = translate(outcome, part.file.path)
            return
        body = self._checked(part, outcome)
        if body is None:
            return
        if self._made[place] is None:
            if self._as_came:
                self._made[place] = body
                return
            self._made[place] = np.empty(len(body), np.uint8)
        target = self._made[place]
        if isinstance(target, list):
            self.copies.add(body, target if part.whole else _between(target, part.start, part.stop))
        else:
            start = max(0, part.start)
            self.copies.add(body, (target.data[start : start + len(body)],))

    def _checked(self, part: Part, outcome: Any) -> memoryview | None:
        """Return what came; None if it is not what was asked for, or another version than before."""
        place, file = part.place, part.file
        expected = self._rooms[place] if file.size is None else file.size
        if not part.whole:
            expected = part.stop - part.start
        body = outcome
        if type(outcome) is Contents:
            body = outcome.body
            if expected is None:
                expected = outcome.size
            if changed(file, outcome.size, outcome.etag or file.version) is not None:
                self._look(place)
                return None
            if outcome.etag != self._etags.setdefault(place, outcome.etag):
                self.outcomes[place] = Corrupt(f"{file.path} changed while it was read")
                return None
        if expected is not None and len(body) != expected:
            self._look(place)
            return None
        return memoryview(body)

    def pause(self) -> None:
        self.copies.flush()

    def _look(self, place: int) -> None:
        if place not in self.unsure:
            self.unsure.append(place)


class _Ranges:
    """Takes groups of parts of one object."""

    def __init__(self, file: File, ranges: Sequence[Range], members: Sequence[Sequence[int]]) -> None:
        self.outcomes: list[Any] = [None] * len(ranges)
        self.surprised = False
        """Whether the object is another one than it was, or whether that cannot be excluded."""
        self.copies = Copies()
        self._file = file
        self._etag = file.etag
        self._ranges = ranges
        self._members = members

    def take(self, part: Part, outcome: Any) -> None:
        members = self._members[part.place]
        if isinstance(outcome, Exception):
            beyond = is_beyond(outcome)
            self.surprised |= is_changed(outcome) or (beyond and self._file.size is not None)
            for each in members:
                stop = self._ranges[each][1]
                self.outcomes[each] = (
                    ends_before(self._file, stop) if beyond else translate(outcome, self._file.path)
                )
            return
        etag = self._etag = self._etag or outcome.etag
        if changed(self._file, outcome.size, outcome.etag or self._file.version) or etag != (outcome.etag or etag):
            self.surprised = True
            error = Corrupt(f"{self._file.path} changed while it was read")
            for each in members:
                self.outcomes[each] = error
            return
        body = memoryview(outcome.body)
        for each in members:
            start, stop = self._ranges[each]
            if stop - part.start > len(body):
                self.outcomes[each] = ends_before(self._file, stop)
                continue
            self.outcomes[each] = made = np.empty(stop - start, np.uint8)
            self.copies.add(body[start - part.start : stop - part.start], (made.data,))

    def pause(self) -> None:
        self.copies.flush()


def _why(file: File, found: File | Exception, room: int | None) -> Exception | None:
    """Return what is wrong with an object that did not come as expected; None if it is empty, as it should be."""
    if isinstance(found, Exception):
        return found
    error = changed(file, found.size, found.version)
    if error is not None:
        return error
    if room is not None and found.size != room:
        return wrong_size(file, found.size or 0, room)
    if found.size == 0:
        return None
    text = f"{file.path}: the store sent another number of bytes than the {found.size} that it has"
    return Corrupt(text, transient=True)


def _views(buffers: Buffers) -> list[memoryview]:
    return [memoryview(each) for each in buffers]


def _between(buffers: Buffers, start: int, stop: int) -> list[memoryview]:
    """Return the parts of buffers that hold these bytes of what fills them one after the other."""
    found = []
    for buffer in buffers:
        size = len(buffer)
        if start < size and stop > 0:
            found.append(memoryview(buffer)[max(0, start) : max(0, stop)])
        start, stop = start - size, stop - size
    return found


def _merged(ranges: Sequence[Range]) -> list[tuple[int, int, list[int]]]:
    """Return the requests for parts: start, stop, and the places of the parts. Empty parts alone make none."""
    groups: list[tuple[int, int, list[int]]] = []
    for place in sorted(range(len(ranges)), key=lambda each: ranges[each]):
        start, stop = ranges[place]
        if groups:
            first, last, members = groups[-1]
            if start - last <= NEAR and max(last, stop) - first <= max(PART, last - first):
                groups[-1] = first, max(last, stop), [*members, place]
                continue
        groups.append((start, stop, [place]))
    return [each for each in groups if each[1] > each[0]]
