"""The calls of a run that would block its loop."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from time import perf_counter
from typing import Any, TypeVar

from asyncfeed.engine.fair import FairLimiter, wait_for_another
from asyncfeed.engine.limits.resident import resident
from asyncfeed.engine.workers import Job, Worker, workers

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
        self.waiting: deque[Job] = deque()
        self.fair: FairLimiter | None = None
        """Where its jobs wait for their turn beside those of other runs. None if they need not."""
        self.computed = 0.0
        """Seconds of processor time that its jobs took, as far as they were measured."""


_Done = tuple[Job, Any, BaseException | None, bool, float]


class Threads:
    """What the workers of the process do for one run: its jobs, and those of its jobs that wait.

    `idle` waits for the busy workers, and `stuck` describes them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context | None = None) -> None:
        wait_for_another()
        self.loop = loop
        self._context = Context() if context is None else context  # not `or`: an empty context is false
        """Each job has a copy of this context."""
        self._busy: dict[Worker, str] = {}
        self._all_ended: asyncio.Future[None] | None = None
        self._pending = 0
        """Number of jobs that a worker has, or that were handed out. Jobs that wait in a limiter do not count."""
        self._parked: set[threading.Semaphore | threading.Lock] = set()
        self._done: deque[_Done] = deque()
        self._reporting = False
        self._all_idle: asyncio.Future[None] | None = None
        self._closed = False
        self._fair: dict[FairLimiter, None] = {}
        """Where its jobs have waited for their turns."""
        self.computed = 0.0
        """Seconds of processor time for which runs take turns: see `FairLimiter`."""
        self.turns_waited = 0.0
        """Seconds that jobs waited for their turns."""
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
        future: asyncio.Future[Any] = self.loop.create_future()
        job = Job(self, what, fn, args, future, limiter, self._context)
        if limiter is None:
            self._hand_out(job)
        else:
            limiter.waiting.append(job)
            self._fill(limiter)
        return future

    def _fill(self, limiter: CapacityLimiter) -> None:
        while not self._closed and limiter.busy < limiter.width and (job := _next(limiter)) is not None:
            try:
                self._hand_out(job)
            except RuntimeError as error:  # the system has no more threads, or the interpreter is ending
                if SHUTDOWN not in str(error):
                    job.future.set_exception(error)
                # Else the run is stopped at once: no task waits for the result, and no user wants to hear of it.
                return
            limiter.busy += 1

    def _hand_out(self, job: Job) -> None:
        workers.begin(self)
        fair = None if job.limiter is None else job.limiter.fair
        if fair is None:
            workers.give(job)
        else:
            self._fair[fair] = None
            fair.submit(job)
        self._pending += 1

    def work(self, job: Job, worker: Worker) -> Job | None:
        """Do a job and report it, and return what the worker does next. If there is nothing, retire the worker."""
        limiter, place = job.limiter, job.place
        result, error = None, None
        worker.place = place
        self._busy[worker] = job.what
        if place is not None:
            place.begin(self)
        try:
            if limiter is None or not (self._closed or job.future.done()):
                result = job.context.copy().run(job.fn, *job.args)
        except BaseException as raised:  # noqa: BLE001 - the future raises it
            error = raised
        del self._busy[worker]
        if place is not None:
            place.end(self)
        following: Job | None = None
        # A job queued after this check is safe: the loop has not processed this report yet, so it will look again.
        if limiter is not None and limiter.fair is (place and place.limiter) and (place is None or place.is_kept):
            following = _next(limiter)
        goes_on = following is not None
        if following is not None:
            following.place = place
        elif place is not None:
            following = place.limiter.next(place)
        if following is None:
            worker.place = None
            workers.retire()
        self._done.append((job, result, error, goes_on, perf_counter()))
        del job, result, error  # an idle thread must not keep the last item alive
        if following is None:
            resident.look()
        # This thread appends the report and then reads the flag. The loop clears the flag and then empties the
        # queue. So either this thread wakes the loop, or the loop has yet to look at the queue. Python without
        # the GIL keeps this order, too, because `append` and `rotate` lock the deque. A lock of our own could
        # be held while the garbage collector calls code that waits for the loop.
        if not self._reporting:
            self._reporting = True
            # A loop that is closed has no task that waits for the result.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._report)
        return following

    def _report(self) -> None:
        self._reporting = False
        self._done.rotate(0)
        if self._done:
            self.lag = max(0.75 * self.lag, perf_counter() - self._done[0][-1])
        while self._done:
            job, result, error, goes_on, _ = self._done.popleft()
            future, limiter = job.future, job.limiter
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
        for job in itertools.chain.from_iterable(fair.drop(self) for fair in self._fair):
            self._pending -= 1
            if job.limiter is not None:
                job.limiter.busy -= 1
        self._all_idle = self.loop.create_future()
        if not self._pending:
            self._all_idle.set_result(None)
        return self._all_idle

    @property
    def others(self) -> int:
        """Number of other runs that share the threads."""
        return len(workers.runs.keys() - {self})

    @property
    def computes(self) -> bool:
        """Whether a job has not returned, other than those that wait for the loop, or a worker has not ended."""
        return self._pending > len(self._parked) or (self._all_ended is not None and not self._all_ended.done())

    def end(self) -> asyncio.Future[None]:
        """Take no more jobs. Return a future that is done when the workers have ended, or serve other runs."""
        if self._all_ended is None:
            self._all_ended = self.loop.create_future()
            self._close()
            workers.end(self)
        return self._all_ended

    def close(self) -> None:
        """Take no more jobs. Nothing waits until the idle workers have ended."""
        self._close()
        workers.leave(self)

    def _close(self) -> None:
        self.ending = self._closed = True
        self._context = Context()
        for fair in self._fair:
            fair.look_now()

    def none_left(self) -> None:
        """Hear that no worker is left, or that another run has begun. Any thread may call this."""
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for that
            self.loop.call_soon_threadsafe(self._note_end)

    def _note_end(self) -> None:
        if self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)

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


def _next(limiter: CapacityLimiter) -> Job | None:
    """Take the next job of a limiter, unless too many threads work for it. Any thread may call this."""
    try:
        while limiter.busy <= limiter.width:  # `busy` includes the thread that calls this
            job = limiter.waiting.popleft()
            if not job.future.done():  # a job that is done was cancelled
                return job
    except IndexError:
        pass
    return None


def stop_iteration(error: StopIteration) -> RuntimeError:
    """Return the error that stands for a `StopIteration` of a function: a coroutine cannot raise that."""
    wrapped = RuntimeError("a function raised StopIteration")
    wrapped.__cause__ = error
    return wrapped
