"""One generator drawn by many threads, or by many tasks.

What holds here, for both:

- One draw at a time. Every item goes to exactly one that draws, in the order of the generator.
- An exception ends a generator for all: whoever would see a plain end because of it gets that exception instead.
- A task that is cancelled while it waits cancels only itself: the generator goes on, and the next draw gets the
  item.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Self, TypeVar, cast, overload

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

T = TypeVar("T")
P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


@overload
def threadsafe(source: Iterable[T]) -> ThreadSafe[T]: ...
@overload
def threadsafe(source: AsyncIterable[T]) -> TaskSafe[T]: ...
def threadsafe(source: Any) -> Any:
    """Return an iterator over `source` that any number of threads may draw from.

    Args:
        source: An iterable; or an async generator or iterator, which any number of tasks of one event loop may
            then draw from.

    Returns:
        A `ThreadSafe` or a `TaskSafe` iterator. Each item goes to one of those that draw.

    Example:
        >>> import asyncfeed as af
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> shared = af.threadsafe(n * n for n in range(5))
        >>> with ThreadPoolExecutor(3) as pool:
        ...     sorted(pool.map(lambda _: next(shared), range(5)))
        [0, 1, 4, 9, 16]
    """
    if isinstance(source, ThreadSafe | TaskSafe):
        return source
    if isinstance(source, Iterable):
        return ThreadSafe(iter(source))
    if isinstance(source, AsyncIterable):
        return TaskSafe(aiter(source))
    raise TypeError(f"threadsafe: expected a generator or an iterator, not {source!r}")


@overload
def threadsafe_generator(function: Callable[P, Iterable[T]]) -> Callable[P, ThreadSafe[T]]: ...
@overload
def threadsafe_generator(function: Callable[P, AsyncIterable[T]]) -> Callable[P, TaskSafe[T]]: ...
def threadsafe_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a generator function so that what it returns may be shared, as by `threadsafe`.

    Args:
        function: A generator function, sync or async.

    Example:
        >>> import asyncfeed as af
        >>> @af.threadsafe_generator
        ... def count(n):
        ...     yield from range(n)
        >>> list(count(3))
        [0, 1, 2]
    """

    @wraps(function)
    def shared(*args: Any, **kwargs: Any) -> Any:
        return threadsafe(function(*args, **kwargs))

    return shared


class _Failed:
    """The exception that has ended a generator; None if none has."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None

    def note(self, error: BaseException | None) -> None:
        self._error = error
        self._trace = None if error is None else error.__traceback__

    def check(self) -> None:
        """Raise the exception again, always from the same point."""
        if self._error is not None:
            raise self._error.with_traceback(self._trace)


class ThreadSafe(Iterator[T_co], Generic[T_co]):
    """An iterator that any number of threads may draw from. `threadsafe` makes it.

    Order: that of the source. Errors: an exception goes to the thread whose draw raised it, and to every later
    draw that would find the source at its end because of it. A source that draws from itself gets a
    `ValueError`. `close`, `send` and `throw` are the source's own, one at a time like all draws: `close` waits
    for a draw that is under way, and the threads that wait for their turn then find the end.
    """

    def __init__(self, source: Iterator[T_co]) -> None:
        self._source: Any = source
        # Re-entrant, so that the same thread coming again (the source drawing from itself, a signal's handler)
        # is told so and does not wait for itself.
        self._lock = threading.RLock()
        self._busy = False
        self._closed = False
        self._failed = _Failed()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> T_co:
        """Return the next item. No other thread gets it."""
        return cast("T_co", self._draw(self._source.__next__))

    def send(self, value: Any) -> T_co:
        """Send a value into the generator. Return the item that it yields then."""
        return cast("T_co", self._draw(self._source.send, value))

    def throw(self, *error: Any) -> T_co:
        """Raise an exception in the generator. Return the item that it yields then."""
        return cast("T_co", self._draw(self._source.throw, *error))

    def close(self) -> None:
        """Close the source, if it can be closed. Later draws find the end."""
        self._closed = True  # before its turn comes: those who wait with it draw nothing more
        self._alone(getattr(self._source, "close", _nothing))

    def _draw(self, *call: Any) -> Any:
        return self._alone(self._call, *call)

    def _alone(self, call: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            if self._busy:
                raise ValueError("generator already executing: what it runs may not draw from it or close it")
            try:
                self._busy = True
                return call(*args)
            finally:
                self._busy = False

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        if self._closed:
            self._end()
        try:
            item = call(*args)
        except StopIteration:
            self._failed.check()
            raise
        except BaseException as error:
            self._failed.note(error)
            raise
        self._failed.note(None)  # an iterator that goes on after an exception will end by itself
        return item

    def _end(self) -> NoReturn:
        self._failed.check()
        raise StopIteration

    def __repr__(self) -> str:
        return f"threadsafe({self._source!r})"


class TaskSafe(AsyncIterator[T_co], Generic[T_co]):
    """An async iterator that any number of tasks of one event loop draw from; made by `threadsafe`.

    Order: that of the source; tasks get their turns in the order they ask. Errors: as for `ThreadSafe`. Each step
    of the source runs in a task of its own, so cancelling one that waits loses no item and ends nothing.
    `aclose`, `asend` and `athrow` are the source's own; `aclose` cancels the step that is under way, and those
    who wait find the end.

    Raises:
        RuntimeError: drawn from a second event loop; or the source's step was cancelled, which is the cause.
    """

    def __init__(self, source: AsyncIterator[T_co]) -> None:
        self._source: Any = source
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn: _Turn
        self._steps = _Steps()
        self._closed = False
        self._failed = _Failed()

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> T_co:
        """Return the next item. No other task gets it. Cancelling the wait loses no item."""
        return cast("T_co", await self._draw(self._source.__anext__))

    async def asend(self, value: Any) -> T_co:
        """Send a value into the generator. Return the item that it yields then."""
        return cast("T_co", await self._draw(self._source.asend, value))

    async def athrow(self, *error: Any) -> T_co:
        """Raise an exception in the generator. Return the item that it yields then."""
        return cast("T_co", await self._draw(self._source.athrow, *error))

    async def aclose(self) -> None:
        """Close the source, if it can be closed. Later draws find the end."""
        self._begin()
        self._closed = True
        self._steps.cancel()
        async with self._turn:
            left = await self._steps.all_done()
            self._steps.waiting.clear()
            if (aclose := getattr(self._source, "aclose", None)) is not None:
                await aclose()
            for step in left:  # nobody draws any more who could be told
                if not step.cancelled():
                    step.result()

    def _begin(self) -> None:
        import asyncio  # noqa: PLC0415 - `import asyncfeed` does without

        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._turn = loop, _Turn(loop)
            # A step that nobody waits for any more must not outlive what it is for.
            weakref.finalize(self, _abandon, loop, self._steps).atexit = False
        elif self._loop is not loop:
            raise RuntimeError("threadsafe: an async generator is drawn from one event loop, and this is another")
        if asyncio.current_task() in self._steps.waiting:
            raise ValueError("generator already executing: what it runs may not draw from it or close it")

    async def _draw(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        self._begin()
        async with self._turn:
            steps = self._steps
            if args:  # what was begun for a draw that was cancelled is for the next `anext`
                await steps.all_done()
            if self._closed:
                self._end()
            step = steps.start(call, *args) if args or not steps.waiting else steps.waiting[0]
            await steps.done(step)
            # Nothing waits from here on: the item is taken in the step that returns it.
            steps.waiting.remove(step)
            if self._closed and step.cancelled():
                self._end()
            try:
                found, item = _result(step)
            except BaseException as error:
                self._failed.note(error)
                raise
            if self._closed or not found:
                self._end()
            self._failed.note(None)
            return item

    def _end(self) -> NoReturn:
        self._failed.check()
        raise StopAsyncIteration

    def __repr__(self) -> str:
        return f"threadsafe({self._source!r})"


class _Turn:
    """A lock of one loop's tasks, in the order in which they come.

    `asyncio.Lock` forgets its other waiters if the coroutine of the one that it has just woken is closed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if not self._taken:
            self._taken = True
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:  # cancelled, or the coroutine is closed
            if not turn.cancel() and not turn.cancelled():  # it had got its turn
                with suppress(RuntimeError):  # the loop has closed
                    self._loop.call_soon_threadsafe(self._pass_on)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the next task that still waits for it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class _Steps:
    """The steps of an async generator that were begun and whose items nobody has got, oldest first."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Task[tuple[bool, Any]]] = deque()

    def start(self, call: Callable[..., Awaitable[Any]], *args: Any) -> asyncio.Task[tuple[bool, Any]]:
        import asyncio  # noqa: PLC0415 - see `_begin`

        from asyncfeed.tasks import start_task  # noqa: PLC0415 - it imports asyncio

        loop = asyncio.get_running_loop()
        step = start_task(loop, _step(call, *args), loop=loop, name="asyncfeed-threadsafe")
        self.waiting.append(step)  # before its first step, which looks whether the source draws from itself
        return step

    async def done(self, *steps: asyncio.Task[tuple[bool, Any]]) -> None:
        """Wait for the steps. Cancelling the wait does not cancel them."""
        import asyncio  # noqa: PLC0415 - see `_begin`

        await asyncio.wait(steps)

    async def all_done(self) -> list[asyncio.Task[tuple[bool, Any]]]:
        """Wait for all steps and return them."""
        steps = list(self.waiting)
        if steps:
            await self.done(*steps)
        return steps

    def cancel(self) -> None:
        for step in self.waiting:
            step.cancel()


async def _step(call: Callable[..., Awaitable[Any]], *args: Any) -> tuple[bool, Any]:
    try:
        return True, await call(*args)
    except StopAsyncIteration:
        return False, None


def _result(step: asyncio.Task[tuple[bool, Any]]) -> tuple[bool, Any]:
    if not step.cancelled():
        return step.result()
    try:
        return step.result()
    except BaseException as error:  # as it is, whoever draws would seem to have been cancelled
        raise RuntimeError("threadsafe: a step of the async generator was cancelled") from error


def _abandon(loop: asyncio.AbstractEventLoop, steps: _Steps) -> None:
    with suppress(RuntimeError):  # the loop has closed, and has cancelled everything
        loop.call_soon_threadsafe(steps.cancel)


def _nothing() -> None:
    """Do nothing: this source cannot be closed."""
