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
    from asyncfeed.running import State

T_co = TypeVar("T_co", covariant=True)


class Feed(Iterator[T_co], AsyncIterator[T_co], Generic[T_co]):
    """One pass over a pipeline, to iterate, watch and stop.

    `with` (or a plain `for`) runs it on a background thread with its own event loop. Any number of threads may
    then draw from it, and each batch goes to exactly one of them. `async with` (or `async for`) runs it on the
    caller's loop, where any number of tasks may draw. The first use decides between the two.

    A plain `for` or `next` in a coroutine would block its loop, and raises `RuntimeError`. In a notebook cell it
    works. If a coroutine opens a feed for threads, use `async with contextlib.aclosing(pipeline.open())`, because
    the end of a plain `with` would block the loop until the run has ended.

    The user's functions see the context variables of the code that opened the feed, on its loop and on its
    threads, but not in worker processes. Each task and thread has a copy of them, so a function changes only its
    own copy.

    At the end of every run, generators and iterators are closed. For `grace` seconds their `finally` blocks are
    not cancelled. After that, a warning names the generators that have not ended, and they are cancelled.

    Raises:
        Exception: From a draw, the exception of the item that failed, at its place in the order. Every later draw
            raises it again. `failure` holds the details as data.
        ClosedError: From a draw after `stop` or the end of the `with` block.

    Order:
        The order of the description, for any number of consumers.

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
        """The run; None before a thread has drawn from it."""
        self._awaited: Run | None = None
        """The run; None before a task has drawn from it."""

    @property
    def pipeline(self) -> Pipeline[T_co]:
        """The pipeline that was opened."""
        return self._session.pipeline

    # -- drawing

    def __iter__(self) -> Self:
        """Return the feed itself: iterating continues with the next batch.

        Raises `RuntimeError` in a coroutine.
        """
        refuse_coroutine()
        return self

    def __next__(self, epoch: int | None = None) -> T_co:
        """Return the next batch, or the next batch of an epoch.

        It waits for the batch; Ctrl-C interrupts the wait.
        """
        run = self._drawn
        if run is None:
            if self._session.may_refuse:
                refuse_coroutine()
            run = self._drawn = self._session.begin_here()
        if run.forked:
            forked()
        ahead = run.handoff.delivered.ahead
        if ahead.items and (epoch is None or epoch == ahead.epoch):
            try:  # most draws of small items end here: `suppress` would take twice as long
                return ahead.items.popleft()  # type: ignore[no-any-return]
            except IndexError:  # another thread was faster
                pass
        try:
            batch: T_co = run.handoff.take(epoch)
        except Failed:
            self._session.wait_held()
        except StopIteration:
            if epoch is None:
                self._session.wait_held()
            raise
        except ClosedError as closed:
            self._session.with_cause(closed)
            raise
        else:
            return batch
        finally:
            del self  # an exception holds this frame, which would hold the feed and so the run
        _raise(run.handoff)

    def __aiter__(self) -> Self:
        """Return the feed itself: iterating continues with the next batch."""
        return self

    async def __anext__(self, epoch: int | None = None) -> T_co:
        """Return the next batch, or the next batch of an epoch. It waits for the batch on the loop.

        Cancelling the wait loses no batch.
        """
        run = self._awaited
        if run is None or run.loop is not asyncio.get_running_loop():
            run = self._awaited = await self._session.begin_async()
        if run.forked:
            forked()
        try:
            batch: T_co = await run.handoff.take_async(epoch)
        except Failed:
            await self._session.wait_held_async()
        except StopAsyncIteration:
            if epoch is None:
                await self._session.wait_held_async()
            raise
        except ClosedError as closed:
            self._session.with_cause(closed)
            raise
        else:
            return batch
        finally:
            del self  # an exception holds this frame, which would hold the feed and so the run
        _raise(run.handoff)

    # -- stopping

    def stop(self, reason: str = "stop() was called") -> None:
        """Stop the run from any thread, task or signal handler, without waiting.

        A feed that has not started can then not be started any more. A coordinator that the feed was opened with
        is asked to stop, too.

        Args:
            reason: The text of the `ClosedError` that drawing then raises. The first reason given counts.
        """
        self._session.stop_all(reason)

    def close(self) -> None:
        """Stop the run and wait until everything is closed.

        A function that hangs is given up after `grace` seconds. A feed that runs on an event loop is only stopped:
        `aclose` waits for its end.
        """
        self._session.close()

    async def aclose(self) -> None:
        """Stop the run and wait until everything is closed. Call it on the loop of the feed."""
        await self._session.aclose()

    def __enter__(self) -> Self:
        """Start on a background thread."""
        self._session.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. A block that is left without an exception has finished the batches that it drew."""
        if kind is None:
            self._session.all_received()
        self.close()

    async def __aenter__(self) -> Self:
        """Start on the running loop."""
        await self._session.begin_async()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. A block that is left without an exception has finished the batches that it drew."""
        if kind is None:
            self._session.all_received()
        await self.aclose()

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return what was delivered so far, as JSON. A feed that is opened with it delivers the rest.

        Any thread or task may call this, between any two batches. A batch that was drawn counts as delivered. What
        is read ahead does not: it is read again. The state has places in the pipeline, and nothing of the data. It
        has a constant number of places, and one for each item that a `shuffle(buffer=)` or another stage holds.

        Returns:
            A dict for `json.dump`, for `open(state=...)` and for `load_state_dict`. It takes up to 4 KB, and up to
            8 bytes for each item that a stage holds.

        Raises:
            StateError: The pipeline has a stage of which no state can be taken.

        Example:
            >>> import asyncfeed as af
            >>> train = af.items(range(10)).shuffle(seed=7).batch(3)
            >>> with train.open() as feed:
            ...     first = next(feed).tolist()
            ...     state = feed.state_dict()
            >>> with train.open(state=state) as feed:
            ...     first, [batch.tolist() for batch in feed]
            ([3, 7, 1], [[6, 4, 0], [9, 5, 8], [2]])
        """
        return self._session.state()

    def load_state_dict(self, state: State) -> None:
        """Go on from a state, as `open(state=...)` does. Call this before the first batch is drawn.

        Args:
            state: What `state_dict` returned, or its JSON.

        Raises:
            StateError: The state is damaged, is of another pipeline, or the feed has begun.
        """
        self._session.load(state)

    # -- looking

    def __len__(self) -> int:
        """Return the number of items that one run delivers. Raises `TypeError` if it is not known."""
        return len(self.pipeline)

    def __bool__(self) -> bool:
        """Return True, also for a feed without items."""
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Feed cannot be pickled or copied, because its threads and queues belong to one run in one process: "
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
        """The item that ended the run: its exception, stage, key, ordinal and epoch. None if no item failed."""
        handoff = self._session.handoff
        return None if handoff is None else handoff.failure

    @property
    def skipped(self) -> list[Failure]:
        """The first thousand items that `on_error="skip"` left out. `stats().skipped` counts all of them."""
        run = self._session.run
        return [] if run is None else list(run.skips.kept)

    def stats(self) -> FeedStats:
        """Return statistics of the run so far: items, bytes, times in seconds, memory in bytes."""
        run = self._session.run
        if run is None:
            return FeedStats(0, 0, 0.0, 0.0, 0.0, 0, 0, 0, self._session.limit())
        return run.stats()

    def explain(self) -> str:
        """Return how the pipeline runs, as text: its stages, the limits of each stage, and the memory limit.

        If it has begun and its consumer waited, the text also names the stages that compute on one core because
        of the GIL, which would use more cores in processes.
        """
        text = self.pipeline.explain(memory_limit=self._session.memory_limit)
        run = self._session.run
        if run is None:
            return text
        from asyncfeed.engine.explain import remarks  # noqa: PLC0415 - only few ask

        return text + remarks(run)


def session_of(feed: Feed[Any]) -> Session:
    """Return the session of a feed, for `Epochs` and the bridges."""
    return feed._session  # noqa: SLF001 - it is no part of the public interface of a feed


def _raise(handoff: Handoff) -> NoReturn:
    failure = handoff.failure
    assert failure is not None
    error = failure.error
    try:
        # Each draw raises from the same point, so the traceback does not grow with every draw.
        raise error.with_traceback(failure.traceback)
    finally:
        del error, failure, handoff  # else the traceback would hold this frame, and this frame the traceback
