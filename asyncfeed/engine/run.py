"""One run of a pipeline: a single flat group of tasks, and the one way it ends.

A run ends when its handoff is over: the stream has ended, has failed, or was stopped. Then the run cancels every
task, waits for busy threads, and closes its readers. Nothing here refers to the `Feed`, so a finalizer sees when
the last reference to the `Feed` goes.

`main` cancels each task when the run stops, and again when the grace is over. Tasks that still do not end are
named in a warning and left behind (see `run_tasks.py`).
"""

from __future__ import annotations

import asyncio
import io
import itertools
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from asyncfeed.engine import forks
from asyncfeed.engine.acknowledging import AcknowledgingHandoff
from asyncfeed.engine.checkpoint.saver import Saver
from asyncfeed.engine.closed_loop import Hold, Watch, close_main, unwind, watch_on
from asyncfeed.engine.constants import KILLED_SECONDS
from asyncfeed.engine.failed import Skips, fault
from asyncfeed.engine.grace import Grace
from asyncfeed.engine.handoff import Handoff
from asyncfeed.engine.held import Held
from asyncfeed.engine.limits.budget import Budget
from asyncfeed.engine.limits.demand import Shown
from asyncfeed.engine.merged import unmerged
from asyncfeed.engine.operators.step import Step
from asyncfeed.engine.plan import Description, compile_steps, prefetched
from asyncfeed.engine.processes.stage import Processes
from asyncfeed.engine.resources import Resources
from asyncfeed.engine.run_tasks import RunTasks
from asyncfeed.engine.threads import Threads
from asyncfeed.engine.waking import Waking
from asyncfeed.errors import Failure, StateError
from asyncfeed.functions.resources import opened
from asyncfeed.reading import scope
from asyncfeed.stacking.pool import shared_pool
from asyncfeed.state.saving import Saving
from asyncfeed.stats import FeedStats, SlowPaths
from asyncfeed.tasks import forget_cancellation, start_task

_numbers = itertools.count()

CLOSING = ": closing"
"""Suffix of the name of a run's main task while the run closes. `asyncfeed.testing` waits for such tasks."""


class Run:
    """One run of a pipeline on one event loop. Any thread may create it. `main` runs on the loop."""

    def __init__(
        self,
        description: Description,
        *,
        loop: asyncio.AbstractEventLoop,
        memory_limit: int | None,
        grace: float,
        epoch: int = 0,
        by_epoch: bool = False,
        state: dict[str, Any] | None = None,
        received: int | None = None,
        saving: Saving | None = None,
        seal: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        context: Context | None = None,
    ) -> None:
        self.loop = loop
        self._context = copy_context() if context is None else context
        """The context variables of the code that opened the run. Each task and each thread has its own copy."""
        self.name = f"asyncfeed-{next(_numbers)}"
        self._forks = forks.count
        self.budget = Budget(memory_limit)
        self.tasks = RunTasks(loop, self._context, self._task_ended)
        self.start, self.cancel_task, self.in_peace = self.tasks.start, self.tasks.cancel_task, self.tasks.in_peace
        self.threads = Threads(loop, self._context)
        read_again = SlowPaths()
        self.resources = Resources(loop, self.threads, self.start, read_again, self.budget.charge)
        """The readers of files. They are closed when all tasks and threads have ended."""
        self._context.run(scope.current.set, self.resources)
        self.held = Held(description, loop, self.threads, self.in_peace)
        """What `using` opens. It is closed after the readers' last use, and before the readers."""
        self._context.run(opened.set, self.held.values)
        self.processes: list[Processes] = []
        self.crossings = SlowPaths()
        """Counts how often a bridge took a slower path."""
        self.slow_paths = [self.crossings, read_again]
        room, fixed = prefetched(description)
        kind = Handoff if saving is None else AcknowledgingHandoff
        self.handoff = kind(room, loop, self.budget, fixed=fixed)
        self.budget.freed = self.handoff.freed
        self.steps: list[Step]
        if state is not None:
            state = unmerged(description, self, self.handoff, state, by_epoch=by_epoch)
        self.steps, self.track = compile_steps(
            description, self, self.handoff, epoch, by_epoch=by_epoch, state=state
        )
        self.track.received = received
        self.handoff.track = self.track
        self.saver: Saver | None = None
        """Writes the state of the run to a file; None if there is no file."""
        if saving is not None and isinstance(self.handoff, AcknowledgingHandoff):
            if self.track.refused:
                saving.lock.release()
                raise StateError(self.track.refused)
            self.saver = Saver(saving, seal, loop, self.threads, self.handoff, self.track)
        if by_epoch:  # the last `repeat` has the highest level
            self.handoff.epoch_level = self.steps[-1].levels - 1
        self.skips = Skips()
        self.grace = Grace(loop, grace)
        self._cancelled: asyncio.CancelledError | None = None
        self._found: tuple[tuple[str, int, float], ...] | None = None
        """What `stages` returned last; None while the run goes on."""
        self._watch: weakref.finalize[[], Any] | Watch | None = None
        self._hold: Hold | None = None
        self._abandoned = False

    # -- what steps use: see `RunContext`

    def hungry_for(self) -> float:
        """Return for how many seconds the consumer has waited so far."""
        return self.handoff.times()[1]

    def taken(self) -> int:
        """Return the number of batches, or other items of the last stage, that the consumer has taken so far."""
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
            # Other code cancelled the task. Its items would be missing, and the consumer would wait for ever.
            self.handoff.finish(stopped=f"{task.get_name()!r} was cancelled from outside the feed")
        elif not task.cancelled() and (error := task.exception()) is not None:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        """Hand a task's exception to the consumer. If it gets another one, report this one to the loop."""
        if not self.tasks.stopping:
            self.handoff.finish(fault(error))
        failure = self.handoff.failure
        if failure is not None and error is failure.error:
            return
        if not isinstance(error, (KeyboardInterrupt, SystemExit)):  # asyncio has raised these out of the loop
            context = {"message": f"{self.name}: an error while it was stopping", "exception": error}
            self.loop.call_exception_handler(context)

    # -- the consumer's hold

    def watch(self, owner: object, gone: Callable[[], object], *, driven: bool) -> None:
        """Call `gone` when the last reference to `owner` goes, unless the run has ended by then.

        `unwatch` must undo this at the end of the run. Python's registry of finalizers refers to the run. A failed
        run refers to its failure, the failure to its frames, and one of these frames to the owner. So the owner
        would never be freed.

        If the run is `driven` by a background thread, `gone` is called on that thread. The last reference often
        goes on the main thread, and Python drops an interrupt that is raised in a weakref callback. With uvloop no
        Python code runs on the main thread for this.
        """
        if driven:
            self._watch = watch_on(self.loop, owner, gone)
        else:
            self._watch = weakref.finalize(owner, gone)
            self._watch.atexit = False

    def unwatch(self) -> None:
        """Undo `watch`, and let the loop hold the run no more. This is the last call of every run."""
        if self.saver is not None:
            self.saver.release()
        watched, self._watch = self._watch, None
        if isinstance(watched, weakref.finalize):
            watched.detach()
        if self._hold is not None:
            self._hold.release(self.name, self.tasks.left)

    # -- running

    def begin(self) -> asyncio.Task[None]:
        """Start `main` as a separate task on the running loop, so that no failure cancels the consumer's task."""
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
        # When a registered task goes, Python runs a callback of asyncio's, which drops an interrupt raised there.
        asyncio._unregister_task(task)  # noqa: SLF001 - documented, for those who extend asyncio

    async def main(self) -> None:
        """Run until the handoff is over. Return when everything is closed, or when the grace is over.

        A cancellation stops the run, too. `main` raises it again after everything is closed.
        """
        self.budget.begin()
        shared_pool().opened(self.budget.whole)
        try:
            try:
                await self._open()
                await self._wait(self.handoff.over)
                await self._wait_for_consumers()
                await self._end()
            except GeneratorExit:  # the loop was closed before the run ended, so nothing can be awaited any more
                raise
            except BaseException as error:  # a bug of the engine, or an interrupt that was raised here
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

    async def _open(self) -> None:
        """Open what `using` says, and start the steps. A stop ends the wait."""
        held = self.held
        if held.resources:
            self.tasks.start_held(held.hold(), f"{self.name}: using")
            await self._wait(held.ready, other=self.handoff.over)
            if held.error is not None:
                self.handoff.finish(fault(held.error))
        if not self.handoff.over.done():
            for step in self.steps:
                step.start()
            if self.saver is not None:
                self.saver.start()

    async def _wait_for_consumers(self) -> None:
        """Let states be written until a consumer has seen the end. A stop ends the wait."""
        if self.saver is not None and self.handoff.over.done() and self._cancelled is None:
            await self._wait(self.saver.handoff.told)

    async def _end(self) -> None:
        """Cancel all tasks, and wait for them and for the threads. This may be called again."""
        self.handoff.finish(stopped="its task was cancelled")
        if (task := asyncio.current_task()) is not None:
            task.set_name(self.name + CLOSING)
        self.grace.begin(self._is_overdue)
        self._cancel()
        while self.tasks.working and not self.tasks.none_left.done():
            await self._wait(self.tasks.none_left)
        if self.saver is not None:
            self.saver.finish()
        await self._idle()
        if not self.held.released.done():
            self.held.released.set_result(None)
        await self._closed(self.tasks.held)
        last, name = self.tasks.start_last, f"{self.name}: closing a store"
        await self._closed([last(each, name) for each in self.resources.closing()])
        await self._until(self.threads.end(), self.loop.time() + KILLED_SECONDS)

    async def _closed(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Wait for tasks that close something, until shortly after the grace."""
        until = max(self.grace.deadline, self.loop.time()) + KILLED_SECONDS
        for task in tasks:
            await self._until(task, until)
            if not task.done():
                self._report_stuck()
                task.cancel()

    async def _wait(
        self, future: asyncio.Future[None], until: float | None = None, other: asyncio.Future[None] | None = None
    ) -> None:
        """Wait for a future or another one, or until a time of the loop's clock.

        A cancellation ends the wait and is kept.
        """
        waking = Waking(loop=self.loop)
        future.add_done_callback(waking.wake)
        if other is not None:
            other.add_done_callback(waking.wake)
        timer = None if until is None else self.loop.call_at(until, waking.wake)
        try:
            await waking
        except asyncio.CancelledError as error:
            self._cancelled = error
        finally:
            future.remove_done_callback(waking.wake)
            if other is not None:
                other.remove_done_callback(waking.wake)
            if timer is not None:
                timer.cancel()

    async def _idle(self) -> None:
        """Wait for the threads until the grace is over. If some are still busy, report them."""
        await self._until(self.threads.idle(), self.grace.deadline)
        if self.threads.busy:
            if self._kill():
                await self._until(self.threads.idle(), self.loop.time() + KILLED_SECONDS)
            self._report_stuck()

    async def _until(self, future: asyncio.Future[None], until: float) -> None:
        """Wait for a future until a time of the loop's clock, also if a cancellation comes."""
        while not future.done() and self.loop.time() < until:
            await self._wait(future, until)

    def _cancel(self) -> None:
        """Cancel all tasks."""
        self.tasks.stop()
        # A worker whose function swallows the cancellation then finds no more items.
        for step in self.steps:
            step.drop()
        for each in self.processes:
            each.stop(self.threads)

    def _is_overdue(self) -> None:
        """Report the tasks and threads that have not ended, cancel the tasks again, and soon stop waiting."""
        self._report_stuck()
        self.grace.then(KILLED_SECONDS if self.tasks.cancel_again() else 0.0, self.tasks.wait_no_longer)

    def _kill(self) -> bool:
        """Kill the worker processes that have not ended. Return whether there were any."""
        return bool([each for each in self.processes if each.kill()])  # a list, because `any` would stop early

    def _close(self) -> None:
        self.resources.abandon()  # the readers that could not be closed because the loop is closed
        self.threads.close()
        self.grace.cancel()
        self.handoff.finish(stopped="it has ended")
        self._found = self.stages()
        if not self.tasks.left:  # a task that is left may go on, and still needs its step to find it has no work
            for step in self.steps:
                step.release()
        self.steps = []
        shared_pool().closed(self.budget.whole)
        self.budget.end()
        self.processes.clear()
        self.budget.freed = int
        self._context = Context()
        self.tasks.release()
        self.unwatch()

    def _report_stuck(self) -> None:
        """Report, once, the threads and tasks that do not end, with their stacks."""
        # If worker processes were killed, the threads that wait for them return. So these are not reported.
        found = [] if self._kill() else self.threads.stuck()
        for task in self.tasks.left if self.held.released.done() else self.tasks.working:
            if task.done():  # an interrupt may have dropped the callback that removes the task
                continue
            where = io.StringIO()
            task.print_stack(file=where)
            found.append(where.getvalue())
        self.grace.report(self.name, found)

    def go_to_epoch(self, epoch: int) -> None:
        """Skip the rest of the epochs before `epoch`, counted from the run's first. Any thread may call this."""
        if self.handoff.go_to(epoch) and not self.handoff.ended:
            with suppress(RuntimeError):  # the loop has closed, so the run has ended
                self.loop.call_soon_threadsafe(self._skip_epoch, epoch - 1)

    def _skip_epoch(self, epoch: int) -> None:
        level = self.handoff.epoch_level
        if self.steps and level is not None:
            self.steps[-1].skip(level, epoch)

    def request_stop(self, reason: str) -> None:
        """Stop the run. Any thread, signal handler or finalizer may call this, any number of times."""
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
        """Release everything without the loop, because the loop was closed: see `closed_loop`."""
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
        if self._found is None:  # `main` had not begun, so `_close` was not called
            self.resources.abandon()
            self.unwatch()

    @property
    def ends_with_work(self) -> bool:
        """Whether a consumer must wait for the end of the run after the end of the stream."""
        if self.saver is not None:
            return self.saver.handoff.finished  # if not, another consumer still works on its item
        return bool(self.held.resources)

    @property
    def forked(self) -> bool:
        """Whether this process is a fork, which has the run's objects but not its threads."""
        return self._forks != forks.count

    def stats(self) -> FeedStats:
        """Return the figures of the run so far."""
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
            concurrency=tuple((name, calls) for name, calls, _ in self.stages()),
            turns_waited=self.threads.turns_waited,
            other_feeds=self.threads.others,
            slow_paths=tuple(itertools.chain.from_iterable(each.counts() for each in self.slow_paths)),
        )

    def stages(self) -> tuple[tuple[str, int, float], ...]:
        """Return each stage that calls a function: its name, its calls at a time, and the seconds it computed."""
        if self._found is not None:
            return self._found
        return tuple((step.name, step.calls, step.computed) for step in self.steps if step.calls)
