"""Feed: a running pipeline in the user's hand."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextvars import copy_context
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from asyncfeed.engine.coroutines import refuse_coroutine, report_held_up
from asyncfeed.engine.failed import Failed
from asyncfeed.engine.ready import get_ready, is_ready
from asyncfeed.errors import ClosedError, Failure
from asyncfeed.machine import default_memory_limit
from asyncfeed.stats import FeedStats

if TYPE_CHECKING:
    from asyncfeed.coordinator import Tie
    from asyncfeed.engine.driver import Driver
    from asyncfeed.engine.outlet import Outlet
    from asyncfeed.engine.run import Run
    from asyncfeed.pipeline import Pipeline

T_co = TypeVar("T_co", covariant=True)


class Feed(Iterator[T_co], AsyncIterator[T_co], Generic[T_co]):
    """One pass over a pipeline, to iterate, watch and stop.

    `with` (or a plain `for`) runs it on a background thread with an event loop of its own. Any number of threads
    may then draw from it, and each batch goes to exactly one. `async with` (or `async for`) runs it on the
    caller's loop, where any number of tasks may draw. The first of them to be used decides. A plain `for` or
    `next` in a coroutine would block its loop, and raises `RuntimeError`; in a cell of a notebook it works. A
    coroutine whose threads draw writes `async with contextlib.aclosing(pipeline.open())`: the end of a plain
    `with` would block the loop until the run has ended.

    Functions of the user see the context variables of the code that opened the feed, on its loop and on its
    threads, but not in worker processes. Each task and thread has a copy, so what a function sets stays there.
    However a run ends, generators and iterators are closed, and what their `finally` awaits is not cancelled. That
    may take `grace` seconds. Then a warning names what still hangs, and it is cancelled.

    Raises:
        Exception: From a draw, the exception of the item that failed, at its place in the order, and again for
            every later draw. `failure` holds the same as data.
        ClosedError: From a draw after `stop` or the end of the `with` block.

    Order:
        That of the description, whoever draws.

    Memory:
        `memory_limit` bytes for everything in flight.

    Example:
        >>> import asyncfeed as af
        >>> with af.items(range(5)).batch(2).open() as feed:
        ...     [batch.tolist() for batch in feed]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        pipeline: Pipeline[T_co],
        *,
        memory_limit: int | None,
        grace: float,
        epoch: int = 0,
        by_epoch: bool = False,
        coord: Any = None,
    ) -> None:
        self.pipeline = pipeline
        self._epoch = epoch
        self._by_epoch = by_epoch
        self._first = 0
        """The epoch to begin with, if those before were left before the run had begun."""
        self._context = copy_context()
        self._memory_limit = memory_limit
        self._grace = grace
        self._run: Run | None = None
        self._drawn: Run | None = None
        """The same, once a thread has drawn from it."""
        self._driver: Driver | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = threading.Lock()
        self._stopped: str | None = None
        self._tie: Tie | None = None
        if coord is not None:
            from asyncfeed.coordinator import Tie  # noqa: PLC0415 - few feeds have one

            self._tie = Tie(coord, weakref.WeakMethod(self._stop))
            self._tie.watch(self)

    # -- starting

    def _begin(self) -> Run:
        """Start on a background thread, where that has not happened."""
        from asyncfeed.engine.driver import Driver  # noqa: PLC0415
        from asyncfeed.engine.loops import new_event_loop  # noqa: PLC0415 - see engine/ready.py

        with self._starting:
            if self._run is None:
                self._check_open()
                loop = new_event_loop()
                try:
                    self._run = self._new_run(loop)
                except BaseException:
                    loop.close()
                    raise
                self._driver = Driver(self._run)
                self._driver.start()
                if self._tie is not None:
                    self._tie.joins(self._driver.thread)
        self._check_run(self._run)
        if self._driver is None:
            raise ClosedError("this feed runs on an event loop: draw from it with `async for`, on that loop")
        return self._run

    def _begin_here(self) -> Run:
        """Do the same, and let `__next__` block this thread, as a framework's dataset does in a coroutine, too."""
        self._drawn = run = self._begin()
        return run

    async def _begin_async(self) -> Run:
        """Start on the running loop, where that has not happened."""
        loop = asyncio.get_running_loop()
        if not is_ready():
            await get_ready()
        with self._starting:
            if self._run is None:
                self._check_open()
                self._run = self._new_run(loop, driven=False)
                self._task = self._run.begin()
                if self._tie is not None:
                    self._tie.joins(self._task)
        self._check_run(self._run)
        if self._driver is not None:
            raise ClosedError(
                "this feed was begun by a plain `with`, `for` or `next`, and runs on a background thread: write "
                "`async with` and `async for`, or draw from it on a thread"
            )
        if self._run.loop is not loop:
            raise ClosedError("this feed runs on another event loop: draw from it there")
        return self._run

    def _check_open(self) -> None:
        if self._stopped is not None:
            raise self._with_cause(ClosedError(f"the feed was stopped: {self._stopped}"))

    def _with_cause(self, error: ClosedError) -> ClosedError:
        """Name what a coordinator was told as the cause of what it caused here."""
        if self._tie is not None:
            error.__cause__ = self._tie.cause()
        return error

    def _check_run(self, run: Run) -> None:
        if run.forked:
            _forked()
        # `stop` takes no lock, so that a signal handler may call it: it may just have missed the run.
        if self._stopped is not None:
            run.request_stop(self._stopped)

    def _limit(self) -> int:
        """Return the memory limit; the default is looked up when it is needed, because that reads files."""
        if self._memory_limit is None:
            self._memory_limit = default_memory_limit()
        return self._memory_limit

    def _new_run(self, loop: asyncio.AbstractEventLoop, *, driven: bool = True) -> Run:
        from asyncfeed.engine.run import Run  # noqa: PLC0415 - see engine/ready.py

        run = Run(
            self.pipeline,
            loop=loop,
            memory_limit=self._limit(),
            grace=self._grace,
            epoch=self._epoch,
            by_epoch=self._by_epoch,
            context=self._context,
        )
        if self._first:
            run.go_to_epoch(self._first)
        # Neither the tasks nor the threads hold the feed, so this is called when the user lets go of it.
        run.watch(self, partial(_let_go, run, self._tie), driven=driven)
        if self._tie is not None:
            run.outlet.over.add_done_callback(partial(_over, self._tie, run.outlet))
        return run

    # -- drawing

    def __iter__(self) -> Self:
        """Return the feed itself: iterating goes on where it stands. Raises `RuntimeError` in a coroutine."""
        refuse_coroutine()
        return self

    def __next__(self, epoch: int | None = None) -> T_co:
        """Return the next batch, or that of an epoch; waits for it, and Ctrl-C interrupts the wait."""
        run = self._drawn
        if run is None:
            if self._task is None and self._stopped is None:
                refuse_coroutine()
            run = self._begin_here()
        if run.forked:
            _forked()
        try:
            batch: T_co = run.outlet.take(epoch)
        except Failed:
            pass
        except ClosedError as closed:
            self._with_cause(closed)
            raise
        else:
            return batch
        finally:
            del self  # an exception keeps this frame: it would keep the feed, and with it the run
        _raise(run.outlet)

    def _take_ready(self, most: int, nbytes: int) -> list[T_co]:
        """Return what is ready of a running feed without waiting, for a bridge: see `Outlet.take_ready`."""
        run = self._run
        return [] if run is None or run.forked else run.outlet.take_ready(most, nbytes)

    def _outlet(self) -> Outlet | None:
        """Return where a running feed is drawn from, for a bridge."""
        return None if self._run is None else self._run.outlet

    def _trainer_ended(self) -> None:
        """Note that the trainer behind a bridge is done: see `Outlet.end_seen`."""
        if self._run is not None:
            self._run.outlet.end_seen()

    def _note_slow(self, reason: str) -> None:
        """Count a slower way that a bridge takes, for `stats`."""
        if self._run is not None:
            self._run.crossings.note(reason)

    def __aiter__(self) -> Self:
        """Return the feed itself: iterating goes on where it stands."""
        return self

    async def __anext__(self, epoch: int | None = None) -> T_co:
        """Return the next batch, or that of an epoch, waiting for it on the loop.

        Cancelling the wait loses nothing.
        """
        run = self._run
        if run is None or self._task is None or run.loop is not asyncio.get_running_loop():
            run = await self._begin_async()
        if run.forked:
            _forked()
        try:
            batch: T_co = await run.outlet.take_async(epoch)
        except Failed:
            pass
        except ClosedError as closed:
            self._with_cause(closed)
            raise
        else:
            return batch
        finally:
            del self  # an exception keeps this frame: it would keep the feed, and with it the run
        _raise(run.outlet)

    def _go_to_epoch(self, epoch: int) -> None:
        """Let `__next__` and `__anext__` give out nothing more of earlier epochs."""
        if self._run is None:
            self._first = epoch
        elif not self._run.forked:
            self._run.go_to_epoch(epoch)

    # -- stopping

    def stop(self, reason: str = "stop() was called") -> None:
        """Stop the run from any thread, task or signal handler, without waiting.

        A feed that has not started never will. A coordinator that it was opened with is asked to stop, too.

        Args:
            reason: The text of the `ClosedError` that drawing then raises. The first reason given counts.
        """
        try:
            if self._tie is not None:
                self._tie.stopped(running=self._run is not None)
        finally:
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        if self._stopped is None:
            self._stopped = reason
        if self._run is not None:
            self._run.request_stop(reason)

    def close(self) -> None:
        """Stop and wait until everything is closed; a function that hangs is waited for `grace` seconds.

        A feed that runs on an event loop is only stopped: `aclose` waits for it.
        """
        self._leave()
        if self._run is None or self._run.forked:
            return
        if self._driver is not None:
            started = monotonic()
            self._driver.join()
            report_held_up(monotonic() - started)
        self._run.outlet.clear()

    def _leave(self) -> None:
        if self._tie is not None:
            self._tie.release()
        self._stop("the feed was closed")

    async def aclose(self) -> None:
        """Stop and wait until everything is closed, on the loop of the feed."""
        self._leave()
        run, task = self._run, self._task
        if run is None or run.forked:
            return
        if self._driver is not None:
            await self._driver.join_async()
            run.outlet.clear()
        elif task is not None and run.loop is asyncio.get_running_loop():
            from asyncfeed.tasks import ended  # noqa: PLC0415 - see engine/ready.py

            run.outlet.finish(stopped="the feed was closed")
            await ended(task, self._grace + 1.0)
            run.outlet.clear()

    def __enter__(self) -> Self:
        """Start on a background thread."""
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    async def __aenter__(self) -> Self:
        """Start on the running loop."""
        await self._begin_async()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()

    # -- looking

    def __len__(self) -> int:
        """Return how many items one run delivers in all; raises `TypeError` if that is not known."""
        return len(self.pipeline)

    def __bool__(self) -> bool:
        """Return True: a feed is something, however many items it has."""
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Feed cannot be pickled or copied, as its threads and queues are those of one run in one process: "
            "send the pipeline (feed.pipeline), and open it there"
        )

    def __repr__(self) -> str:
        run, stopped = self._run, self._stopped
        if run is not None:
            stopped = run.outlet.stopped or stopped
        if self.failure is not None:
            state = f"failed with {type(self.failure.error).__qualname__}"
        elif stopped is not None:
            state = f"stopped: {stopped}"
        elif run is None:
            state = "not started"
        else:
            state = "at its end" if run.outlet.ended else "running"
        return f"<Feed of {self.pipeline!r}, {state}, delivered {0 if run is None else run.outlet.delivered}>"

    @property
    def failure(self) -> Failure | None:
        """The item that ended the run: its exception, stage, key, ordinal and epoch; None where none did."""
        return None if self._run is None else self._run.outlet.failure

    @property
    def skipped(self) -> list[Failure]:
        """The items that `on_error="skip"` left out; the first thousand, `stats().skipped` counts all."""
        return [] if self._run is None else list(self._run.failures)

    def stats(self) -> FeedStats:
        """Return what has happened so far: items, bytes, times in seconds, memory in bytes."""
        run = self._run
        if run is None:
            return FeedStats(0, 0, 0.0, 0.0, 0.0, 0, 0, 0, self._limit())
        return run.stats()

    def explain(self) -> str:
        """Return how the pipeline runs: its stages, what bounds each, and the memory budget."""
        return self.pipeline.explain(memory_limit=self._limit())


def _let_go(run: Run, tie: Tie | None) -> None:
    """Stop the run of a feed that is gone; its coordinator is not asked to stop with it."""
    if tie is not None:
        tie.release()
    run.request_stop("nobody holds the feed any more")


def _over(tie: Tie, outlet: Outlet, _: object) -> None:
    failure = outlet.failure
    if failure is None:
        tie.over(None, None, stopped=outlet.stopped is not None)
    else:
        tie.over(failure.error, failure.traceback, stopped=False)


def _raise(outlet: Outlet) -> NoReturn:
    failure = outlet.failure
    assert failure is not None
    error = failure.error
    try:
        # Each draw raises from the same point, so the traceback does not grow with every one.
        raise error.with_traceback(failure.traceback)
    finally:
        del error, failure, outlet  # the frames in the traceback would hold them, and they it


def _forked() -> NoReturn:
    raise ClosedError(
        "this feed was opened before a fork, and its threads did not come along: open one in the new process"
    )
