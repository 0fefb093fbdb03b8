"""One run of a pipeline: a single flat group of tasks, and the one way it ends.

A run ends when its handoff is over: the stream has ended, has failed, or was stopped. Then every task is
cancelled, what was opened is closed, and busy threads are waited for. Nothing here refers to the `Feed`, so that
dropping the last `Feed` can be seen.

`main` cancels each task when the run stops and again when the grace is over. It says which do not end, and leaves
them (see `run_tasks.py`).
"""

from __future__ import annotations

import asyncio
import io
import itertools
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from asyncfeed.engine import forks
from asyncfeed.engine.closed_loop import Hold, Watch, close_main, unwind, watch
from asyncfeed.engine.constants import KILLED_SECONDS
from asyncfeed.engine.failed import Skips, fault
from asyncfeed.engine.grace import Grace
from asyncfeed.engine.handoff import Handoff
from asyncfeed.engine.limits.budget import Budget
from asyncfeed.engine.limits.demand import Shown
from asyncfeed.engine.operators.step import Step
from asyncfeed.engine.plan import Description, compile_steps, prefetched
from asyncfeed.engine.processes.stage import Processes
from asyncfeed.engine.resources import Resources
from asyncfeed.engine.run_tasks import RunTasks
from asyncfeed.engine.threads import Threads
from asyncfeed.engine.waking import Waking
from asyncfeed.errors import Failure
from asyncfeed.reading import scope
from asyncfeed.stacking.pool import shared_pool
from asyncfeed.stats import FeedStats, SlowPaths
from asyncfeed.tasks import forget_cancellation, start_task

_numbers = itertools.count()

CLOSING = ": closing"
"""What the name of a run's task ends in once it only closes; `asyncfeed.testing` waits for such tasks."""


class Run:
    """A pipeline in motion on one event loop. Made anywhere, `main` runs on the loop."""

    def __init__(
        self,
        description: Description,
        *,
        loop: asyncio.AbstractEventLoop,
        memory_limit: int,
        grace: float,
        epoch: int = 0,
        by_epoch: bool = False,
        context: Context | None = None,
    ) -> None:
        self.loop = loop
        self._context = copy_context() if context is None else context
        """The context variables of whoever opened the run: each task and each thread has a copy of them."""
        self.name = f"asyncfeed-{next(_numbers)}"
        self._forks = forks.count
        self.budget = Budget(memory_limit)
        self.tasks = RunTasks(loop, self._context, self._task_ended)
        self.start, self.cancel_task, self.in_peace = self.tasks.start, self.tasks.cancel_task, self.tasks.in_peace
        self.threads = Threads(loop, self.name, self._context)
        self.resources = Resources(loop, self.threads, self.start)
        """What files are read with. It is closed when all tasks and threads have ended."""
        self._context.run(scope.current.set, self.resources)
        self.processes: list[Processes] = []
        self.crossings = SlowPaths()
        """What a bridge counts."""
        self.slow_paths = [self.crossings]
        room, fixed = prefetched(description)
        self.handoff = Handoff(room, loop, self.budget, fixed=fixed)
        self.budget.freed = self.handoff.freed
        self.steps: list[Step] = compile_steps(description, self, self.handoff, epoch, by_epoch=by_epoch)
        if by_epoch:  # the last `repeat` has the highest level
            self.handoff.epoch_level = self.steps[-1].levels - 1
        self.skips = Skips()
        self.grace = Grace(loop, grace)
        self._cancelled: asyncio.CancelledError | None = None
        self._found: tuple[tuple[str, int], ...] | None = None
        """What the stages came to, once the run has ended."""
        self._watch: weakref.finalize[[], Any] | Watch | None = None
        self._hold: Hold | None = None
        self._abandoned = False

    # -- what steps use: see `RunContext`

    def hungry_for(self) -> float:
        """Return for how many seconds the consumer has waited so far."""
        return self.handoff.times()[1]

    def taken(self) -> int:
        """Return how many batches, or other items of the last stage, the consumer has taken so far."""
        return self.handoff.delivered.count

    def shown(self) -> Shown:
        """Return what the consumer has done so far."""
        elapsed, waited, _ = self.handoff.times()
        return Shown(elapsed - waited, self.handoff.delivered.count, len(self.handoff), self.handoff.waiting)

    def skipped(self, failure: Failure) -> None:
        """Note that a failed item was left out, as its stage's policy says."""
        self.skips.note(failure)

    def _task_ended(self, task: asyncio.Task[None], asked: bool) -> None:
        if task.cancelled() and not (self.tasks.stopping or asked):
            # Not by us: its items would be missing, and the consumer would wait for ever.
            self.handoff.finish(stopped=f"{task.get_name()!r} was cancelled from outside the feed")
        elif not task.cancelled() and (error := task.exception()) is not None:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        """Hand what a task raised to the consumer; report it where the consumer hears of something else."""
        if not self.tasks.stopping:
            self.handoff.finish(fault(error))
        failure = self.handoff.failure
        if failure is not None and error is failure.error:
            return
        if not isinstance(error, (KeyboardInterrupt, SystemExit)):  # the task has raised these through the loop
            context = {"message": f"{self.name}: an error while it was stopping", "exception": error}
            self.loop.call_exception_handler(context)

    # -- the consumer's hold

    def watch(self, owner: object, gone: Callable[[], object], *, driven: bool) -> None:
        """Call `gone` when nobody holds `owner` any more, unless the run has ended by then.

        What Python keeps for that would keep the run too, and with it a failure, the frames that the failure came
        through, and the owner, which one of them holds: a ring that no garbage collector could see.

        A run that is `driven` by a thread of its own calls it there. The thread that lets go is often the main
        thread. With uvloop it runs no Python for this: an interrupt raised in such a callback would be dropped.
        """
        if driven:
            self._watch = watch(owner, partial(self.loop.call_soon_threadsafe, gone))
        else:
            self._watch = weakref.finalize(owner, gone)
            self._watch.atexit = False

    def unwatch(self) -> None:
        """Watch nobody any more."""
        watched, self._watch = self._watch, None
        if isinstance(watched, weakref.finalize):
            watched.detach()
        if self._hold is not None:
            self._hold.release(self.name, self.tasks.left)

    # -- running

    def begin(self) -> asyncio.Task[None]:
        """Start `main` on the running loop, as a task of its own: no failure cancels the consumer's."""
        task = self._context.run(start_task, self.loop, self.main(), loop=self.loop, name=self.name)
        task.add_done_callback(self._main_ended)
        self._hold = Hold(self.loop, partial(self._abandon, weakref.ref(task)))
        return task

    def _main_ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs nothing of `main`, not even its `finally`.
        forget_cancellation(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            self.handoff.finish(stopped="its task was cancelled")
        else:
            self.handoff.finish(fault(error))
        self.unwatch()
        # asyncio keeps a weak reference to each task that it knows of. Python runs code when such a task goes, and
        # drops an interrupt that is raised there.
        asyncio._unregister_task(task)  # noqa: SLF001 - documented, for those who extend asyncio

    async def main(self) -> None:
        """Run to the end, or until `stop`; returns when everything is closed, or the grace is over.

        A cancellation stops the run like everything else that does. It is raised when all is closed.
        """
        shared_pool().opened(self.budget.limit)
        try:
            try:
                for step in self.steps:
                    step.start()
                await self._wait(self.handoff.over)
                await self._end()
            except GeneratorExit:  # the loop was closed before its time: nothing can be waited for any more
                raise
            except BaseException as error:  # a fault of ours, or an interrupt that was raised here
                self.handoff.finish(fault(error))
                await self._end()
                raise
        finally:
            self._close()
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            try:
                raise cancelled
            finally:
                del cancelled

    async def _end(self) -> None:
        """Cancel all tasks, wait for them and for the threads; may be called again."""
        self.handoff.finish(stopped="its task was cancelled")
        if (task := asyncio.current_task()) is not None:
            task.set_name(self.name + CLOSING)
        self.grace.begin(self._is_overdue)
        self._cancel()
        while self.tasks.left and not self.tasks.none_left.done():
            await self._wait(self.tasks.none_left)
        await self._idle()
        await self._close_readers()

    async def _close_readers(self) -> None:
        """Close what files were read with, each in a task of its own, for as long as the grace allows."""
        tasks = [self.tasks.start_last(each, f"{self.name}: closing a store") for each in self.resources.closing()]
        until = max(self.grace.deadline, self.loop.time()) + KILLED_SECONDS
        for task in tasks:
            while not task.done() and self.loop.time() < until:
                await self._wait(task, until)
            if not task.done():
                self._report_stuck()
                task.cancel()

    async def _wait(self, future: asyncio.Future[None], until: float | None = None) -> None:
        """Wait for this; a cancellation ends the wait, and is kept for later."""
        waking = Waking(loop=self.loop)
        future.add_done_callback(waking.wake)
        timer = None if until is None else self.loop.call_at(until, waking.wake)
        try:
            await waking
        except asyncio.CancelledError as error:
            self._cancelled = error
        finally:
            future.remove_done_callback(waking.wake)
            if timer is not None:
                timer.cancel()

    async def _idle(self) -> None:
        """Wait for the threads, as long as the grace allows; say so where that was not enough."""
        await self._threads_idle(self.grace.deadline)
        if self.threads.busy:
            if self._kill():
                await self._threads_idle(self.loop.time() + KILLED_SECONDS)
            self._report_stuck()

    async def _threads_idle(self, until: float) -> None:
        idle = self.threads.idle()
        while not idle.done() and self.loop.time() < until:
            await self._wait(idle, until)

    def _cancel(self) -> None:
        """Cancel all tasks."""
        self.tasks.stop()
        # A worker whose function keeps the cancellation to itself finds nothing more to do.
        for step in self.steps:
            step.drop()
        for each in self.processes:
            each.stop(self.threads)

    def _is_overdue(self) -> None:
        """Say what does not end by itself; cancel it again, and soon wait no longer for it."""
        self._report_stuck()
        self.grace.then(KILLED_SECONDS if self.tasks.cancel_again() else 0.0, self.tasks.wait_no_longer)

    def _kill(self) -> bool:
        """Kill the worker processes that have not ended; return whether there were any."""
        return bool([each for each in self.processes if each.kill()])  # asks all of them

    def _close(self) -> None:
        self.resources.abandon()  # what could not be closed, as the loop is gone
        self.threads.close()
        self.grace.cancel()
        self.handoff.finish(stopped="it has ended")
        self._found = self._concurrency()
        if not self.tasks.left:  # one that is left may yet go on, and is to find that there is nothing more to do
            for step in self.steps:
                step.release()
        self.steps = []
        shared_pool().closed(self.budget.limit)
        self.processes.clear()
        self.budget.freed = int
        self._context = Context()
        self.tasks.release()
        self.unwatch()

    def _report_stuck(self) -> None:
        """Say, once, what does not stop: which thread or task, and where it stands."""
        # A thread that waits for a process that is killed returns.
        found = [] if self._kill() else self.threads.stuck()
        for task in self.tasks.left:
            if task.done():  # an interrupt may have kept it from us
                continue
            where = io.StringIO()
            task.print_stack(file=where)
            found.append(where.getvalue())
        self.grace.report(self.name, found)

    def go_to_epoch(self, epoch: int) -> None:
        """Leave what is left of the epochs before this one, counted from the first of the run; from any thread."""
        if self.handoff.go_to(epoch) and not self.handoff.ended:
            with suppress(RuntimeError):  # the loop has closed, so the run has ended
                self.loop.call_soon_threadsafe(self._skip_epoch, epoch - 1)

    def _skip_epoch(self, epoch: int) -> None:
        level = self.handoff.epoch_level
        if self.steps and level is not None:
            self.steps[-1].skip(level, epoch)

    def request_stop(self, reason: str) -> None:
        """Stop; from any thread or signal handler, and from the garbage collector, any number of times."""
        if self.forked:
            return
        self.handoff.cut(reason)
        try:
            self.loop.call_soon_threadsafe(self._stop, reason)
        except RuntimeError:  # the loop has closed, so the run has ended
            self._abandon()

    def _stop(self, reason: str) -> None:
        self.handoff.finish(stopped=reason)
        self.handoff.clear()

    def _abandon(self, main: Callable[[], asyncio.Task[None] | None] = lambda: None) -> None:
        """Let go of everything, without the loop: it was closed. See `closed_loop`."""
        self.handoff.cut("its event loop was closed")
        self.handoff.clear(wait=False)
        if self._abandoned or self._found is not None or self.forked:
            return
        self._abandoned = self.tasks.stopping = True
        self.budget.waiting.clear()
        self.threads.close()
        for each in self.processes:
            each.stop(self.threads)
        unwind(self.name, self.tasks.take_left())
        close_main(main())
        if self._found is None:  # it had not begun
            self.resources.abandon()
            self.unwatch()

    @property
    def forked(self) -> bool:
        """Whether this is another process, which has the run's objects, but not its threads."""
        return self._forks != forks.count

    def stats(self) -> FeedStats:
        """Return what has happened so far."""
        handoff = self.handoff
        seconds, consumer_waited, data_waited = handoff.times()
        return FeedStats(
            batches=handoff.delivered.count,
            nbytes=handoff.delivered.nbytes,
            seconds=seconds,
            consumer_waited=consumer_waited,
            producer_waited=data_waited,
            skipped=self.skips.count,
            memory_used=0 if self._found is not None else self.handoff.in_flight(self.budget.known),
            memory_peak=self.budget.peak,
            memory_limit=self.budget.limit,
            concurrency=self._concurrency() if self._found is None else self._found,
            slow_paths=tuple(itertools.chain.from_iterable(each.counts() for each in self.slow_paths)),
        )

    def _concurrency(self) -> tuple[tuple[str, int], ...]:
        return tuple((step.name, step.calls) for step in self.steps if step.calls)
