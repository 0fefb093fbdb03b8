"""The bounded channel between two steps: a queue of chunks with one producer and one consumer."""

from __future__ import annotations

import asyncio
import sys
from collections import deque

from asyncfeed.engine.constants import CHANNEL_BYTES, CHUNK_ITEMS
from asyncfeed.position import join
from asyncfeed.stages.steps import Chunk


class Channel:
    """A bounded queue of chunks.

    A consumer that waits gets a chunk at once, however short. If the consumer is behind, short chunks are joined
    in the queue. `put` waits while `room` items or 4 MB are queued, so the queue exceeds these bounds by at most
    one chunk. A chunk is taken in the same step of the task that returns it, so a cancelled `get` loses nothing.
    """

    __slots__ = ("_chunks", "_count", "_getter", "_nbytes", "_putter", "most", "room")

    def __init__(self, room: int) -> None:
        self.room = room
        self.most = sys.maxsize
        """Maximum number of items that one `get` returns."""
        self._chunks: deque[Chunk] = deque()
        self._count = 0
        self._nbytes = 0
        self._getter: asyncio.Future[None] | None = None
        self._putter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Return the number of queued chunks."""
        return len(self._chunks)

    async def put(self, chunk: Chunk) -> None:
        """Queue a chunk, and wait until there is room for another one."""
        self.put_nowait(chunk)
        while self._is_full() and not chunk.ends_stream:
            self._putter = asyncio.get_running_loop().create_future()
            try:
                await self._putter
            finally:
                self._putter = None

    def put_nowait(self, chunk: Chunk) -> None:
        """Queue a chunk, even if the queue is full."""
        chunks = self._chunks
        if chunks and not (tail := chunks[-1]).ends and len(tail.items) + len(chunk.items) <= CHUNK_ITEMS:
            if chunk.items:
                tail.positions = join(tail.positions, chunk.positions)
                tail.items.extend(chunk.items)
            tail.boundary = chunk.boundary
            tail.failure = chunk.failure
            tail.nbytes += chunk.nbytes
        else:
            chunks.append(chunk)
        self._count += _places(chunk)
        self._nbytes += chunk.nbytes
        if (getter := self._getter) is not None and not getter.done():
            getter.set_result(None)

    async def get(self) -> Chunk:
        """Wait for the next chunk, and return it or its first `most` items."""
        while not self._chunks:
            self._getter = asyncio.get_running_loop().create_future()
            try:
                await self._getter
            finally:
                self._getter = None
        return self._take()

    async def get_until(self, when: float) -> Chunk | None:
        """Return the next chunk, or None if there is none at this time on the clock of the loop."""
        loop = asyncio.get_running_loop()
        while not self._chunks:
            if loop.time() >= when:
                return None
            getter = self._getter = loop.create_future()
            timer = loop.call_at(when, _wake, getter)
            try:
                await getter
            finally:
                self._getter = None
                timer.cancel()
        return self._take()

    def _take(self) -> Chunk:
        chunk = self._chunks.popleft()
        if len(chunk.items) > self.most:
            self._chunks.appendleft(chunk.split(self.most))
        self._count -= _places(chunk)
        self._nbytes -= chunk.nbytes
        if (putter := self._putter) is not None and not putter.done() and not self._is_full():
            putter.set_result(None)
        return chunk

    def clear(self) -> None:
        """Drop all queued chunks."""
        self._chunks.clear()
        self._count = self._nbytes = 0

    def _is_full(self) -> bool:
        return self._count >= self.room or self._nbytes >= CHANNEL_BYTES


def _wake(getter: asyncio.Future[None]) -> None:
    if not getter.done():
        getter.set_result(None)


def _places(chunk: Chunk) -> int:
    """Return how much room a chunk takes. An end of an epoch takes 1, so that empty epochs are bounded, too."""
    return len(chunk.items) + (chunk.boundary is not None)
