"""Taking what is ready from a running feed: for bridges, which cross to another framework with several at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import memory_used, take_ready

BIG = 1 << 30


class Item:
    """An item that says how much it weighs."""

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes


def numbers(items: list[Item]) -> list[int]:
    return [each.number for each in items]


def of_sizes(sizes: list[int], *, room: int = 9, error: Exception | None = None) -> af.Pipeline[Item]:
    """Return a pipeline of an item of each size, all of which get ready; it waits for ever then, or fails."""

    async def source() -> AsyncIterator[Item]:
        for number, size in enumerate(sizes):
            yield Item(number, size)
        if error is not None:
            raise error
        await asyncio.Event().wait()

    return af.items(source).prefetch(room)


@pytest.mark.parametrize(
    ("sizes", "limits", "taken"),
    [
        ([1, 1, 1], (9, 9), [0, 1, 2]),
        ([1, 1, 1], (2, 9), [0, 1]),
        ([1, 1, 1], (0, 9), []),
        ([4, 9, 4], (9, 5), [0]),
        ([9, 4, 4], (9, 5), []),
        ([2, 2, 2], (9, 4), [0, 1]),
        ([BIG // 32, BIG // 32, 1], (9, BIG), [0, 1]),
        ([0, 0, 0], (9, 0), [0, 1, 2]),
        ([], (9, 9), []),
    ],
)
def test_it_takes_what_is_there_in_order_as_far_as_it_is_not_much(
    sizes: list[int], limits: tuple[int, int], taken: list[int]
) -> None:
    """At most so many, and at most so many bytes: never more than a sixteenth of the memory limit."""

    async def main() -> None:
        async with of_sizes(sizes).open(memory_limit=BIG) as feed:
            await asyncio.sleep(1)
            before = memory_used(feed)
            assert numbers(take_ready(feed, *limits)) == taken
            stats = feed.stats()
            assert (stats.batches, stats.nbytes) == (len(taken), sum(sizes[: len(taken)]))
            assert before - memory_used(feed) == sum(sizes[: len(taken)])
            rest = [(await anext(feed)).number for _ in sizes[len(taken) :]]
            assert taken + rest == list(range(len(sizes)))

    run_virtual(main)


def test_the_end_and_a_failure_are_for_the_next_that_takes_one() -> None:
    async def main() -> None:
        failing = of_sizes([1, 1], error=ValueError("item 2"))
        for pipeline, raised in ((failing.take(2), StopAsyncIteration), (failing, ValueError)):
            async with pipeline.open() as feed:
                await asyncio.sleep(1)
                assert numbers(take_ready(feed, 9, 9)) == [0, 1]
                assert take_ready(feed, 9, 9) == []
                with pytest.raises(raised):
                    await anext(feed)

    run_virtual(main)


def test_nothing_is_taken_after_a_stop() -> None:
    async def main() -> None:
        async with of_sizes([1, 1]).open() as feed:
            await asyncio.sleep(1)
            feed.stop("enough")
            assert take_ready(feed, 9, 9) == []
            with pytest.raises(af.ClosedError, match="enough"):
                await anext(feed)

    run_virtual(main)


def test_nothing_is_taken_before_the_start() -> None:
    assert take_ready(of_sizes([1, 1]).open(), 9, 9) == []


def test_whoever_waits_for_room_goes_on() -> None:
    """As after taking them one by one."""

    async def main() -> list[list[Any]]:
        async with of_sizes([1] * 6, room=4).open() as feed:
            await asyncio.sleep(1)
            first = numbers(take_ready(feed, 9, 9))
            await asyncio.sleep(1)
            return [first, numbers(take_ready(feed, 9, 9))]

    assert run_virtual(main) == [[0, 1, 2, 3], [4, 5]]
