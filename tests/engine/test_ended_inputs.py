"""An input of a merge that has ended, or is not wanted any more: it holds nothing from then on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import memory_guessed, memory_used
from tests.searching import sampled


async def nothing() -> AsyncIterator[int]:
    """End, after a while."""
    await asyncio.sleep(1)
    for x in ():
        yield x


async def hours(x: int = 1) -> AsyncIterator[int]:
    await asyncio.sleep(7200)
    yield x


async def at_once(x: Any) -> Any:
    return x


async def later(x: Any) -> Any:
    await asyncio.sleep(0.001)
    return x


def same(x: Any) -> Any:
    return x


def twice(x: Any) -> list[Any]:
    return [x, x]


def lazily(x: Any) -> Iterator[Any]:
    yield x


async def itself(x: Any) -> AsyncIterator[Any]:
    yield x


async def slowly(x: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(0.001)
    yield x


def many() -> af.Pipeline[int]:
    return af.items(range(500))


HOLDING: dict[str, af.Pipeline[Any]] = {
    "map": many().map(later, concurrency=3),
    "map at once": many().map(at_once),
    "map on threads": many().map(same),
    "filter": many().filter(later),
    "unordered": many().map(later, concurrency=8, ordered=False),
    "buffer": many().map(later, concurrency=1).shuffle(buffer=4),
    "large buffer": many().map(at_once).shuffle(buffer=400),
    "batch": many().map(later).batch(7).unbatch(),
    "prefetch": many().map(later).prefetch(3).map(at_once),
    "list": many().map(at_once).flat_map(twice),
    "lazy": many().map(at_once).flat_map(lazily),
    "async": many().map(at_once).flat_map(itself),
    "slow async": many().map(at_once).flat_map(slowly),
    "iterator": af.items(lambda: iter(range(500))).map(later),
    "async iterator": af.items(lambda: itself(1)).repeat(500).map(later),
    "merge": af.zip(many().map(later), many().map(at_once).flat_map(itself)),
    "merge in a merge": af.concat(af.zip(many().map(later), many().filter(at_once), strict=False), many()).map(
        at_once
    ),
}
ENDING: dict[str, Any] = {
    "take": lambda pipeline: pipeline.filter(lambda _: True).take(2),
    "shorter zip": lambda pipeline: af.zip(af.items([1]), pipeline, strict=False),
    "shorter zip at last": lambda pipeline: af.zip(pipeline, af.items([1]).map(later), strict=False),
    "by itself": lambda pipeline: pipeline,
}


@sampled(80)
@pytest.mark.parametrize("limit", [None, 2000])
@pytest.mark.parametrize("ending", ENDING)
@pytest.mark.parametrize("holding", HOLDING)
def test_what_ends_early_gives_back_what_it_holds(holding: str, ending: str, limit: int | None, seed: int) -> None:
    """What follows in a `concat` has all of the memory limit, however many such inputs went before."""
    pipeline = ENDING[ending](HOLDING[holding])

    async def main() -> int:
        go_on = asyncio.Event()

        async def rest() -> Any:
            await go_on.wait()
            yield 0

        async with af.concat(pipeline, af.items(rest)).open(memory_limit=limit) as feed:
            drawing = asyncio.ensure_future(_all(feed))
            await asyncio.sleep(10)
            used = memory_used(feed) or memory_guessed(feed)
            go_on.set()
            assert (await drawing)[-1] == 0
        return used

    assert run_virtual(main, seed=seed) == 0


async def _all(feed: af.Feed[Any]) -> list[Any]:
    return [item async for item in feed]


def test_an_input_of_a_concat_that_is_cut_is_closed_before_the_next_one_ends() -> None:
    """What is above the `take` would read on until its queues are full, and hold what it has opened."""
    closed: list[float] = []

    async def endless() -> AsyncIterator[int]:
        try:
            for x in itertools.count():
                await asyncio.sleep(0.001)
                yield x
        finally:
            closed.append(asyncio.get_running_loop().time())

    async def main() -> list[int]:
        return [x async for x in af.concat(af.items(endless).filter(later).take(2), af.items(hours))]

    assert run_virtual(main) == [1, 2, 1]
    assert closed[0] < 10


@pytest.mark.parametrize("first", [af.items(nothing), af.items(nothing).map(later)])
def test_a_zip_whose_first_input_has_ended_waits_for_no_other(first: af.Pipeline[int], seed: int) -> None:
    """Python's own asks the second only if the first has an item."""

    async def main() -> float:
        async for _ in af.zip(first, af.items(hours), strict=False):
            pass
        return asyncio.get_running_loop().time()

    assert run_virtual(main, seed=seed) < 10


def test_a_zip_whose_second_input_has_ended_waits_for_no_third() -> None:
    """The first has an item, which is given up."""

    async def main() -> float:
        one, two, three = af.items([1]), af.items(nothing), af.items(hours)
        assert [x async for x in af.zip(one, two, three, strict=False)] == []
        return asyncio.get_running_loop().time()

    assert run_virtual(main) < 10


@pytest.mark.parametrize("most", [50, 7, 1, 0])
def test_a_feed_that_is_closed_uses_no_memory(most: int, seed: int) -> None:
    """`stats().memory_used` is what is in flight now: nothing."""

    async def main() -> int:
        async with af.items(range(50)).map(at_once).open() as feed:
            for _ in range(most):
                await anext(feed)
        return feed.stats().memory_used

    assert run_virtual(main, seed=seed) == 0


@pytest.mark.parametrize("most", [50, 7, 1, 0])
def test_a_feed_of_a_thread_that_is_closed_uses_no_memory(most: int) -> None:
    """The same where a background thread runs it."""
    with af.items(range(50)).map(same).open() as feed:
        for _ in range(most):
            next(feed)
    assert feed.stats().memory_used == 0


def test_what_the_consumer_has_taken_is_not_in_flight() -> None:
    """The loop may have had no turn since."""

    async def main() -> tuple[int, int]:
        async with af.items(range(8)).map(at_once).open() as feed:
            await anext(feed)
            before = feed.stats().memory_used
            for _ in range(7):
                await anext(feed)
            return before, feed.stats().memory_used

    before, after = run_virtual(main)
    assert before > after == 0
