"""The part of `Pipeline` that opens, iterates and explains it."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from operator import index
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asyncfeed.description import Description
from asyncfeed.errors import PipelineError, StateError
from asyncfeed.sizes import Size, parse_bytes
from asyncfeed.state.saving import Saving, alone, checked

if TYPE_CHECKING:
    from asyncfeed.epochs import Epochs
    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.session import Session

T_co = TypeVar("T_co", covariant=True)

State = dict[str, Any] | str | bytes
"""A checkpoint: a dict, or its JSON."""
GRACE = 5.0
"""Seconds that a function may go on after the feed was stopped, before it is reported and left behind."""


class Running(Description, Generic[T_co]):
    """The part of `Pipeline` that runs a description."""

    __slots__ = ()

    @property
    def _pipeline(self) -> Pipeline[T_co]:
        return self  # type: ignore[return-value] # nothing else derives from this

    def open(
        self,
        *,
        state: State | None = None,
        path: str | PathLike[str] | None = None,
        checkpoint_every: int | timedelta | None = None,
        memory_limit: Size | None = None,
        grace: float = GRACE,
        epoch: int = 0,
        coord: Any = None,
    ) -> Feed[T_co]:
        """Return a feed: one pass over this pipeline, to iterate, watch and stop.

        Args:
            state: What `Feed.state_dict` of an earlier run returned, or its JSON. The feed delivers what that run
                had not delivered. It goes on in the epoch of that run, and `epoch` does not count.
            path: A local file for the state of this run. If it exists, the feed goes on from the state in it, as
                with `state`. The run writes its state there while it goes on, and once more at its end. So the
                same line starts a job and continues it. A batch counts as received when the thread or task that
                drew it asks for the next one, or leaves the `with` block without an exception. So the batch that
                a killed process was training on is delivered again. If the run in the file has delivered
                everything, a `RuntimeWarning` says so. `open` reads the file when it is called. One feed writes a
                file: a second one, in any process, raises `PipelineError` until the first has ended.
            checkpoint_every: How often to write the file: a number of batches, or a `datetime.timedelta`. The
                default is 30 seconds. A thread writes it, so no draw waits for the disk. A write that fails is
                logged as a warning, and the file keeps the state before.
            memory_limit: Limit of all data in flight, in bytes or as text such as "500MB" or "2GiB". Queues,
                reads, reorder buffers and prefetched batches count together. By default, the feeds of a process
                share a quarter of the memory of the machine or the container, at most 1 GiB: see `limits`. An item
                larger than the limit passes alone.
            grace: Seconds to wait at the end of the run for functions that still run and generators that close.
            epoch: The number of this run, if runs follow each other. Pass 0, 1, 2, ... so that each run gets a new
                shuffle and new random numbers, exactly as `repeat` would give. Without it every run repeats epoch
                0. If the pipeline has an endless `repeat`, the run starts at this pass of it. `epochs(n)` counts
                by itself.
            coord: A `Coordinator`, asyncfeed's or TensorFlow's. When it is asked to stop, drawing raises
                `ClosedError`. A failing item stops the coordinator with its exception, and `stop()` stops it
                without an exception. The end of the data and closing the feed do not stop it.

        Example:
            >>> import asyncfeed as af
            >>> with af.items(range(3)).open() as feed:
            ...     next(feed), feed.stats().batches
            (0, 1)
        """
        from asyncfeed.feed import Feed  # noqa: PLC0415 - the description does not need the engine
        from asyncfeed.session import Session  # noqa: PLC0415

        limit = _checked_limit("open", memory_limit, grace, coord)
        epoch = _checked_epoch("open", "epoch", epoch)
        saving = checked("open", path, checkpoint_every, state)
        with alone("open", saving):
            self.source.claim()
            session = Session(
                self._pipeline,
                memory_limit=limit,
                grace=grace,
                epoch=epoch,
                coord=coord,
                state=state,
                saving=saving,
            )
            if saving is not None:
                _go_on(session, saving)
                if session.at_end:
                    _warn_of_end("open", saving)
        return Feed(session)

    def epochs(
        self,
        count: int | None = None,
        *,
        start: int = 0,
        state: State | None = None,
        path: str | PathLike[str] | None = None,
        checkpoint_every: int | timedelta | None = None,
        memory_limit: Size | None = None,
        grace: float = GRACE,
        coord: Any = None,
    ) -> Epochs[T_co]:
        """Return `count` epochs of one run, to iterate one after the other.

        Write `for epoch in train.epochs(3): for batch in epoch: ...`, or both with `async for`.

        Args:
            count: Number of epochs. None has no end.
            start: The number of the first epoch.
            state: What `state_dict` of the feed of an earlier run returned, or its JSON. The first epoch is then
                the rest of the one in which that run was. `count` counts the epochs of that run, too, and `start`
                does not count.
            path: As for `open`. `count` counts the epochs before, as with `state`.
            checkpoint_every: As for `open`.
            memory_limit: As for `open`.
            grace: As for `open`.
            coord: As for `open`.

        Returns:
            The epochs. Each has a `number`, its own order and its own random numbers. If a loop leaves an epoch
            early, the rest of the epoch is skipped. `epochs(...).feed` is the running pipeline.

        Raises:
            PipelineError: The source is an iterator, which can be read only once, and `count` is not 1.

        Order:
            Reading ahead continues across the end of an epoch. An item that fails ends the run, even if it was
            read ahead in an epoch that was left early.

        Example:
            >>> import asyncfeed as af
            >>> train = af.items(range(6)).shuffle(seed=7).batch(3)
            >>> for epoch in train.epochs(2):
            ...     print(epoch.number, [batch.tolist() for batch in epoch])
            0 [[3, 1, 4], [0, 5, 2]]
            1 [[4, 3, 1], [5, 2, 0]]
        """
        from asyncfeed.epochs import Epochs  # noqa: PLC0415 - the description does not need the engine
        from asyncfeed.feed import Feed  # noqa: PLC0415
        from asyncfeed.session import Session  # noqa: PLC0415

        limit = _checked_limit("epochs", memory_limit, grace, coord)
        start = _checked_epoch("epochs", "start", start)
        saving = checked("epochs", path, checkpoint_every, state)
        passes = self._pipeline.repeat(count)
        with alone("epochs", saving):
            self.source.claim()
            session = Session(
                passes,
                memory_limit=limit,
                grace=grace,
                epoch=start,
                epochs_of=self._pipeline,
                coord=coord,
                saving=saving,
            )
            left = 0 if state is None else session.load(state)
            if saving is not None:
                left = _go_on(session, saving)
            start = session.first_run
            more = None if count is None else max(0, count - left)
            if saving is not None and left and more == 0:
                _warn_of_end("epochs", saving)
        return Epochs(Feed(session), more, start + left, self.size())

    def __iter__(self) -> Iterator[T_co]:
        """Run once, on a background thread. Dropping the iterator stops the run.

        Every such run repeats epoch 0, with the same order and random numbers. Use `epochs` for several epochs.
        """
        return self.open()

    def __aiter__(self) -> AsyncIterator[T_co]:
        """Run once, on the running event loop. Dropping the iterator stops the run.

        Every such run repeats epoch 0, with the same order and random numbers. Use `epochs` for several epochs.
        """
        return self.open()

    def explain(self, *, memory_limit: Size | None = None) -> str:
        """Return a text that says how each stage would run, and the memory limit.

        Args:
            memory_limit: As for `open`.
        """
        from asyncfeed.engine.explain import explain  # noqa: PLC0415 - the description does not need the engine

        limit = None if memory_limit is None else parse_bytes(memory_limit, "explain")
        return explain(self._pipeline, limit)


def _go_on(session: Session, saving: Saving) -> int:
    """Begin the run from the state in its file, if there is one. Return how many epochs were left."""
    state = saving.read()
    if state is None:
        return 0
    try:
        return session.load(state)
    except StateError as error:
        raise StateError(f"{saving.path}: {error}. To begin anew, remove the file or pass another path") from None


def _warn_of_end(method: str, saving: Saving) -> None:
    text = f"{method}: the run in {saving.path} has delivered everything, so this one delivers nothing"
    warnings.warn(f"{text}. To begin anew, remove the file or pass another path", RuntimeWarning, stacklevel=3)


def _checked_limit(method: str, memory_limit: Size | None, grace: float, coord: object) -> int | None:
    """Return the memory limit in bytes, None for the default. Raise if an option is not valid."""
    if grace < 0:
        raise PipelineError(f"{method}: grace must not be negative, not {grace}")
    if coord is not None and not (hasattr(coord, "request_stop") and hasattr(coord, "should_stop")):
        raise PipelineError(f"{method}: coord must be a Coordinator, asyncfeed's or TensorFlow's, not {coord!r}")
    return None if memory_limit is None else parse_bytes(memory_limit, method)


def _checked_epoch(method: str, name: str, epoch: int) -> int:
    """Return the number of an epoch as an int, also if it is a NumPy integer. Raise if it is not valid."""
    try:
        number = index(epoch)
    except TypeError:
        raise PipelineError(f"{method}: {name} must be a whole number, not {epoch!r}") from None
    if number < 0:
        raise PipelineError(f"{method}: {name} must not be negative, not {number}")
    return number
