"""Copies contents into the caller's memory: a little at once on the loop, more on threads, several in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncfeed.reading.reader import Buffers
from asyncfeed.reading.requests import loop_runs
from asyncfeed.reading.scope import current

ON_LOOP = 1 << 16
"""Bytes that are copied on the loop, in about 10 us. A call on a thread takes the loop longer than that."""
TOGETHER = 1 << 20
"""Bytes that one call on a thread copies. Fewer make more calls; more keep contents in memory for longer."""

Copy = tuple[memoryview, Buffers]


def on_thread(fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
    """Start a call on a thread of the run, or of the loop if there is no run. Return its future."""
    scope = current.get()
    if scope is not None:
        return scope.submit(fn, *args)
    return asyncio.get_running_loop().run_in_executor(None, fn, *args)


class Copies:
    """The copies of one call of a reader. `settle` is awaited in every case, so that nothing is written later."""

    def __init__(self) -> None:
        self._next: list[Copy] = []
        self._bytes = 0
        self._under_way: list[asyncio.Future[Any]] = []

    def add(self, source: memoryview, into: Buffers) -> None:
        """Copy `source` into buffers that are together as large."""
        if len(source) <= ON_LOOP:
            copy([(source, into)])
            return
        self._next.append((source, into))
        self._bytes += len(source)
        if self._bytes >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Start the copies that were collected."""
        if self._next:
            self._under_way.append(on_thread(copy, self._next))
            self._next, self._bytes = [], 0

    async def settle(self) -> None:
        """Wait until all copies that have begun are done. Raise if one failed, or if this was cancelled."""
        cancelled: asyncio.CancelledError | None = None
        while (left := [each for each in self._under_way if not each.done()]) and loop_runs():
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        for each in self._under_way:
            if each.done():
                each.result()


def copy(copies: list[Copy]) -> None:
    """Copy contents into buffers, one after the other."""
    for source, into in copies:
        start = 0
        for buffer in into:
            size = len(buffer)
            buffer[:] = source[start : start + size]
            start += size
