"""User code that knows what has become of it: sources that are closed, functions that hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncfeed as af


class Stage:
    """A function that says when it has been entered, and stays until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()
        self.left = threading.Event()

    def hang(self, x: int) -> int:
        self.entered.set()
        self.leave.wait(30)
        self.left.set()
        return x

    async def hang_async(self, x: int) -> int:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        return x

    def pass_on(self, x: int) -> int:
        self.entered.set()
        return x

    def draw(self) -> Iterator[int]:
        yield 0
        try:
            yield self.hang(1)
        finally:
            self.left.set()


class Ledger:
    """Sources that say when they are closed."""

    def __init__(self) -> None:
        # Lists, because a number that several threads increase loses some without the GIL.
        self._opened: list[None] = []
        self._closed: list[None] = []

    def sync(self) -> Iterator[int]:
        self._opened.append(None)
        try:
            yield from range(10**9)
        finally:
            self._closed.append(None)

    async def later(self) -> AsyncIterator[int]:
        self._opened.append(None)
        try:
            for x in range(10**9):
                await asyncio.sleep(x % 3 / 1000)
                yield x
        finally:
            await asyncio.sleep(0.01)  # closing may wait, too
            self._closed.append(None)

    @property
    def opened(self) -> int:
        return len(self._opened)

    @property
    def closed(self) -> int:
        return len(self._closed)

    def settled(self) -> bool:
        return self.opened == self.closed


async def later(x: int) -> int:
    await asyncio.sleep((x * 7919) % 13 / 1000)
    return x


def on_thread(x: int) -> int:
    return x


BUILDS: dict[str, Callable[[Ledger], af.Pipeline[Any]]] = {
    "async map": lambda _: af.items(range(10**9)).map(later, concurrency=4),
    "thread map": lambda _: af.items(range(10**9)).map(on_thread, concurrency=2),
    "async source": lambda source: af.items(source.later),
    "sync source": lambda source: af.items(source.sync).map(later, concurrency=3),
    "flat_map": lambda source: af.items(range(10**9)).flat_map(lambda _: source.later(), concurrency=3),
    "lazy flat_map": lambda source: af.items(range(10**9)).flat_map(lambda _: source.sync(), concurrency=3),
    "batch": lambda source: af.items(source.later).batch(3).map(later_batch).prefetch(2),
    "zip": lambda source: af.zip(af.items(source.later), af.items(source.sync)).map(lambda pair: pair[0]),
}


async def later_batch(batch: Any) -> Any:
    await asyncio.sleep(0.001)
    return batch
