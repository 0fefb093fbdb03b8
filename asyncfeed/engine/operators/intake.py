"""What a thread draws from an iterable on its way to the loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from asyncfeed.engine.closing import Iterating, complain
from asyncfeed.engine.constants import CHUNK_ITEMS
from asyncfeed.engine.operators.step import Gate
from asyncfeed.engine.threads import Threads
from asyncfeed.trees import size_of


class Intake:
    """What a thread draws from an iterable on its way to the loop, bounded by count and by bytes.

    No lock is taken for an item. The thread appends, then looks whether the loop waits. The loop says that it
    waits, then looks once more whether something was appended. So one of the two sees the other. Python without
    the GIL keeps this order, too, because `append` and `rotate` lock the deque. Each counter is written by one
    side only.
    """

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        iterable: Iterable[Any],
        most: int,
        drop: int,
    ) -> None:
        self.gate = Gate()
        self.most = most
        """How many bytes it may hold; as many as the largest item seen, if that is more."""
        self._name = name
        self._loop = loop
        self._threads = threads
        self._iterable = iterable
        self._items: deque[tuple[Any, int]] = deque()
        self._drop = drop
        """How many items are drawn and dropped before the first that is wanted."""
        self._dropped = 0
        self._told = 0
        """How many dropped items `take_dropped` has returned."""
        self._drawn = 0
        self._gone = 0
        self._hungry = False
        self._blocked = False
        self._stopped = False
        self._room = threading.Semaphore(0)

    def draw(self) -> None:
        """Draw until the iterable ends or `stop`, and close it; runs on the thread."""
        failed = False
        try:
            with Iterating(self._iterable, self._name, self._loop) as iterator:
                try:
                    self._draw(iterator)
                except BaseException:
                    failed = True
                    raise
        except BaseException as error:
            # If an item failed, and the run was stopped after that, nobody wants the error, and nothing is wrong.
            if failed or not self._stopped:
                raise
            complain(self._loop, self._name, error)

    def _draw(self, iterator: Iterator[Any]) -> None:
        to_drop = self._drop
        while not self._stopped:
            try:
                item = next(iterator)
            except StopIteration:
                return
            except BaseException:
                if self._stopped:
                    return  # it failed at an item that nobody asks for any more
                raise
            if to_drop:
                to_drop -= 1
                self._dropped += 1
                continue
            nbytes = size_of(item)
            self.most = max(self.most, nbytes)
            self._drawn += nbytes
            self._items.append((item, nbytes))
            del item
            if self._hungry:
                self._hungry = False
                with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self.gate.open)
            while self._full():
                self._blocked = True
                self._items.rotate(0)  # the lock of the deque puts this in order with `let_go`
                if self._full():
                    self._threads.park(self._room)
                self._blocked = False

    @property
    def held(self) -> int:
        """How many bytes were drawn and not let go; at most `most`, which one item may exceed."""
        return min(self._drawn - self._gone, self.most)

    def _full(self) -> bool:
        waiting = self._drawn - self._gone
        return not self._stopped and (len(self._items) >= CHUNK_ITEMS or (waiting > 0 and waiting >= self.most))

    def take(self) -> tuple[list[Any], int]:
        """Take what has been drawn, and what it weighs; `let_go` says when that is booked elsewhere."""
        items: list[Any] = []
        nbytes = 0
        while self._items and len(items) < CHUNK_ITEMS:
            item, size = self._items.popleft()
            items.append(item)
            nbytes += size
        return items, nbytes

    def take_dropped(self) -> int:
        """Return how many items were dropped since the last call."""
        dropped = self._dropped
        told, self._told = self._told, dropped
        return dropped - told

    def let_go(self, nbytes: int) -> None:
        """Make room for as much again."""
        self._gone += nbytes
        self._items.rotate(0)
        if self._blocked:
            self._threads.unpark(self._room)

    async def wait(self) -> None:
        """Wait until something has been drawn, or the thread has ended."""
        self._hungry = True
        self._items.rotate(0)
        if not self._items:
            await self.gate.wait()
        self._hungry = False

    def stop(self) -> None:
        """Let the thread end when it next can."""
        self._stopped = True
        self._threads.unpark(self._room)
