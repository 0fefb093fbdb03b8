"""Feed: a running pipeline in the user's hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from asyncfeed.engine.coroutines import refuse_coroutine
from asyncfeed.engine.failed import Failed
from asyncfeed.errors import ClosedError, Failure
from asyncfeed.session import Session, forked
from asyncfeed.stats import FeedStats

if TYPE_CHECKING:
    from asyncfeed.engine.handoff import Handoff
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

    def __init__(self, session: Session) -> None:
        self._session = session
        self._drawn: Run | None = None
        """The run, once a thread has drawn from it."""
        self._awaited: Run | None = None
        """The run, once a task has drawn from it."""

    @property
    def pipeline(self) -> Pipeline[T_co]:
        """The pipeline that was opened."""
        return self._session.pipeline

    # -- drawing

    def __iter__(self) -> Self:
        """Return the feed itself: iterating goes on where it stands. Raises `RuntimeError` in a coroutine."""
        refuse_coroutine()
        return self

    def __next__(self, epoch: int | None = None) -> T_co:
        """Return the next batch, or that of an epoch; waits for it, and Ctrl-C interrupts the wait."""
        run = self._drawn
        if run is None:
            if self._session.may_refuse:
                refuse_coroutine()
            run = self._drawn = self._session.begin_here()
        if run.forked:
            forked()
        try:
            batch: T_co = run.handoff.take(epoch)
        except Failed:
            pass
        except ClosedError as closed:
            self._session.with_cause(closed)
            raise
        else:
            return batch
        finally:
            del self  # an exception keeps this frame: it would keep the feed, and with it the run
        _raise(run.handoff)

    def __aiter__(self) -> Self:
        """Return the feed itself: iterating goes on where it stands."""
        return self

    async def __anext__(self, epoch: int | None = None) -> T_co:
        """Return the next batch, or that of an epoch, waiting for it on the loop.

        Cancelling the wait loses nothing.
        """
        run = self._awaited
        if run is None or run.loop is not asyncio.get_running_loop():
            run = self._awaited = await self._session.begin_async()
        if run.forked:
            forked()
        try:
            batch: T_co = await run.handoff.take_async(epoch)
        except Failed:
            pass
        except ClosedError as closed:
            self._session.with_cause(closed)
            raise
        else:
            return batch
        finally:
            del self  # an exception keeps this frame: it would keep the feed, and with it the run
        _raise(run.handoff)

    # -- stopping

    def stop(self, reason: str = "stop() was called") -> None:
        """Stop the run from any thread, task or signal handler, without waiting.

        A feed that has not started never will. A coordinator that it was opened with is asked to stop, too.

        Args:
            reason: The text of the `ClosedError` that drawing then raises. The first reason given counts.
        """
        self._session.stop_all(reason)

    def close(self) -> None:
        """Stop and wait until everything is closed; a function that hangs is waited for `grace` seconds.

        A feed that runs on an event loop is only stopped: `aclose` waits for it.
        """
        self._session.close()

    async def aclose(self) -> None:
        """Stop and wait until everything is closed, on the loop of the feed."""
        await self._session.aclose()

    def __enter__(self) -> Self:
        """Start on a background thread."""
        self._session.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    async def __aenter__(self) -> Self:
        """Start on the running loop."""
        await self._session.begin_async()
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
        run, stopped = self._session.run, self._session.stopped
        if run is not None:
            stopped = run.handoff.stopped or stopped
        if self.failure is not None:
            state = f"failed with {type(self.failure.error).__qualname__}"
        elif stopped is not None:
            state = f"stopped: {stopped}"
        elif run is None:
            state = "not started"
        else:
            state = "at its end" if run.handoff.ended else "running"
        return (
            f"<Feed of {self.pipeline!r}, {state}, delivered {0 if run is None else run.handoff.delivered.count}>"
        )

    @property
    def failure(self) -> Failure | None:
        """The item that ended the run: its exception, stage, key, ordinal and epoch; None where none did."""
        handoff = self._session.handoff
        return None if handoff is None else handoff.failure

    @property
    def skipped(self) -> list[Failure]:
        """The items that `on_error="skip"` left out; the first thousand, `stats().skipped` counts all."""
        run = self._session.run
        return [] if run is None else list(run.skips.kept)

    def stats(self) -> FeedStats:
        """Return what has happened so far: items, bytes, times in seconds, memory in bytes."""
        run = self._session.run
        if run is None:
            return FeedStats(0, 0, 0.0, 0.0, 0.0, 0, 0, 0, self._session.limit())
        return run.stats()

    def explain(self) -> str:
        """Return how the pipeline runs: its stages, what bounds each, and the memory budget."""
        return self.pipeline.explain(memory_limit=self._session.limit())


def session_of(feed: Feed[Any]) -> Session:
    """Return what runs a feed, for `Epochs` and the bridges."""
    return feed._session  # noqa: SLF001 - users see the feed alone


def _raise(handoff: Handoff) -> NoReturn:
    failure = handoff.failure
    assert failure is not None
    error = failure.error
    try:
        # Each draw raises from the same point, so the traceback does not grow with every one.
        raise error.with_traceback(failure.traceback)
    finally:
        del error, failure, handoff  # the frames in the traceback would hold them, and they it
