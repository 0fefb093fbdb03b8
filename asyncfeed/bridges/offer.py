"""What a framework is offered to iterate: the runs of a pipeline, one for each epoch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncfeed.errors import PipelineError
from asyncfeed.feed import session_of
from asyncfeed.sizes import Size, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.engine.handoff import Handoff
    from asyncfeed.errors import Failure
    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline


class OpenRun:
    """The run of one iteration: what a bridge asks of it, and tells it of the trainer, beside its items."""

    def __init__(self, feed: Feed[Any]) -> None:
        self.feed = feed
        self._session = session_of(feed)

    @property
    def failure(self) -> Failure | None:
        """What ended the run, if an item did."""
        return self.feed.failure

    @property
    def handoff(self) -> Handoff | None:
        """Where the run is drawn from, once it has begun."""
        return self._session.handoff

    def begin(self) -> None:
        """Begin now, on a background thread. A coroutine may do so, too: a framework blocks its loop anyhow."""
        self._session.begin_here()

    def stop(self, reason: str) -> None:
        """Stop the run, without waiting."""
        self.feed.stop(reason)

    def take_ready(self, most: int, nbytes: int) -> list[Any]:
        """Return up to `most` items that are there already, and that weigh up to `nbytes` together."""
        return self._session.take_ready(most, nbytes)

    def note_slow(self, reason: str) -> None:
        """Count a slower way that items take, for `stats`."""
        self._session.note_slow(reason)

    def trainer_ended(self) -> None:
        """Note that the trainer is done."""
        self._session.trainer_ended()


@dataclass(eq=False, repr=False)
class Offer:
    """The runs of a pipeline: each iteration gets one of its own, with the next epoch's number.

    `method` is the one of `Pipeline` that was called, which errors name.
    """

    pipeline: Pipeline[Any]
    on_open: Callable[[Feed[Any]], None] | None
    memory_limit: Size | None
    method: str = "to_tf"
    signature: Any = field(default=None, init=False)
    _epochs: Iterator[int] = field(default_factory=itertools.count, init=False)
    _begun: list[tuple[Feed[Any], Any]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.memory_limit is not None:  # a wrong one raises at the line that calls the method
            self.memory_limit = parse_bytes(self.memory_limit, self.method)

    def peek(self) -> Any:
        """Start the first run now and return its first item; the first iteration goes on with both."""
        feed = self._open()
        self._begun.append((feed, None))
        OpenRun(feed).begin()
        try:
            first = next(feed)
        except StopIteration:
            raise PipelineError(
                f"{self.method}: {self.pipeline!r} has no items to infer a signature from; give output_signature"
            ) from None
        self._begun[0] = (feed, [first])
        return first

    def peek_again(self) -> Any:
        """Return the second item, or None if there is none; the first iteration goes on with both."""
        feed, items = self._begun[0]
        try:
            items.append(next(feed))
        except Exception:  # noqa: BLE001 - the end, or a failure: the iteration sees it at its place
            return None
        return items[1]

    def open(self) -> tuple[OpenRun, Iterator[Any]]:
        """Return the next run, and its items from the first."""
        try:
            feed, first = self._begun.pop()
        except IndexError:
            feed = self._open()
            return OpenRun(feed), feed
        run = OpenRun(feed)
        if run.handoff is not None:
            run.handoff.restart()
        return run, itertools.chain(first, feed)

    def withdraw(self) -> None:
        """Stop the run that nobody has gone on with."""
        for feed, _ in self._begun:
            feed.stop("the dataset was dropped")

    def _open(self) -> Feed[Any]:
        feed = self.pipeline.open(memory_limit=self.memory_limit, epoch=next(self._epochs))
        if self.on_open is not None:
            self.on_open(feed)
        return feed
