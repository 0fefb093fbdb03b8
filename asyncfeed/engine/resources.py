"""The readers of one run, one for each store.

A reader is made when a file of its store is first read. All stages of the run share it, and it is closed when the
run ends. An `AsyncReader` is opened on the run's loop, in a task of the run. A thread that reads with it waits for
such a task.

Invariants:

* `AsyncReader.open` is called at most once for each store. If it was called, `close` or `abandon` is called once.
* A thread that waits for a reader always gets an answer. If the run ends, the task that would answer is cancelled,
  and its end answers. If the loop is closed before the run has ended, `abandon` answers.
* `closing` is called when all tasks of the run have ended, or the grace is over. So no reader is closed while it
  is used, unless the grace is over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar, cast

from asyncfeed.attempts.retry import Wanted
from asyncfeed.engine.closing import complain
from asyncfeed.engine.provenance import is_own_cancellation
from asyncfeed.engine.threads import Threads
from asyncfeed.errors import ClosedError
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import AsyncReader, Buffers, Range, Reader, Store
from asyncfeed.reading.scope import STORE_DECIDES, new_reader
from asyncfeed.reading.threaded import ThreadedReader
from asyncfeed.stats import SlowPaths

T = TypeVar("T")

Key = tuple[Store | None, Wanted]
Start = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
Call = Callable[[AsyncReader], Coroutine[Any, Any, T]]


class Resources:
    """The `Scope` of a run."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        start: Start,
        again: SlowPaths,
        charge: Callable[[int], None],
    ) -> None:
        self._again = again
        """Counts what readers read again."""
        self.charge = charge
        """Counts bytes for the memory limit."""
        self._loop = loop
        self._threads = threads
        self._start = start
        self._lock = threading.RLock()
        """Reentrant, because the garbage collector may call `abandon` on a thread that holds the lock."""
        self._readers: dict[Key, Reader] = {}
        """For calls on threads."""
        self._on_loop: dict[Key, AsyncReader] = {}
        """For calls on the loop."""
        self._opened: list[_OnLoop] = []
        """The readers whose `open` was called. Only the loop changes this list."""
        self._answers: set[_Answer[Any]] = set()
        """The answers that threads wait for."""
        self._ended = False

    def reader(self, store: Store | None, wanted: Wanted = STORE_DECIDES) -> Reader:
        """Return the reader of a store, for calls on a thread."""
        reader = self._readers.get((store, wanted))
        return self._make(store, wanted)[0] if reader is None else reader

    async def async_reader(self, store: Store | None, wanted: Wanted = STORE_DECIDES) -> AsyncReader:
        """Return the reader of a store, for calls on the loop. It is open."""
        reader, on_loop = self._make(store, wanted)
        if isinstance(reader, _OnLoop):
            await self._open(reader)
        return on_loop

    def _make(self, store: Store | None, wanted: Wanted) -> tuple[Reader, AsyncReader]:
        key = store, wanted
        with self._lock:
            if key not in self._readers:
                if self._ended:
                    raise _gave_up()
                made = new_reader(store, wanted, self._again)
                if isinstance(made, AsyncReader):
                    self._on_loop[key], self._readers[key] = made, _OnLoop(self, made)
                else:
                    self._on_loop[key], self._readers[key] = ThreadedReader(made, self.submit), made
            return self._readers[key], self._on_loop[key]

    def submit(self, fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Start a call on a thread of the run, and return its future; on the loop."""
        return self._threads.submit(getattr(fn, "__name__", "a read"), fn, *args)

    async def _open(self, shared: _OnLoop) -> None:
        """Wait until a reader is open. The first call starts the task that opens it."""
        if shared.opening is None:
            shared.opening = self._loop.create_future()
            self._start(self._opening(shared, shared.opening), "asyncfeed: opening a store")
        async with shared.order:
            if not shared.opening.done():
                # `wait`, because a cancelled caller must not cancel the shared future.
                await asyncio.wait([shared.opening])
        shared.opening.result()

    async def _opening(self, shared: _OnLoop, opening: asyncio.Future[None]) -> None:
        task = asyncio.current_task()
        self._opened.append(shared)
        try:
            await shared.reader.open()
        except BaseException as error:
            opening.set_exception(_as_failure(error))
            opening.exception()  # otherwise asyncio logs that the exception was never retrieved
            if is_own_cancellation(error, task):
                raise
        else:
            opening.set_result(None)

    def charge_later(self, nbytes: int) -> None:
        """Count bytes for the memory limit, on the loop. Any thread may call this."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.charge, nbytes)

    # -- threads that wait for the loop

    def wait(self, shared: _OnLoop, call: Call[T]) -> T:
        """Call a reader on the loop, and return its result. A thread calls this, and blocks."""
        answer: _Answer[T] = _Answer()
        with self._lock:
            if self._ended:
                raise _gave_up()
            self._answers.add(answer)
        try:
            self._loop.call_soon_threadsafe(self._ask, shared, call, answer)
        except RuntimeError:  # the loop is closed
            self._give(answer, None, _gave_up())
        self._threads.park(answer.given)
        return answer.take()

    def _ask(self, shared: _OnLoop, call: Call[T], answer: _Answer[T]) -> None:
        if answer not in self._answers:
            return  # the run has ended, and `abandon` has answered
        task = self._start(self._answer(shared, call, answer), "asyncfeed: reading")
        # A task that is cancelled before its first step runs none of its code, so its end must answer.
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
        """Return a coroutine for each reader that must be closed."""
        blocking, opened = self._end()
        closes = [shared.reader.close for shared in opened]
        closes += [partial(self._threads.run, "closing a reader", each.close) for each in blocking]
        return [self._close(each) for each in closes]

    async def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await close()
        except Exception as error:  # noqa: BLE001 - no consumer waits for the run any more
            complain(self._loop, "a reader", error)

    def abandon(self) -> None:
        """Release the readers that `closing` did not take. Any thread may call this; the loop may be closed."""
        blocking, opened = self._end()
        for answer in list(self._answers):
            self._give(answer, None, _gave_up())
        for let_go in [*(shared.reader.abandon for shared in opened), *(each.close for each in blocking)]:
            try:
                let_go()
            except Exception as error:  # noqa: BLE001 - the other readers must be released, too
                complain(self._loop, "a reader", error)
        self._start = _refuse  # `_start` refers to the run, and the run to this object: break the cycle

    def _end(self) -> tuple[list[Reader], list[_OnLoop]]:
        """Return the readers that must be closed, and make no more readers."""
        with self._lock:
            self._ended = True
            blocking = [each for each in self._readers.values() if each.closes]
            opened = self._opened
            self._readers, self._on_loop, self._opened = {}, {}, []
            return blocking, opened


class _Answer(Generic[T]):
    """The result of a reader on the loop, for a thread that waits for it."""

    def __init__(self) -> None:
        self.given = threading.Lock()  # unlike a semaphore, it can be released without waiting
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
    """A `Reader` for threads in front of an `AsyncReader`. The thread blocks while the loop reads."""

    def __init__(self, resources: Resources, reader: AsyncReader) -> None:
        self._resources = resources
        self.reader = reader
        self.opening: asyncio.Future[None] | None = None
        """Done when the reader is open. None before the first use of the reader."""
        self.order = asyncio.Lock()
        """Calls that wait until the reader is open go on one after the other, and none overtakes them."""

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
    """Return the error for a waiting thread. A cancellation becomes a `ClosedError`: a thread is no task."""
    return _gave_up() if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else error
