"""Many feeds in one process: what they share, and that none of them waits for another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.test_weights import Block

MB = 1 << 20
LIMIT = 64 * MB
ALONE = LIMIT // 8 * 7
"""What one feed may use of it if there is no other one."""


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    Block.alive = Block.peak = 0
    af.limits(memory=LIMIT)
    yield
    af.limits(memory="default")


async def awaited(_: int) -> Block:
    await asyncio.sleep(0.01)
    return Block(MB)


def greedy() -> af.Pipeline[Any]:
    """Return a pipeline that makes blocks of 1 MB as fast as it can, and has room for all of them."""
    return af.items(range(10_000)).map(awaited, concurrency=8).prefetch(10_000)


@pytest.mark.parametrize("feeds", [1, 2, 5, 20])
def test_feeds_whose_trainers_sleep_hold_the_limit_together(feeds: int, seed: int) -> None:
    """And the item that is next in each of them. Each had the limit for itself."""

    async def main() -> None:
        opened = [greedy().open() for _ in range(feeds)]
        for feed in opened:
            await anext(feed)
            await asyncio.sleep(5)
        await asyncio.sleep(60)
        assert sum(feed.stats().memory_peak for feed in opened) >= LIMIT // 2
        for feed in opened:
            await feed.aclose()

    run_virtual(main(), seed=seed)
    assert Block.peak <= LIMIT + 2 * feeds * MB
    assert Block.peak >= LIMIT // 2


def test_a_feed_that_begins_late_comes_to_its_end_beside_greedy_ones(seed: int) -> None:
    async def main() -> None:
        async with greedy().open() as first, greedy().open() as second:
            await anext(first)
            await anext(second)
            await asyncio.sleep(60)
            count = 0
            async for item in af.items(range(200)).map(awaited, concurrency=8).batch(2, collate=list):
                del item
                count += 1
            assert count == 100

    run_virtual(main(), seed=seed)


def test_what_a_feed_had_goes_to_the_others_when_it_ends(seed: int) -> None:
    async def main() -> None:
        async with greedy().open() as stays:
            await anext(stays)
            async with greedy().open() as ends:
                await anext(ends)
                await asyncio.sleep(60)
                assert stays.stats().memory_limit < ALONE
            assert stays.stats().memory_limit == ALONE

    run_virtual(main(), seed=seed)


def test_a_feed_with_a_limit_of_its_own_takes_nothing_from_the_others(seed: int) -> None:
    async def main() -> None:
        async with greedy().open() as shares, greedy().open(memory_limit=3 * MB) as own:
            await anext(shares)
            await anext(own)
            await asyncio.sleep(60)
            assert (shares.stats().memory_limit, own.stats().memory_limit) == (ALONE, 3 * MB)
            assert own.stats().memory_peak <= 4 * MB

    run_virtual(main(), seed=seed)


def test_feeds_on_threads_share_it_too() -> None:
    feeds = [af.items(range(300)).map(lambda _: Block(MB)).prefetch(300).open() for _ in range(4)]
    for feed in feeds:
        next(feed)
    for feed in feeds:
        assert sum(1 for _ in feed) == 299
        feed.close()
    assert Block.peak <= LIMIT + 4 * 8 * MB


def test_a_new_limit_holds_for_feeds_that_run(seed: int) -> None:
    async def main() -> None:
        async with greedy().open() as feed:
            await anext(feed)
            await asyncio.sleep(60)
            af.limits(memory=10 * MB)
            for _ in range(80):
                await anext(feed)
                await asyncio.sleep(1)
            gone = Block.alive
            await asyncio.sleep(60)
            assert gone <= 12 * MB
            assert Block.alive <= 12 * MB

    run_virtual(main(), seed=seed)
