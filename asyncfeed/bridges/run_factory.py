"""Starts the runs that a framework iterates: one run for each iteration, one epoch after the other."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncfeed.bridges.run_places import RunPlace, RunPlaces
from asyncfeed.errors import PipelineError
from asyncfeed.feed import session_of
from asyncfeed.sizes import Size, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.bridges.trained import Trained
    from asyncfeed.engine.handoff import Handoff
    from asyncfeed.errors import Failure
    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline


class OpenRun:
    """The run of one iteration: the bridge stops it, asks about it, and reports on the trainer."""

    def __init__(self, feed: Feed[Any], place: RunPlace) -> None:
        self.feed = feed
        self.place = place
        """Where the trainer is, for states."""
        self._session = session_of(feed)
        self.on_stop: Callable[[], None] | None = None
        """Called before the run is stopped."""

    @property
    def failure(self) -> Failure | None:
        """The item that ended the run; None if no item failed."""
        return self.feed.failure

    @property
    def handoff(self) -> Handoff | None:
        """The queue that the run is drawn from; None before the run has begun."""
        return self._session.handoff

    def begin(self) -> None:
        """Begin now, on a background thread.

        A coroutine may call this: the framework blocks its loop in any case.
        """
        self._session.begin_here()

    def stop(self, reason: str) -> None:
        """Stop the run, without waiting."""
        if self.on_stop is not None:
            self.on_stop()
        self.feed.stop(reason)

    def take_ready(self, most: int, nbytes: int) -> list[Any]:
        """Return up to `most` items that are ready, with a total size of up to `nbytes`."""
        return self._session.take_ready(most, nbytes)

    def acknowledge(self, received: int) -> None:
        """Note how many items of this run the trainer has received: see `Session.acknowledge`."""
        self.place.acknowledge(received)

    def note_slow(self, reason: str) -> None:
        """Count that items took a slower path, for `stats`."""
        self._session.note_slow(reason)

    def trainer_ended(self) -> None:
        """Note that the trainer has ended."""
        self._session.trainer_ended()


@dataclass(eq=False, repr=False)
class RunFactory:
    """Makes the runs of a pipeline. Each iteration gets a new run, with the number of the next epoch.

    `method` is the method of `Pipeline` that the user called. Error messages name it.
    """

    pipeline: Pipeline[Any]
    on_open: Callable[[Feed[Any]], None] | None
    memory_limit: Size | None
    method: str = "to_tf"
    trained: Trained | None = None
    signature: Any = field(default=None, init=False)
    places: RunPlaces = field(init=False)
    _begun: list[tuple[OpenRun, Any]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.places = RunPlaces(self.pipeline)
        if self.trained is not None:
            self.track(self.trained)
        if self.memory_limit is not None:  # so that a wrong limit raises at the line that calls the method
            self.memory_limit = parse_bytes(self.memory_limit, self.method)

    def track(self, trained: Trained) -> None:
        """Have the batches of later runs counted that are trained on."""
        if self.trained not in (None, trained):
            raise PipelineError(
                f"{self.method}: this data has a FeedCheckpoint already; make the data anew for `fit`"
            )
        trained.bind(self)
        self.trained = trained

    def peek(self) -> Any:
        """Start the first run now and return its first item. The first iteration uses both."""
        run = self._open()
        self._begun.append((run, None))
        run.begin()
        try:
            first = next(run.feed)
        except StopIteration:
            raise PipelineError(
                f"{self.method}: {self.pipeline!r} has no items to infer a signature from; give output_signature"
            ) from None
        self._begun[0] = (run, [first])
        return first

    def peek_again(self) -> Any:
        """Return the second item of the first run, or None if there is none.

        The first iteration gets both items.
        """
        run, items = self._begun[0]
        try:
            items.append(next(run.feed))
        except Exception:  # noqa: BLE001 - the end or a failure, which the iteration sees at its place
            return None
        return items[1]

    def open(self) -> tuple[OpenRun, Iterator[Any]]:
        """Return the next run, and an iterator of all its items."""
        try:
            run, first = self._begun.pop()
        except IndexError:
            run = self._open()
            return run, run.feed
        if run.handoff is not None:
            run.handoff.restart()
        return run, itertools.chain(first, run.feed)

    def withdraw(self) -> None:
        """Stop the run that `peek` started, if no iteration has used it."""
        while self._begun:
            self._begun.pop()[0].stop("no iteration uses it")

    def _open(self) -> OpenRun:
        epoch, state = self.places.claim()
        feed = self.pipeline.open(memory_limit=self.memory_limit, epoch=epoch, state=state)
        run = OpenRun(feed, self.places.add(feed, epoch))
        if self.trained is not None:
            run.on_stop = self.trained.add_run(run).end
        if self.on_open is not None:
            self.on_open(feed)
        return run
