"""An iterable of the batches of a pipeline, as the arrays of another library and on its device.

`Placer` says what becomes of a batch. `PlacedFeed` draws the batches of one run and asks for the next transfer
before it gives out the present batch. It never waits for a batch only in order to transfer it early.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from asyncfeed.bridges.run_factory import OpenRun, RunFactory
from asyncfeed.bridges.run_places import one_leaf

if TYPE_CHECKING:
    from asyncfeed.bridges.run_places import RunPlaces
    from asyncfeed.feed import Feed
    from asyncfeed.running import State


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
    """The batches of a pipeline, placed by a `Placer`. Each iteration is a run of its own, and the next epoch.

    `state_dict` and `load_state_dict` make it a `Stateful`, as `torch.distributed.checkpoint` and `torchdata` call
    an object that is saved with the model.
    """

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

    @property
    def epoch(self) -> int:
        """The number of the epoch in which the last batch was given out, or of the next one if that is over.

        It is 0 at the start. A loop that may go on from a state is `for epoch in range(batches.epoch, epochs)`.
        """
        return self._factory.places.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was given out, as JSON.

        Batches whose transfer was started early do not count. The iteration after `load_state_dict` delivers the
        rest of the epoch, and the one after that the next epoch. After the last batch of an epoch, the rest is
        empty, until the loop has ended. If a loop is left early, the state still has the rest of its epoch.

        Returns:
            A dict with one text, for `torch.save`, `json.dump`, Orbax, or `load_state_dict`. It also fits
            `pipeline.open(state=...)`.

        Raises:
            StateError: Two iterators are open, or the pipeline has a stage of which no state can be taken.
        """
        return one_leaf(self._factory.places.state())

    def load_state_dict(self, state: State) -> None:
        """Go on from a state in the next iteration. Call this before its first batch is drawn.

        Args:
            state: What `state_dict` of these batches, of an iterator of them or of a `Feed` of the same pipeline
                returned, or its JSON. The device and the dtype may differ.

        Raises:
            StateError: The state is damaged, is of another pipeline, or an iterator is open that has begun.
        """
        self._factory.places.load(state)

    def _open(self) -> PlacedFeed:
        return PlacedFeed(self._factory.open()[0], self._placer(), self._factory.places)


class PlacedFeed(Iterator[Any], AsyncIterator[Any]):
    """One pass over placed batches. As with a `Feed`, the first draw decides where the run runs."""

    def __init__(self, run: OpenRun, placer: Placer, places: RunPlaces) -> None:
        self._run = run
        self._placer = placer
        self._places = places
        self._early: deque[_Started] = deque()
        """The batch whose transfer was started early, if there is one."""
        self._numbers = itertools.count(1)
        run.acknowledge(0)  # so a state does not have what is started early

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
            drawn = next(self._run.feed) if early is None else None
            number = next(self._numbers)
            if early is not None and early.error is not None:
                raise early.error
            started = self._placer.start(drawn) if early is None else early.batch
            if self._placer.early:
                self._start_early()
            batch = self._placer.finish(started)
            self._run.acknowledge(number)
        except StopIteration:
            self._run.place.over = True
            raise
        else:
            return batch
        finally:
            del self  # an exception holds this frame, which would hold the feed and so the run

    def __aiter__(self) -> Self:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Any:
        """Return the next batch. None is started early: on the loop of a run, only a draw may take items."""
        try:
            drawn = await anext(self._run.feed)
            number = next(self._numbers)
            batch = self._placer.finish(self._placer.start(drawn))
            self._run.acknowledge(number)
        except StopAsyncIteration:
            self._run.place.over = True
            raise
        else:
            return batch
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

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that this iterator gave out; see `PlacedBatches.state_dict`.

        At the end, nothing of this epoch is left.
        """
        return one_leaf(self._run.place.state())

    def load_state_dict(self, state: State) -> None:
        """Go on from a state. Call this before the first batch is drawn.

        Args:
            state: As for `PlacedBatches.load_state_dict`.

        Raises:
            StateError: The state is damaged, is of another pipeline, or this iterator has begun.
        """
        self._places.load_run(self._run.place, state)

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
