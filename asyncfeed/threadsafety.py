"""One generator that many threads or many tasks draw from.

These rules hold for both:

- One draw at a time. Each item goes to exactly one thread or task, in the order of the generator.
- An exception in a generator also ends it. Later draws would find a plain end, so they raise the same exception.
- A task that is cancelled during a draw loses no item: the generator goes on, and the next draw gets the item.
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
        source: An iterable. Or an async iterable, such as an async generator: then any number of tasks of one
            event loop may draw from the result.

    Returns:
        A `ThreadSafe` or a `TaskSafe` iterator. Each item goes to exactly one thread or task.

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
    """Decorate a generator function, so that many threads or tasks can draw from each of its generators.

    Each generator is wrapped by `threadsafe`.

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

    The order is that of the source. If a draw raises an exception, every later draw that finds the source at its
    end raises the same exception. If the source draws from itself, it gets a `ValueError`. `close`, `send` and
    `throw` call those of the source, one call at a time, like draws. So `close` waits until the current draw has
    ended. The threads that were waiting for their turn then find the end.
    """

    def __init__(self, source: Iterator[T_co]) -> None:
        self._source: Any = source
        # Reentrant: the thread that draws may come again, from the source or a signal handler. It then gets an
        # error and does not wait for itself.
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
        self._closed = True  # before the lock is taken: threads that wait for it draw nothing more
        self._alone(getattr(self._source, "close", _nothing))

    def _draw(self, *call: Any) -> Any:
        return self._alone(self._call, *call)

    def _alone(self, call: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            if self._busy:
                raise ValueError("generator already executing: its own code must not draw from it or close it")
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
        self._failed.note(None)  # the iterator went on after an exception, so its later end is a plain end
        return item

    def _end(self) -> NoReturn:
        self._failed.check()
        raise StopIteration

    def __repr__(self) -> str:
        return f"threadsafe({self._source!r})"


class TaskSafe(AsyncIterator[T_co], Generic[T_co]):
    """An async iterator that any number of tasks of one event loop may draw from. `threadsafe` makes it.

    The order is that of the source. Tasks get their turns in the order in which they ask. Exceptions are handled
    as by `ThreadSafe`. Each step of the source runs in a task of its own, so if a waiting task is cancelled, no
    item is lost and the source goes on. `aclose`, `asend` and `athrow` call those of the source. `aclose` cancels
    the current step, and the tasks that wait find the end.

    Raises:
        RuntimeError: A second event loop draws from it. Or a step of the source was cancelled: then the
            `CancelledError` is the cause.
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
            for step in left:  # no later draw will raise the exception of a step, so it is raised here
                if not step.cancelled():
                    step.result()

    def _begin(self) -> None:
        import asyncio  # noqa: PLC0415 - `import asyncfeed` must not import it

        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._turn = loop, _Turn(loop)
            # When this object is gone, no task can wait for a step any more.
            weakref.finalize(self, _abandon, loop, self._steps).atexit = False
        elif self._loop is not loop:
            raise RuntimeError(
                "threadsafe: an async generator belongs to the event loop of its first draw, and this is another "
                "loop; draw on one loop, or make a generator for each"
            )
        if asyncio.current_task() in self._steps.waiting:
            raise ValueError("generator already executing: its own code must not draw from it or close it")

    async def _draw(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        self._begin()
        async with self._turn:
            steps = self._steps
            if args:  # a step that a cancelled draw has begun must end first; the next `anext` gets its item
                await steps.all_done()
            if self._closed:
                self._end()
            step = steps.start(call, *args) if args or not steps.waiting else steps.waiting[0]
            await steps.done(step)
            # There is no `await` from here to the return, so a cancellation cannot lose the item.
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
    """A lock for the tasks of one loop. It is given to waiting tasks in the order in which they came.

    It is not an `asyncio.Lock`: that lock wakes no other waiter if the coroutine of the waiter that it has just
    woken is closed.
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
            if not turn.cancel() and not turn.cancelled():  # the turn was given to it already
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
    """The steps of an async generator that were begun and whose items were not delivered, oldest first."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Task[tuple[bool, Any]]] = deque()

    def start(self, call: Callable[..., Awaitable[Any]], *args: Any) -> asyncio.Task[tuple[bool, Any]]:
        import asyncio  # noqa: PLC0415 - see `_begin`

        from asyncfeed.tasks import start_task  # noqa: PLC0415 - it imports asyncio

        loop = asyncio.get_running_loop()
        step = start_task(loop, _step(call, *args), loop=loop, name="asyncfeed-threadsafe")
        self.waiting.append(step)  # before the task runs: `_begin` sees by it that the source draws from itself
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
    except BaseException as error:  # a bare CancelledError would look like a cancellation of the drawing task
        raise RuntimeError("threadsafe: a step of the async generator was cancelled") from error


def _abandon(loop: asyncio.AbstractEventLoop, steps: _Steps) -> None:
    with suppress(RuntimeError):  # the loop has closed, and has cancelled all tasks
        loop.call_soon_threadsafe(steps.cancel)


def _nothing() -> None:
    """Do nothing: the source has no `close`."""
