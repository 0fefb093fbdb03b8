"""What a framework is offered to iterate: the runs of a pipeline, one for each epoch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from asyncfeed.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline


class Offer:
    """The runs of a pipeline: each iteration gets one of its own, with the next epoch's number."""

    def __init__(
        self,
        pipeline: Pipeline[Any],
        on_open: Callable[[Feed[Any]], None] | None,
        memory_limit: int | None,
    ) -> None:
        self.signature: Any = None
        self._pipeline = pipeline
        self._on_open = on_open
        self._memory_limit = memory_limit
        self._epochs = itertools.count()
        self._begun: list[tuple[Feed[Any], Any]] = []

    def peek(self) -> Any:
        """Start the first run now and return its first item; the first iteration goes on with both."""
        feed = self._open()
        self._begun.append((feed, None))
        try:
            first = next(feed)
        except StopIteration:
            raise PipelineError(
                f"to_tf: {self._pipeline!r} has no items to infer a signature from; give output_signature"
            ) from None
        self._begun[0] = (feed, [first])
        return first

    def open(self) -> tuple[Feed[Any], Iterator[Any]]:
        """Return the feed of the next run, and its items from the first."""
        try:
            feed, first = self._begun.pop()
        except IndexError:
            feed = self._open()
            return feed, feed
        return feed, itertools.chain(first, feed)

    def withdraw(self) -> None:
        """Stop the run that nobody has gone on with."""
        for feed, _ in self._begun:
            feed.stop("the dataset was dropped")

    def _open(self) -> Feed[Any]:
        feed = self._pipeline.open(memory_limit=self._memory_limit, epoch=next(self._epochs))
        if self._on_open is not None:
            self._on_open(feed)
        return feed
