"""An iterable of the batches of a pipeline, as the arrays of another library and on its device.

`Placer` says what becomes of a batch. `PlacedFeed` draws the batches of one run and asks for the next transfer
before it gives out the present batch. It never waits for a batch only in order to transfer it early.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from asyncfeed.bridges.run_factory import OpenRun, RunFactory

if TYPE_CHECKING:
    from asyncfeed.feed import Feed


class Placer(Protocol):
    """Makes the arrays of a batch, in two steps."""

    @property
    def early(self) -> bool:
        """Whether it pays to start the next batch before the present one is given out."""
        ...

    def start(self, batch: Any) -> Any:
        """Start the transfer of a batch. Return what `finish` needs."""
        ...

    def finish(self, started: Any) -> Any:
        """Return the batch of a transfer that was started, for code that runs from now on."""
        ...


class PlacedBatches:
    """The batches of a pipeline, placed by a `Placer`. Each iteration is a run of its own, and the next epoch."""

    def __init__(self, factory: RunFactory, placer: Callable[[], Placer], size: int | None, text: str) -> None:
        self._factory = factory
        self._placer = placer
        self._size = size
        self._text = text

    def __iter__(self) -> PlacedFeed:
        """Start the next epoch, on a background thread. Dropping the iterator stops the run."""
        return iter(self._open())

    def __aiter__(self) -> PlacedFeed:
        """Start the next epoch, on the running event loop. Dropping the iterator stops the run."""
        return self._open()

    def __len__(self) -> int:
        """Return the number of batches of an epoch. Raises `TypeError` if it is not known."""
        if self._size is None:
            raise TypeError(f"the length of {self!r} is not known, or it has no end")
        return self._size

    def __bool__(self) -> bool:
        """Return True, also for a pipeline without items."""
        return True

    def __repr__(self) -> str:
        """Return the call that made this object."""
        return self._text

    def _open(self) -> PlacedFeed:
        return PlacedFeed(self._factory.open()[0], self._placer())


class PlacedFeed(Iterator[Any], AsyncIterator[Any]):
    """One pass over placed batches. As with a `Feed`, the first draw decides where the run runs."""

    def __init__(self, run: OpenRun, placer: Placer) -> None:
        self._run = run
        self._placer = placer
        self._early: deque[_Started] = deque()
        """The batch whose transfer was started early, if there is one."""

    @property
    def feed(self) -> Feed[Any]:
        """The run, with `stats()`, `failure` and `stop()`."""
        return self._run.feed

    def __iter__(self) -> Self:
        """Return the iterator itself. Raises `RuntimeError` in a coroutine, whose loop it would block."""
        iter(self._run.feed)
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        try:
            early = self._taken()
            if early is not None and early.error is not None:
                raise early.error
            started = self._placer.start(next(self._run.feed)) if early is None else early.batch
            if self._placer.early:
                self._start_early()
            return self._placer.finish(started)
        finally:
            del self  # an exception holds this frame, which would hold the feed and so the run

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Any:
        """Return the next batch. None is started early: on the loop of a run, only a draw may take items."""
        try:
            return self._placer.finish(self._placer.start(await anext(self._run.feed)))
        finally:
            del self

    def close(self) -> None:
        """Stop the run and wait until everything is closed."""
        self._early.clear()
        self._run.feed.close()

    async def aclose(self) -> None:
        """Stop the run and wait until everything is closed, on the loop of the run."""
        await self._run.feed.aclose()

    def __enter__(self) -> Self:
        """Start on a background thread."""
        self._run.feed.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        return repr(self._run.feed)

    def _taken(self) -> _Started | None:
        """Take the batch that was started early, if there is one. Several threads may draw at a time."""
        try:
            return self._early.popleft()
        except IndexError:
            return None

    def _start_early(self) -> None:
        """Start the transfer of the next batch, if that batch is ready. A failure is raised by the next draw."""
        for batch in self._run.take_ready(1, sys.maxsize):
            try:
                self._early.append(_Started(self._placer.start(batch), None))
            except Exception as error:  # noqa: BLE001 - it is raised by the next draw
                self._early.append(_Started(None, error))


class _Started(NamedTuple):
    """A batch whose transfer was started early, or the exception of its start."""

    batch: Any
    error: Exception | None
