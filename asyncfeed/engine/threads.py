"""Threads for what must not run on the loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import Context
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


class CapacityLimiter:
    """A part of the threads: at most `width` of them at a time, and jobs that wait for one of these.

    A thread that has done its job takes the next from here, without a turn of the loop in between.
    """

    def __init__(self) -> None:
        self.width = 1
        self.busy = 0
        """How many threads are at it, or will be at once; changed on the loop only."""
        self.waiting: deque[_Job] = deque()


_Job = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]", str, CapacityLimiter | None]
_Done = tuple["asyncio.Future[Any]", Any, BaseException | None, CapacityLimiter | None, bool]


class Threads:
    """The threads of one run: started when needed, reused, daemons.

    The standard pool joins its threads when the interpreter exits, so one read that hangs would hold the
    process for ever. These do not; `idle` waits for the ones that are busy, and `stuck` names them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, context: Context | None = None) -> None:
        self._loop = loop
        self._name = name
        self._context = Context() if context is None else context  # one without variables is false
        """What each thread begins with a copy of; nothing is copied for a job."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._busy: dict[threading.Thread, str] = {}
        self._threads: list[threading.Thread] = []
        self._pending = 0
        """How many jobs are with a thread, or on the way to one; those that wait in a limiter are not."""
        self._parked: set[threading.Semaphore | threading.Lock] = set()
        self._done: deque[_Done] = deque()
        self._reporting = False
        self._all_idle: asyncio.Future[None] | None = None
        self._closed = False
        self.ending = False
        """Whether nothing more is wanted: a job that has several things to do may leave the rest."""

    async def run(self, what: str, fn: Callable[..., R], *args: Any, limiter: CapacityLimiter | None = None) -> R:
        """Call `fn(*args)` on a thread and return its result; `what` names the job in a report.

        Cancelling stops the waiting, not a call that has begun: its result is dropped when it comes.
        """
        result: R = await self.submit(what, fn, *args, limiter=limiter)
        return result

    def submit(
        self, what: str, fn: Callable[..., Any], *args: Any, limiter: CapacityLimiter | None = None
    ) -> asyncio.Future[Any]:
        """Start `fn(*args)` on a thread, in a `limiter` as soon as there is one for it, and return its future.

        Raises `RuntimeError` if the run has ended, the interpreter ends, or the system has no more threads.
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
            except RuntimeError as error:  # the system has no more threads, or the interpreter ends
                job[2].set_exception(error)
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
            except BaseException as raised:  # noqa: BLE001 - it is handed on, whatever it is
                error = raised
            del self._busy[me]
            # What comes into the limiter after this look finds the loop with this report still to read.
            following = None if limiter is None else _next(limiter)
            self._done.append((future, result, error, limiter, following is not None))
            del job, fn, args, future, result, error, limiter  # an idle thread must not keep the last item alive
            # The flag is read after the append and cleared before the queue is emptied, so either this
            # thread wakes the loop or the loop has yet to look.
            if not self._reporting:
                self._reporting = True
                try:
                    self._loop.call_soon_threadsafe(self._report)
                except RuntimeError:
                    return  # the loop has closed: nobody waits for this any more

    def _report(self) -> None:
        self._reporting = False
        while self._done:
            future, result, error, limiter, goes_on = self._done.popleft()
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
                # A future refuses it, as a coroutine does (PEP 479).
                future.set_exception(_stop_iteration(error))
            else:
                future.set_exception(error)
        if self._pending == 0 and self._all_idle is not None and not self._all_idle.done():
            self._all_idle.set_result(None)

    def park(self, room: threading.Semaphore | threading.Lock) -> None:
        """Wait, on one of these threads, until the loop calls `unpark`: the thread is busy, but at nothing."""
        self._parked.add(room)
        room.acquire()
        self._parked.discard(room)

    def unpark(self, room: threading.Semaphore | threading.Lock) -> None:
        """Let the thread go on that waits for this room, or the next that would."""
        self._parked.discard(room)
        room.release()

    @property
    def busy(self) -> bool:
        """Whether a job is with a thread, or on its way to one."""
        return self._pending > 0

    def idle(self) -> asyncio.Future[None]:
        """Let the threads end what they are at, and nothing more; return what is done when none is busy."""
        self.ending = True
        self._all_idle = self._loop.create_future()
        if not self._pending:
            self._all_idle.set_result(None)
        return self._all_idle

    def close(self) -> None:
        """Let the threads end, each when its job returns."""
        self.ending = self._closed = True
        self._context = Context()
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, grace: float) -> None:
        """Wait until the idle threads have ended."""
        for thread in self._threads:
            if thread not in self._busy:
                thread.join(grace)

    def stuck(self) -> list[str]:
        """Describe each busy thread: its name, its job, and where it stands."""
        if not self._busy:
            return []
        frames = sys._current_frames()  # noqa: SLF001 - the documented way to see another thread's stack
        try:
            return [
                f"thread {thread.name!r} is still in {what}:\n"
                + "".join(traceback.format_stack(frames[thread.ident]))
                for thread, what in list(self._busy.items())
                if thread.ident in frames
            ]
        finally:
            frames.clear()  # it holds this very frame, and all that is in those of others


def _next(limiter: CapacityLimiter) -> _Job | None:
    """Take a job that waits in the limiter, if its threads are not too many; any thread may call it."""
    try:
        while limiter.busy <= limiter.width:
            job = limiter.waiting.popleft()
            if not job[2].done():  # or else it was cancelled
                return job
    except IndexError:
        pass
    return None


def _stop_iteration(error: StopIteration) -> RuntimeError:
    wrapped = RuntimeError("a function raised StopIteration")
    wrapped.__cause__ = error
    return wrapped
