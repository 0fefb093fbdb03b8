"""What a framework is offered to iterate: the runs of a pipeline, one for each epoch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncfeed.errors import PipelineError
from asyncfeed.sizes import Size, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline


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
        feed._begin_here()  # noqa: SLF001 - which `next` refuses in a coroutine; a framework's dataset blocks there anyhow
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

    def open(self) -> tuple[Feed[Any], Iterator[Any]]:
        """Return the feed of the next run, and its items from the first."""
        try:
            feed, first = self._begun.pop()
        except IndexError:
            feed = self._open()
            return feed, feed
        if (outlet := feed._outlet()) is not None:  # noqa: SLF001 - for bridges
            outlet.restart()
        return feed, itertools.chain(first, feed)

    def withdraw(self) -> None:
        """Stop the run that nobody has gone on with."""
        for feed, _ in self._begun:
            feed.stop("the dataset was dropped")

    def _open(self) -> Feed[Any]:
        feed = self.pipeline.open(memory_limit=self.memory_limit, epoch=next(self._epochs))
        if self.on_open is not None:
            self.on_open(feed)
        return feed
