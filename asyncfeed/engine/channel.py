"""The bounded channel between two steps: one producer, one consumer, spans of items."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from asyncfeed.stages.steps import END, NO_MARK, Span

SPAN = 128
"""How many items a span holds at most, where a step is free to choose."""

ROOM = 4 << 20
"""How many bytes wait in a channel at most."""


def join(first: Sequence[Any], second: Sequence[Any]) -> Sequence[Any]:
    """Return two runs of ordinals as one; a `range` stays one where the second follows on the first."""
    if isinstance(first, range) and isinstance(second, range) and first.stop == second.start:
        return range(first.start, second.stop)
    return [*first, *second]


class Channel:
    """A bounded queue of spans.

    A consumer that waits gets what there is at once; for one that is behind, short spans grow together in
    the queue. `put` waits while `room` items are queued, or 4 MB, so at most one span more than that is held. A
    span is taken in the step that returns it, so cancelling `get` loses nothing.
    """

    __slots__ = ("_count", "_getter", "_nbytes", "_putter", "_spans", "most", "room")

    def __init__(self, room: int) -> None:
        self.room = room
        self.most = sys.maxsize
        """How many items to give out together."""
        self._spans: deque[Span] = deque()
        self._count = 0
        self._nbytes = 0
        self._getter: asyncio.Future[None] | None = None
        self._putter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Return how many spans wait."""
        return len(self._spans)

    async def put(self, span: Span) -> None:
        """Queue a span, then wait until there is room for another."""
        self.put_nowait(span)
        while self._is_full() and span.mark != END:
            self._putter = asyncio.get_running_loop().create_future()
            try:
                await self._putter
            finally:
                self._putter = None

    def put_nowait(self, span: Span) -> None:
        """Queue a span whatever the bound."""
        spans = self._spans
        if spans and not (tail := spans[-1]).ends and len(tail.items) + len(span.items) <= SPAN:
            if span.items:
                tail.ordinals = join(tail.ordinals, span.ordinals) if tail.items else span.ordinals
                tail.items.extend(span.items)
            tail.mark = span.mark
            tail.failure = span.failure
            tail.nbytes += span.nbytes
        else:
            spans.append(span)
        self._count += _places(span)
        self._nbytes += span.nbytes
        if (getter := self._getter) is not None and not getter.done():
            getter.set_result(None)

    async def get(self) -> Span:
        """Take the next span, or the first `most` items of it, waiting for it where there is none."""
        while not self._spans:
            self._getter = asyncio.get_running_loop().create_future()
            try:
                await self._getter
            finally:
                self._getter = None
        span = self._spans.popleft()
        if len(span.items) > self.most:
            self._spans.appendleft(span.split(self.most))
        self._count -= _places(span)
        self._nbytes -= span.nbytes
        if (putter := self._putter) is not None and not putter.done() and not self._is_full():
            putter.set_result(None)
        return span

    def clear(self) -> None:
        """Drop what is queued."""
        self._spans.clear()
        self._count = self._nbytes = 0

    def _is_full(self) -> bool:
        return self._count >= self.room or self._nbytes >= ROOM


def _places(span: Span) -> int:
    """Return how many places a span takes. An end of an epoch takes one: epochs without items are bounded, too."""
    return len(span.items) + (span.mark != NO_MARK)
