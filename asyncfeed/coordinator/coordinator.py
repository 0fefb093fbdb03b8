"""Coordinator: threads, tasks and feeds stop together, with the contract of TensorFlow's coordinator.

It differs if TensorFlow's behaviour is a fault: `docs/tensorflow.md` has the table. These rules hold:

- **Asking takes no lock.** A signal handler or the garbage collector may call `request_stop` on a thread that is
  inside any method of the same coordinator. The state is a flag, and lists and dicts that are changed in one step.
- **No polling.** A waiter registers a callback and then reads the flag. `request_stop` sets the flag and then
  takes the callbacks. So at least one of the two sees the other, and each callback is taken once.
- **No report is lost.** `join` raises the first exception, also if it came after a clean stop. Later exceptions
  are in `exceptions` and noted on the first one. After a stop was asked for, the exceptions that a stop causes
  (`ClosedError` of a feed, a cancellation) are no errors.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

from asyncfeed.coordinator.callbacks import Callbacks, Gate, on_loop, running_loop, settle
from asyncfeed.coordinator.joined import Joined, JoinedTask, JoinedThread, watch
from asyncfeed.errors import ClosedError, note

log = logging.getLogger("asyncfeed")

GRACE = 120.0
"""Seconds that `join` waits after a stop was asked for. It is TensorFlow's default."""
MAX_EXCEPTIONS = 100
"""Number of exceptions that are kept. Each one holds its frames."""

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


class Coordinator:
    """Coordinates threads, asyncio tasks and feeds: any of them can stop all, and `join` raises the first error.

    When a stop is asked for, threads see it in `should_stop()`, and `join` waits for them. Tasks given to
    `register_task` are cancelled. Feeds opened with `open(coord=...)` stop. `with` and `async with` ask for a stop
    at the end of the block and wait for everything registered. Then they raise the first error: one that was
    reported, or that of the block.

    Args:
        clean_stop_exception_types: Exceptions that ask for a stop and are no error. By default these are the ends
            of data: `StopIteration`, `StopAsyncIteration`, `OutOfRangeError` of TensorFlow and of asyncfeed's
            queues. A cancellation never counts as an error.
        stop_grace_period_secs: Seconds that the end of a `with` block waits for registered threads and tasks.

    Example:
        >>> import asyncfeed as af, threading
        >>> coord = af.Coordinator()
        >>> def work():
        ...     with coord.stop_on_exception():
        ...         raise ValueError("a bad sample")
        >>> thread = threading.Thread(target=work)
        >>> thread.start()
        >>> coord.join([thread])
        Traceback (most recent call last):
        ValueError: a bad sample
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Return a coordinator that is also an instance of TensorFlow's class, if TensorFlow is imported.

        `tf.compat.v1.train.LooperThread` checks that with `isinstance`. Every method is asyncfeed's.
        """
        made: Self = object.__new__(_also_of_tensorflow(cls))
        return made

    def __init__(
        self,
        clean_stop_exception_types: Iterable[type[BaseException]] | None = None,
        *,
        stop_grace_period_secs: float = GRACE,
    ) -> None:
        self._by_default = clean_stop_exception_types is None
        self._clean: tuple[type[BaseException], ...] = (StopIteration, StopAsyncIteration)
        if clean_stop_exception_types is not None:
            self._clean = tuple(clean_stop_exception_types)
        self._grace = stop_grace_period_secs
        self._stopped = False
        self._joined = False
        self._errors: list[tuple[BaseException, TracebackType | None]] = []
        self._callbacks = Callbacks()
        self._threads: dict[threading.Thread, JoinedThread] = {}
        self._tasks: dict[asyncio.Task[Any], JoinedTask] = {}

    # -- asking for a stop

    def should_stop(self) -> bool:
        """Return whether a stop was asked for; costs as much as reading an attribute."""
        return self._stopped

    def request_stop(self, ex: BaseException | ExcInfo | None = None) -> None:
        """Ask everything to stop, from any thread, task, signal handler or finalizer, any number of times.

        Args:
            ex: What to report: an exception, or what `sys.exc_info()` returned.

        Raises:
            BaseException: After `join`, `ex` itself, as in TensorFlow, because `join` cannot raise it any more.
        """
        try:
            error, trace = _unpack(ex)
        except TypeError:
            self._request(None, None)  # stop in spite of the wrong argument: the caller has met an error
            raise
        if self._request(error, trace) and self._joined:
            assert error is not None
            raise error.with_traceback(trace)

    def _request(self, error: BaseException | None, trace: TracebackType | None) -> bool:
        """Stop. Return whether the exception counts as an error."""
        counts = error is not None and not self._is_clean(error)
        if error is not None and counts:
            self._record(error, trace)
        self._stopped = True
        self._call()
        return counts

    def _is_clean(self, error: BaseException) -> bool:
        if isinstance(error, (*self._clean, asyncio.CancelledError, GeneratorExit)):
            return True
        if self._by_default and isinstance(error, _known("OutOfRangeError")):
            return True
        return self._stopped and isinstance(error, (ClosedError, *_known("CancelledError")))

    def _record(self, error: BaseException, trace: TracebackType | None) -> None:
        errors = self._errors
        if len(errors) == MAX_EXCEPTIONS or any(error is known for known, _ in errors):
            return
        errors.append((error, trace))
        first = errors[0][0]
        if first is not error:
            text = "".join(traceback.format_exception_only(error)).strip()
            note(first, f"asyncfeed: later another exception was reported to the coordinator: {text}")

    def _call(self) -> None:
        raised = self._callbacks.call()
        for error in raised:
            self._record(error, error.__traceback__)
        for error in raised:
            if not isinstance(error, Exception):
                raise error

    @contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Ask for a stop if an exception leaves the block, report the exception, and do not raise it.

        An exception that is no `Exception` is raised. `KeyboardInterrupt` and `SystemExit` also ask for a stop. A
        cancellation and `GeneratorExit` do not.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - `join` raises it
            self.request_stop(error)
        except (KeyboardInterrupt, SystemExit) as error:
            self._request(error, error.__traceback__)
            raise

    def clear_stop(self) -> None:
        """Forget the stop and the reported exceptions, for a new start. What has stopped stays stopped."""
        self._joined = False
        self._errors = []
        self._stopped = False

    @property
    def exceptions(self) -> tuple[BaseException, ...]:
        """The exceptions that were reported, in order; at most a hundred."""
        return tuple(error for error, _ in self._errors)

    def raise_requested_exception(self) -> None:
        """Raise the first exception that was reported, if any was."""
        errors = self._errors
        if errors:
            error, trace = errors[0]
            try:
                # It is raised from the same point each time, so its traceback does not grow with every call.
                raise error.with_traceback(trace)
            finally:
                del errors, error, trace, self  # else this frame and the exception would hold each other

    # -- hearing of a stop

    def on_stop(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` once when a stop is asked for, on the thread that asks.

        Args:
            callback: A short function. If a signal handler may ask for a stop, it must take no lock. It is called
                at once if a stop was asked for already. An exception that it raises is reported, and the other
                callbacks are still called.

        Returns:
            A function that removes the callback.
        """
        remove = self._callbacks.add(callback)
        if self._stopped:
            self._call()
        return remove

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait on this thread, at most `timeout` seconds. Return whether a stop was asked for."""
        if self._stopped:
            return True
        gate = Gate()
        remove = self.on_stop(gate.open)
        try:
            return gate.wait(timeout) or self._stopped
        finally:
            remove()

    async def wait(self) -> None:
        """Wait, on any event loop, until a stop is asked for."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        remove = self.on_stop(partial(on_loop, future.get_loop(), settle, future))
        try:
            await future
        finally:
            remove()

    # -- what stops together

    def register_thread(self, thread: threading.Thread) -> None:
        """Let `join` wait for `thread`, too. The thread need not have started yet."""
        for other in list(self._threads):
            if other.ident is not None and not other.is_alive():
                self._threads.pop(other, None)
        self._threads[thread] = JoinedThread(thread)

    def register_task(self, task: asyncio.Task[Any], *, cancel: bool = True) -> None:
        """Cancel this task at a stop, stop if this task fails, and let `join` wait for it.

        Args:
            task: A task of the running event loop.
            cancel: False for a task that calls `should_stop()` itself.

        Raises:
            RuntimeError: The task belongs to another event loop.
        """
        loop = task.get_loop()
        if running_loop() is not loop:
            raise RuntimeError("register_task: call it on the event loop of the task")
        self._tasks[task] = member = JoinedTask(task)
        remove = self.on_stop(partial(on_loop, loop, task.cancel)) if cancel else None

        def ended(_: object) -> None:
            if remove is not None:
                remove()
            self._tasks.pop(task, None)
            try:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._request(error, error.__traceback__)
            finally:
                member.ended()

        task.add_done_callback(ended)

    # -- waiting for the end

    @property
    def joined(self) -> bool:
        """Whether `join` has returned or raised."""
        return self._joined

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = GRACE,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until these threads and all registered ones have ended, then raise the first reported exception.

        Args:
            threads: The threads. A thread that is registered after the call is left to the next `join`.
            stop_grace_period_secs: Seconds to wait after a stop was asked for; a negative number does not wait.
            ignore_live_threads: True logs what still runs, and does not raise.

        Raises:
            RuntimeError: A thread or task still runs, and no exception was reported. The message has their stacks.
            BaseException: The first exception that was reported.
        """
        members = self._members(threads or ())
        loop = running_loop()
        others = [m for m in members if m.alive() and not m.current()]
        if loop is not None and any(isinstance(m, JoinedTask) and m.on(loop) for m in others):
            raise RuntimeError("join: tasks of this event loop could not end: write `await coord.join_async()`")
        if others and not self._stopped:
            gate = Gate()
            remove = self.on_stop(gate.open)
            try:
                watch(others, gate.open)
                gate.wait()
            finally:
                remove()
        deadline = monotonic() + _bounded(stop_grace_period_secs)
        for member in others:
            member.wait(max(0.0, deadline - monotonic()))
        self._conclude(members, stop_grace_period_secs, ignore_live_threads)

    async def join_async(
        self,
        threads: Iterable[threading.Thread | asyncio.Task[Any]] | None = None,
        stop_grace_period_secs: float = GRACE,
        ignore_live_threads: bool = False,
    ) -> None:
        """Do what `join` does, without blocking the event loop.

        `threads` may hold tasks of this loop, too. `stop_grace_period_secs` and `ignore_live_threads` are as for
        `join`.
        """
        loop = asyncio.get_running_loop()
        members = self._members(threads or ())
        ended: asyncio.Future[None] = loop.create_future()
        stopped: asyncio.Future[None] = loop.create_future()
        remove = self.on_stop(partial(on_loop, loop, settle, stopped))
        alive = [m for m in members if m.alive() and not m.current()]
        tasks = [m.task for m in alive if isinstance(m, JoinedTask) and m.on(loop)]
        elsewhere = [m for m in alive if isinstance(m, JoinedThread) or not m.on(loop)]
        left = len(tasks) + bool(elsewhere)

        def one_ended(_: object = None) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                settle(ended)

        try:
            for task in tasks:
                task.add_done_callback(one_ended)
            if elsewhere:
                watch(elsewhere, partial(on_loop, loop, one_ended))
            if left:
                await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait([ended], timeout=_bounded(stop_grace_period_secs))
        finally:
            remove()
            for task in tasks:
                task.remove_done_callback(one_ended)
        self._conclude(members, stop_grace_period_secs, ignore_live_threads)

    def _members(self, more: Iterable[threading.Thread | asyncio.Task[Any]]) -> list[Joined]:
        threads, tasks = self._threads.copy(), self._tasks.copy()
        members: list[Joined] = [*threads.values(), *tasks.values()]
        for each in dict.fromkeys(more):
            if isinstance(each, threading.Thread):
                if each not in threads:
                    members.append(JoinedThread(each))
            elif each not in tasks:
                if each.get_loop() is not running_loop():
                    raise RuntimeError("join: a task of another event loop is registered there: register_task")
                members.append(member := JoinedTask(each))
                each.add_done_callback(member.ended)
        return members

    def _conclude(self, members: list[Joined], grace: float, ignore: bool) -> None:
        self._joined = True
        alive = [member for member in members if member.alive()]
        for member in members:
            if isinstance(member, JoinedThread):
                self._threads.pop(member.thread, None)
        self.raise_requested_exception()
        if alive and ignore:
            log.info("the coordinator no longer waits for what still runs: %s", ", ".join(m.name for m in alive))
        elif alive:
            after = f"{grace:g} s after the stop was asked for" if self._stopped else "as `join` was called in it"
            where = "\n".join(f"{member.name}, at:\n{member.where()}" for member in alive)
            raise RuntimeError(f"{len(alive)} threads or tasks of the coordinator still run, {after}:\n{where}")

    def __enter__(self) -> Self:
        """Return the coordinator."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Ask for a stop, join what is registered, and raise the first exception that was reported."""
        self._request(error, trace)
        try:
            self.join(stop_grace_period_secs=self._grace)
        except BaseException as raised:
            if _outranks(error, raised):
                return False
            raise
        return isinstance(error, Exception)

    async def __aenter__(self) -> Self:
        """Return the coordinator."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Ask for a stop, join what is registered, and raise the first exception that was reported."""
        self._request(error, trace)
        try:
            await self.join_async(stop_grace_period_secs=self._grace)
        except BaseException as raised:
            if _outranks(error, raised):
                return False
            raise
        return isinstance(error, Exception)


def _also_of_tensorflow(cls: type[Any]) -> type[Any]:
    """Return a class with TensorFlow's coordinator as its last base; the class itself without TensorFlow."""
    theirs = getattr(getattr(sys.modules.get("tensorflow"), "train", None), "Coordinator", None)
    if not isinstance(theirs, type) or issubclass(cls, theirs):
        return cls
    return _both(cls, theirs)  # type: ignore[arg-type] # a class is hashable


@lru_cache(maxsize=16)
def _both(*bases: type[Any]) -> type[Any]:
    ours = bases[0]
    return type(ours.__name__, bases, {"__module__": ours.__module__, "__doc__": ours.__doc__})


def _outranks(error: BaseException | None, raised: BaseException) -> bool:
    """Return whether to raise the exception of the block, as always for a cancellation and Ctrl-C."""
    return error is raised or (
        error is not None and not isinstance(error, Exception) and isinstance(raised, Exception)
    )


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), threading.TIMEOUT_MAX)


def _unpack(ex: BaseException | ExcInfo | None) -> tuple[BaseException | None, TracebackType | None]:
    if isinstance(ex, BaseException):
        return ex, ex.__traceback__
    if ex is None or (isinstance(ex, tuple) and len(ex) == 3 and ex[1] is None):
        return None, None
    if isinstance(ex, tuple) and len(ex) == 3 and isinstance(ex[1], BaseException):
        return ex[1], ex[2]
    raise TypeError(f"request_stop: expected an exception or sys.exc_info(), not {ex!r}")


def _known(name: str) -> tuple[type[BaseException], ...]:
    """Return the exception classes of this name from the modules that the program has imported itself."""
    modules = (getattr(sys.modules.get("tensorflow"), "errors", None), sys.modules.get("asyncfeed.queues"))
    return tuple(found for module in modules if isinstance(found := getattr(module, name, None), type))
