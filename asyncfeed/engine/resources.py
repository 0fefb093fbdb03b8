"""The readers of one run: made when a file of their store is first read, shared by its stages, closed with it.

An `AsyncReader` is opened on the run's loop, in a task of the run. Threads that read with it wait for such a task.

Invariants:

* `AsyncReader.open` is called at most once for each store. If it was called, `close` or `abandon` is called once.
* Whoever waits for a reader on a thread gets an answer, however the run ends: the task that would give it is
  cancelled with the run, and `abandon` answers if the loop is closed before its time.
* `closing` is called when no task of the run is left but those that do not end. So no reader is closed while it is
  used, unless the grace is over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

from asyncfeed.engine.closing import complain
from asyncfeed.engine.provenance import is_own_cancellation
from asyncfeed.engine.threads import Threads
from asyncfeed.errors import ClosedError
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import AsyncReader, Buffers, Range, Reader, Store
from asyncfeed.reading.scope import new_reader
from asyncfeed.reading.threaded import ThreadedReader

T = TypeVar("T")

Start = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
Call = Callable[[AsyncReader], Coroutine[Any, Any, T]]


class Resources:
    """The `Scope` of a run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Threads, start: Start) -> None:
        self._loop = loop
        self._threads = threads
        self._start = start
        self._lock = threading.RLock()
        """One that a thread may take twice: the garbage collector may call `abandon` on a thread that has it."""
        self._readers: dict[Store | None, Reader] = {}
        """What is called on threads."""
        self._on_loop: dict[Store | None, AsyncReader] = {}
        """What is called on the loop."""
        self._opened: list[_OnLoop] = []
        """Those whose reader has been told to open; changed on the loop only."""
        self._answers: set[_Answer[Any]] = set()
        """What threads wait for."""
        self._ended = False

    def reader(self, store: Store | None) -> Reader:
        """Return the reader of a store, to be called on a thread."""
        reader = self._readers.get(store)
        return self._make(store)[0] if reader is None else reader

    async def async_reader(self, store: Store | None) -> AsyncReader:
        """Return the same, open, to be called on the loop."""
        reader, on_loop = self._make(store)
        if isinstance(reader, _OnLoop):
            await self._open(reader)
        return on_loop

    def _make(self, store: Store | None) -> tuple[Reader, AsyncReader]:
        with self._lock:
            if store not in self._readers:
                if self._ended:
                    raise _gave_up()
                made = new_reader(store)
                if isinstance(made, AsyncReader):
                    self._on_loop[store], self._readers[store] = made, _OnLoop(self, made)
                else:
                    self._on_loop[store], self._readers[store] = ThreadedReader(made, self._submit), made
            return self._readers[store], self._on_loop[store]

    def _submit(self, fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._threads.submit(getattr(fn, "__name__", "a read"), fn, *args)

    async def _open(self, shared: _OnLoop) -> None:
        """Wait until a reader is open; the first that asks has it opened."""
        if shared.opening is None:
            shared.opening = self._loop.create_future()
            self._start(self._opening(shared, shared.opening), "asyncfeed: opening a store")
        if not shared.opening.done():
            await asyncio.wait([shared.opening])  # if one is cancelled who waits, the others do not hear of it
        shared.opening.result()

    async def _opening(self, shared: _OnLoop, opening: asyncio.Future[None]) -> None:
        task = asyncio.current_task()
        self._opened.append(shared)
        try:
            await shared.reader.open()
        except BaseException as error:
            opening.set_exception(_as_failure(error))
            opening.exception()  # or else asyncio says that nobody has asked for it
            if is_own_cancellation(error, task):
                raise
        else:
            opening.set_result(None)

    # -- threads that wait for the loop

    def wait(self, shared: _OnLoop, call: Call[T]) -> T:
        """Call a reader on the loop, and return what comes of it; on a thread."""
        answer: _Answer[T] = _Answer()
        with self._lock:
            if self._ended:
                raise _gave_up()
            self._answers.add(answer)
        try:
            self._loop.call_soon_threadsafe(self._ask, shared, call, answer)
        except RuntimeError:  # the loop has closed
            self._give(answer, None, _gave_up())
        self._threads.park(answer.given)
        return answer.take()

    def _ask(self, shared: _OnLoop, call: Call[T], answer: _Answer[T]) -> None:
        if answer not in self._answers:
            return  # the run has ended meanwhile
        task = self._start(self._answer(shared, call, answer), "asyncfeed: reading")
        # A task that is cancelled before its first step does nothing at all.
        task.add_done_callback(lambda _: self._give(answer, None, _gave_up()))

    async def _answer(self, shared: _OnLoop, call: Call[T], answer: _Answer[T]) -> None:
        task = asyncio.current_task()
        try:
            await self._open(shared)
            self._give(answer, await call(shared.reader), None)
        except BaseException as error:
            self._give(answer, None, _as_failure(error))
            if is_own_cancellation(error, task):
                raise

    def _give(self, answer: _Answer[T], found: T | None, error: BaseException | None) -> None:
        if answer in self._answers:
            self._answers.discard(answer)
            answer.give(found, error)
            self._threads.unpark(answer.given)

    # -- the end

    def closing(self) -> list[Coroutine[Any, Any, None]]:
        """Return what closes the readers: a coroutine for each that may have something open."""
        blocking, opened = self._end()
        closes = [shared.reader.close for shared in opened]
        closes += [partial(self._threads.run, "closing a reader", each.close) for each in blocking]
        return [self._close(each) for each in closes]

    async def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await close()
        except Exception as error:  # noqa: BLE001 - nobody waits for the run any more
            complain(self._loop, "a reader", error)

    def abandon(self) -> None:
        """Let go of all that `closing` was not called for; on any thread, and the loop may be closed already."""
        blocking, opened = self._end()
        for answer in list(self._answers):
            self._give(answer, None, _gave_up())
        for let_go in [*(shared.reader.abandon for shared in opened), *(each.close for each in blocking)]:
            try:
                let_go()
            except Exception as error:  # noqa: BLE001 - the others are to be let go of, too
                complain(self._loop, "a reader", error)
        self._start = _refuse  # it holds the run, which holds this

    def _end(self) -> tuple[list[Reader], list[_OnLoop]]:
        """Return the readers that have something to close, and make no more."""
        with self._lock:
            self._ended = True
            blocking = [each for each in self._readers.values() if each.closes]
            opened = self._opened
            self._readers, self._on_loop, self._opened = {}, {}, []
            return blocking, opened


class _Answer(Generic[T]):
    """What a thread waits for."""

    def __init__(self) -> None:
        self.given = threading.Lock()  # its release never waits, unlike that of a semaphore
        self.given.acquire()
        self._found: T | None = None
        self._error: BaseException | None = None

    def give(self, found: T | None, error: BaseException | None) -> None:
        self._found, self._error = found, error

    def take(self) -> T:
        found, error = self._found, self._error
        self._found = self._error = None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return cast("T", found)


class _OnLoop(Reader):
    """An `AsyncReader` for threads: they wait while the loop reads."""

    def __init__(self, resources: Resources, reader: AsyncReader) -> None:
        self._resources = resources
        self.reader = reader
        self.opening: asyncio.Future[None] | None = None
        """Done when the reader is open; None before anybody has asked for it."""

    def look(self, files: Sequence[File]) -> list[File | Exception]:
        return self._resources.wait(self, lambda reader: reader.look(files))

    def read(self, files: Sequence[File]) -> list[Bytes | Exception]:
        return self._resources.wait(self, lambda reader: reader.read(files))

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[Bytes | Exception]:
        return self._resources.wait(self, lambda reader: reader.read_ranges(file, ranges))

    def read_into(self, files: Sequence[File], into: Sequence[Buffers]) -> list[Exception | None]:
        return self._resources.wait(self, lambda reader: reader.read_into(files, into))


def _refuse(coroutine: Coroutine[Any, Any, None], _: str) -> asyncio.Task[None]:
    coroutine.close()
    raise _gave_up()


def _gave_up() -> ClosedError:
    return ClosedError("the run was stopped while a file was read")


def _as_failure(error: BaseException) -> BaseException:
    """Return what a thread is told: a cancellation there would mean something else."""
    return _gave_up() if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else error
