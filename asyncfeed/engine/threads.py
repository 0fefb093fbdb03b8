"""The thread pool of a run, for calls that would block the loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import Context
from queue import SimpleQueue
from time import perf_counter
from typing import Any, TypeVar
from weakref import ref

from asyncfeed.engine.limits.resident import resident

R = TypeVar("R")

SHUTDOWN = "interpreter shutdown"
"""What Python says, from 3.12 on, of a thread that cannot be started because the program has ended. The functions
registered with `atexit`, which stop the runs, are called after that."""


class CapacityLimiter:
    """Lets at most `width` threads work on its jobs at a time, and queues the other jobs.

    A thread that has finished a job takes the next one from this queue, without a turn of the loop in between.
    """

    def __init__(self) -> None:
        self.width = 1
        self.busy = 0
        """Number of threads that work on these jobs, or have been given one. Only the loop changes it."""
        self.waiting: deque[_Job] = deque()
        self.computed = 0.0
        """Seconds of processor time that its jobs took, as far as they were measured."""


_Job = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]", str, CapacityLimiter | None]
_Done = tuple["asyncio.Future[Any]", Any, BaseException | None, CapacityLimiter | None, bool, float]


class Threads:
    """The daemon threads of one run. They are started when needed, and reused.

    The standard pool joins its threads when the interpreter exits, so one read that hangs would keep the process
    alive for ever. These threads do not. `idle` waits for the busy threads, and `stuck` describes them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, context: Context | None = None) -> None:
        self._loop = loop
        self._name = name
        self._context = Context() if context is None else context  # not `or`: an empty context is false
        """Each thread begins with a copy of this context. A job gets no copy of its own."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._busy: dict[threading.Thread, str] = {}
        self._threads: list[threading.Thread] = []
        self._ending: list[ref[threading.Thread]] = []
        """The threads that were told to end. A client may keep a context, and that leads here, but not to them."""
        self._pending = 0
        """Number of jobs that a thread has, or that were handed out. Jobs that wait in a limiter do not count."""
        self._parked: set[threading.Semaphore | threading.Lock] = set()
        self._done: deque[_Done] = deque()
        self._reporting = False
        self._all_idle: asyncio.Future[None] | None = None
        self._closed = False
        self.lag = 0.0
        """How long the loop takes to hear of a job that is done, in seconds. It must get the GIL for that."""
        self.ending = False
        """Whether the run is ending. A job of several items may then leave the rest out."""

    async def run(self, what: str, fn: Callable[..., R], *args: Any, limiter: CapacityLimiter | None = None) -> R:
        """Call `fn(*args)` on a thread and return its result. `what` names the job in a report.

        A cancellation ends the wait, but not a call that has begun. The result of that call is dropped.
        """
        result: R = await self.submit(what, fn, *args, limiter=limiter)
        return result

    def submit(
        self, what: str, fn: Callable[..., Any], *args: Any, limiter: CapacityLimiter | None = None
    ) -> asyncio.Future[Any]:
        """Call `fn(*args)` on a thread and return its future. With a `limiter`, the call waits for a free place.

        Raises `RuntimeError` if the run has ended, the interpreter is ending, or the system has no more threads.
        """
        if self._closed:
            raise RuntimeError("the run has ended: its threads take no more jobs")
        future: asyncio.Future[Any] = self._loop.create_future()
        job = fn, args, future, what, limiter
        if limiter is None:
            self._hand_out(job)
        else:
            limiter.waiting.append(job)
            self._fill(limiter)
        return future

    def _fill(self, limiter: CapacityLimiter) -> None:
        while limiter.busy < limiter.width and (job := _next(limiter)) is not None:
            try:
                self._hand_out(job)
            except RuntimeError as error:  # the system has no more threads, or the interpreter is ending
                if SHUTDOWN not in str(error):
                    job[2].set_exception(error)
                # Else the run is stopped at once: no task waits for the result, and no user wants to hear of it.
                return
            limiter.busy += 1

    def _hand_out(self, job: _Job) -> None:
        if self._pending >= len(self._threads):
            name = f"{self._name}-worker-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._pending += 1
        self._jobs.put(job)

    def _serve(self) -> None:
        self._context.copy().run(self._work)

    def _work(self) -> None:
        me = threading.current_thread()
        following: _Job | None = None
        while (job := following or self._jobs.get()) is not None:
            fn, args, future, what, limiter = job
            self._busy[me] = what
            result, error = None, None
            try:
                result = fn(*args)
            except BaseException as raised:  # noqa: BLE001 - the future raises it
                error = raised
            del self._busy[me]
            # A job queued after this check is safe: the loop has not processed this report yet, so it will look
            # again.
            following = None if limiter is None else _next(limiter)
            self._done.append((future, result, error, limiter, following is not None, perf_counter()))
            del job, fn, args, future, result, error, limiter  # an idle thread must not keep the last item alive
            if following is None:
                resident.look()
            # This thread appends the report and then reads the flag. The loop clears the flag and then empties the
            # queue. So either this thread wakes the loop, or the loop has yet to look at the queue. Python without
            # the GIL keeps this order, too, because `append` and `rotate` lock the deque. A lock of our own could
            # be held while the garbage collector calls code that waits for the loop.
            if not self._reporting:
                self._reporting = True
                try:
                    self._loop.call_soon_threadsafe(self._report)
                except RuntimeError:
                    return  # the loop is closed, so no task waits for the result

    def _report(self) -> None:
        self._reporting = False
        self._done.rotate(0)
        if self._done:
            self.lag = max(0.75 * self.lag, perf_counter() - self._done[0][-1])
        while self._done:
            future, result, error, limiter, goes_on, _ = self._done.popleft()
            if not goes_on:
                self._pending -= 1
                if limiter is not None:
                    limiter.busy -= 1
            if limiter is not None:
                self._fill(limiter)
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            elif isinstance(error, StopIteration):
                # A future accepts no StopIteration, as a coroutine raises none (PEP 479).
                future.set_exception(stop_iteration(error))
            else:
                future.set_exception(error)
        if self._pending == 0 and self._all_idle is not None and not self._all_idle.done():
            self._all_idle.set_result(None)

    def park(self, room: threading.Semaphore | threading.Lock) -> None:
        """Block one of these threads until the loop calls `unpark`. It counts as busy, and runs nothing."""
        self._parked.add(room)
        room.acquire()
        self._parked.discard(room)

    def unpark(self, room: threading.Semaphore | threading.Lock) -> None:
        """Wake the thread that waits for `room`. If none waits yet, the next `park` returns at once."""
        self._parked.discard(room)
        room.release()

    @property
    def busy(self) -> bool:
        """Whether a thread has a job, or a job was handed out."""
        return self._pending > 0

    def idle(self) -> asyncio.Future[None]:
        """Set `ending`, and return a future that is done when no thread is busy."""
        self.ending = True
        self._all_idle = self._loop.create_future()
        if not self._pending:
            self._all_idle.set_result(None)
        return self._all_idle

    def close(self) -> None:
        """Tell the threads to end. Each ends when its job returns."""
        self.ending = self._closed = True
        self._context = Context()
        for thread in self._threads:
            self._ending.append(ref(thread))
            self._jobs.put(None)
        self._threads = []

    def join(self, grace: float) -> None:
        """Wait until the idle threads have ended, at most `grace` seconds for each."""
        for each in self._ending:
            thread = each()
            if thread is not None and thread not in self._busy:
                thread.join(grace)

    def stuck(self) -> list[str]:
        """Describe each busy thread: its name, its job and its stack."""
        if not self._busy:
            return []
        frames = sys._current_frames()  # noqa: SLF001 - the documented way to see another thread's stack
        try:
            return [
                f"thread {thread.name!r} is still in {what}:\n"
                + "".join(traceback.format_stack(frames[thread.ident]))
                for thread, what in self._busy.copy().items()
                if thread.ident in frames
            ]
        finally:
            frames.clear()  # it refers to this frame, which would be a cycle, and to all values of other frames


def _next(limiter: CapacityLimiter) -> _Job | None:
    """Take the next job of a limiter, unless too many threads work for it. Any thread may call this."""
    try:
        while limiter.busy <= limiter.width:  # `busy` includes the thread that calls this
            job = limiter.waiting.popleft()
            if not job[2].done():  # a job that is done was cancelled
                return job
    except IndexError:
        pass
    return None


def stop_iteration(error: StopIteration) -> RuntimeError:
    """Return the error that stands for a `StopIteration` of a function: a coroutine cannot raise that."""
    wrapped = RuntimeError("a function raised StopIteration")
    wrapped.__cause__ = error
    return wrapped
