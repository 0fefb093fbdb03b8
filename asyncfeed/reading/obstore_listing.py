"""Lists the objects that URLs and patterns name: all of them in one call, or page by page in a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, TypeVar, cast

from asyncfeed.errors import PipelineError, StoreError, note
from asyncfeed.extras import installed
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.keys import Found, ObjectList, Place
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_pages import SLICE, Folders, Named, is_pattern, is_web, named
from asyncfeed.reading.reader import AsyncReader, value
from asyncfeed.reading.scope import current, new_reader

T = TypeVar("T")

LOOKED_UP = 256
"""Number of objects without a wildcard that a run looks up at a time. More of them delay the first, fewer leave
requests unused between two groups."""


def expand(names: ObjectList) -> ObjectList:
    """List the objects that keys and patterns name.

    Order and patterns are those of local files, see `listing.expand`. The size of an object without a wildcard is
    looked up, unless the store is a web server.

    Raises `PipelineError` for a pattern without a match, `FileNotFoundError` and the other errors of a reader.
    This blocks, and must not be called on a thread whose event loop runs.
    """
    if all(is_web(place) for place in names.places):  # nothing is asked
        return names
    return _blocking(_expand(names), "to list a store")


def read_object(file: File) -> Bytes:
    """Return the contents of an object. This blocks, and must not be called on a thread whose event loop runs."""
    read = _with_reader(cast("ObjectStore", file.store), lambda reader: reader.read((file,)))
    return value(*_blocking(read, "to read a manifest"))


def _blocking(coroutine: Coroutine[Any, Any, T], what: str) -> T:
    """Run a coroutine on a loop of its own. Raise if this thread has one that runs."""
    try:
        installed("obstore", "cloud")
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise PipelineError(
                f'files: {what} takes requests, which would block this event loop; pass listing="streamed", which '
                "makes them while the pipeline runs, or write: await asyncio.to_thread(asyncfeed.files, ...)"
            )
        return asyncio.run(coroutine)
    finally:
        coroutine.close()


async def _expand(names: ObjectList) -> ObjectList:
    known = await _looked_up([each for each in named(names) if not is_pattern(names, each)], names.places)
    folders = Folders(names, sorted_only=False)
    if not len(folders):
        return ObjectList(names.places, (known[each] for each in named(names)))
    matches = ObjectList(names.places)
    try:
        for number in range(len(folders)):
            async with aclosing(folders.pages(number)) as pages:
                async for page in pages:
                    matches.extend(page)
    finally:
        folders.let_go()  # obstore may keep the last future until it is used again, and with it these frames
    matches = matches.in_order()
    if not known:
        return matches
    made = ObjectList(names.places)
    listed = False
    for each in named(names):
        if each in known:
            made.append(*known[each])
        elif not listed:
            listed = True
            made.extend(matches.found())
    return made


class ObjectListing:
    """The objects of one run. Its first epoch lists them as they are wanted, and later epochs see the same ones.

    Invariants:

    * `found` only grows, and holds each object that an epoch has delivered.
    * The steps before `_step` are complete. If an epoch is left in the middle of a step, the next epoch goes on
      where it was.
    """

    def __init__(self, names: ObjectList) -> None:
        self.found = ObjectList(names.places)
        self._names = names
        self._folders = Folders(names, sorted_only=True)
        self._steps = _steps(names, len(self._folders))
        self._step = 0
        self._before = 0
        """Number of objects found in the steps that are complete."""
        self._position: str | None = None
        """The key up to which the folder of this step is listed. None if it is not begun."""

    async def files(self) -> AsyncGenerator[File]:
        """Yield the files of one epoch. The next page is asked for before the files of one are delivered."""
        found = self.found
        for at in range(0, len(found), SLICE):
            for file in found.pick(range(at, min(at + SLICE, len(found)))):
                yield file
        try:
            for step in self._steps[self._step :]:
                async with aclosing(self._more(step)) as pages:
                    async for page in pages:
                        at = len(found)
                        found.extend(page)
                        self._position = self._folders.position
                        for file in found.pick(range(at, len(found))):
                            yield file
                self._step += 1
                self._before = len(found)
                self._position = None
        finally:
            self._folders.let_go()

    async def _more(self, step: Step) -> AsyncGenerator[Sequence[Found]]:
        """Yield the objects of a step that are not found yet."""
        found = self.found
        if step.folder is None:
            count = len(found) - self._before
            group = list(named(self._names[step.start + count : step.stop]))
            known = await _looked_up(group, self._names.places)
            yield [known[each] for each in group]
            return
        async with aclosing(self._folders.pages(step.folder, self._position)) as pages:
            try:
                async for page in pages:
                    yield page
            except (OSError, StoreError) as error:
                if found:
                    note(error, f"asyncfeed: the listing had {len(found):,} files by then, up to {found[-1].path}")
                raise


class Step(NamedTuple):
    """A part of a listing: the folder with this number, or the names without wildcards from `start` to `stop`."""

    folder: int | None
    start: int = 0
    stop: int = 0


def _steps(names: ObjectList, folders: int) -> list[Step]:
    """Return the steps of a listing. All patterns are listed where the first one stands."""
    steps: list[Step] = []
    start = 0
    listed = False
    for at, each in enumerate(named(names)):
        is_one = is_pattern(names, each)
        if start < at and (is_one or at - start == LOOKED_UP):
            steps.append(Step(None, start, at))
            start = at
        if is_one:
            start = at + 1
            steps += () if listed else map(Step, range(folders))
            listed = True
    if start < len(names):
        steps.append(Step(None, start, len(names)))
    return steps


async def _looked_up(group: Iterable[Named], places: Sequence[Place]) -> dict[Named, Found]:
    """Return what is known of objects. A web server is not asked. A run asks with its own readers."""
    known: dict[Named, Found] = {}
    wanted: dict[int, dict[str, None]] = {}
    for number, key in group:
        if is_web(places[number]):
            known[number, key] = key, None, None, number
        else:
            wanted.setdefault(number, {})[key] = None
    for number, keys in wanted.items():
        store = cast("ObjectStore", places[number].store)
        files = [store.file(key) for key in keys]
        for key, outcome in zip(keys, await _look(store, files), strict=True):
            file: File = value(outcome)
            known[number, key] = key, file.size, file.etag, number
    return known


async def _look(store: ObjectStore, files: Sequence[File]) -> list[File | Exception]:
    scope = current.get()
    if scope is not None:
        return await (await scope.async_reader(store)).look(files)
    return await _with_reader(store, lambda reader: reader.look(files))


async def _with_reader(store: ObjectStore, call: Callable[[AsyncReader], Coroutine[Any, Any, T]]) -> T:
    reader = new_reader(store)  # it asks again after a failure that may pass, as in a run
    assert isinstance(reader, AsyncReader)
    try:
        await reader.open()
        return await call(reader)
    finally:
        await reader.close()
