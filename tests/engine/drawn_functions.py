"""What the stages of drawn pipelines call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncfeed.formats import StreamDecoder
from tests.engine.failing import Oops


def double(x: int) -> int:
    return 2 * x


async def waits(x: int) -> int:
    """Wait for a time that reorders what is in flight."""
    await asyncio.sleep((x * 7919) % 13 / 1000)
    return x + 1


async def at_once(x: int) -> int:
    return x + 1


def most(x: int) -> bool:
    return x % 5 != 2


async def thirds(x: int) -> bool:
    await asyncio.sleep((x * 31) % 5 / 1000)
    return x % 3 != 1


def noise(x: int, rng: np.random.Generator) -> int:
    return x + int(rng.integers(50))


async def late_noise(x: int, rng: np.random.Generator) -> int:
    await asyncio.sleep((x * 31) % 5 / 1000)
    return x + int(rng.integers(50))


def copies(x: int) -> list[int]:
    return [x] * ((x + 1) % 4)


def countdown(x: int) -> Iterator[int]:
    yield from range((x + 1) % 5, 0, -1)


async def ticks(x: int) -> Any:
    for tick in range((x + 1) % 3):
        await asyncio.sleep(tick / 1000)
        yield tick


def add(total: int, x: int) -> tuple[int, int]:
    return total + x, total + x


async def add_later(total: int, x: int) -> tuple[int, int]:
    await asyncio.sleep(0)
    return total + x, total + x


@dataclass(frozen=True, repr=False)
class Groups(StreamDecoder[int]):
    """A decoder that yields the children of a number in groups of up to two."""

    name = "groups"
    fn: Callable[[int], Iterable[int]] = copies

    async def in_groups(self, source: Any, /) -> AsyncGenerator[list[int]]:
        await asyncio.sleep(source % 3 / 1000)
        group = []
        try:
            for child in self.fn(source):
                group.append(child)
                if len(group) == 2:
                    yield group
                    group = []
        except Oops:
            yield group
            raise
        yield group


class Fails:
    """Functions that fail for one number in `every`: those with this `rest`."""

    def __init__(self, every: int, rest: int) -> None:
        self.every = every
        self.rest = rest

    def check(self, x: int) -> int:
        if x % self.every == self.rest:
            raise Oops(int(x))
        return x

    async def later(self, x: int) -> int:
        await asyncio.sleep((x * 7919) % 13 / 1000)
        return self.check(x)

    def keeps(self, x: int) -> bool:
        return self.check(x) % 5 != 1

    async def keeps_later(self, x: int) -> bool:
        return await self.later(x) % 5 != 1

    def lists(self, x: int) -> list[int]:
        return copies(self.check(x))

    def yields(self, x: int) -> Iterator[int]:
        """Fail in the middle."""
        yield x + 1
        yield self.check(x)

    async def yields_later(self, x: int) -> Any:
        yield x + 1
        await asyncio.sleep((x * 31) % 5 / 1000)
        yield self.check(x)

    def __repr__(self) -> str:
        return f"Fails({self.every}, {self.rest})"
