"""A source that can only be iterated, opened at one of its items: a `skip` right behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import asyncfeed as af
from asyncfeed.stages import Opening, Source
from asyncfeed.testing import run_virtual
from tests.engine.failing import Oops, draw
from tests.engine.outside import threads_ended, until
from tests.searching import SEEDS


def numbers(fails: int | None = None) -> Iterator[int]:
    for number in range(10):
        if number == fails:
            raise Oops(number)
        yield number


async def numbers_later(fails: int | None = None) -> AsyncIterator[int]:
    for number in numbers(fails):
        yield number


class Iterable:
    """Gone through anew for each epoch."""

    def __init__(self, fails: int | None) -> None:
        self.fails = fails

    def __iter__(self) -> Iterator[int]:
        return numbers(self.fails)


class AsyncIterable:
    """The same, async."""

    def __init__(self, fails: int | None) -> None:
        self.fails = fails

    def __aiter__(self) -> AsyncIterator[int]:
        return numbers_later(self.fails)


async def awaited(fails: int | None) -> Iterable:
    return Iterable(fails)


KINDS: dict[str, Callable[[int | None], Any]] = {
    "iterable": Iterable,
    "async iterable": AsyncIterable,
    "generator": lambda fails: lambda: numbers(fails),
    "async generator": lambda fails: lambda: numbers_later(fails),
    "coroutine": lambda fails: lambda: awaited(fails),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def in_the_stream(pipeline: af.Pipeline[int]) -> af.Pipeline[int]:
    """Put a stage before a `skip`, so that the stream drops the items."""
    return pipeline.filter(lambda _: True)


@kinds
@pytest.mark.parametrize("skips", [(3,), (2, 1), (5, 0, 4), (10,), (40,)], ids=str)
def test_it_gives_what_a_stream_gives_that_drops_the_items(kind: str, skips: tuple[int, ...]) -> None:
    """Items keep their ordinals, which their random numbers are made of, in every epoch."""
    source = af.items(KINDS[kind](None))
    results = []
    for pipeline in (source, in_the_stream(source)):
        for count in skips:
            pipeline = pipeline.skip(count)  # noqa: PLW2901
        random = pipeline.map(lambda x, rng: (x, rng.random()), rng=True, seed=1)
        results.append([run_virtual(draw(random.repeat(3)), seed=seed).items for seed in SEEDS])
    opened, streamed = results
    assert opened == streamed
    assert [item for item, _ in opened[0]] == [*range(sum(skips), 10)] * 3


@kinds
@pytest.mark.parametrize("fails", [1, 4])
def test_an_item_that_fails_is_raised_with_its_ordinal_though_it_was_to_be_dropped(kind: str, fails: int) -> None:
    source = af.items(KINDS[kind](fails))
    opened, streamed = (run_virtual(draw(each.skip(3))) for each in (source, in_the_stream(source)))
    assert opened.items == streamed.items == ([] if fails < 3 else [3])
    for drawn in (opened, streamed):
        assert isinstance(drawn.error, Oops)
        assert drawn.failure is not None
        assert drawn.failure.ordinal == fails


@pytest.mark.parametrize("later", [False, True])
def test_a_feed_ends_while_a_source_without_end_drops_items(later: bool) -> None:  # noqa: FBT001
    """On a thread, and on a loop that the iterator would not leave by itself."""
    drawn = 0

    def endless() -> Iterator[int]:
        nonlocal drawn
        while True:
            drawn += 1
            yield 0

    async def endless_later() -> AsyncIterator[int]:
        for number in endless():
            yield number

    async def main() -> None:
        async with af.items(endless_later if later else endless).skip(10**12).open() as feed:
            waiting = asyncio.create_task(anext(feed))
            await until(lambda: drawn > 10_000)
            waiting.cancel()
            await asyncio.wait([waiting])

    asyncio.run(main())
    assert threads_ended()


@dataclass(frozen=True)
class Seekable(Source):
    """Starts where it is told to."""

    method: ClassVar[str] = "seekable"

    def open_at(self, place: int) -> Opening:
        return Opening(lambda: range(place, 10))


def test_a_source_that_can_start_at_an_item_draws_no_item_before_it() -> None:
    drawn = run_virtual(draw(af.Pipeline(Seekable()).skip(7).enumerate().repeat(2)))
    assert drawn.items == [(0, 7), (1, 8), (2, 9)] * 2


def test_explain_says_where_a_source_is_opened() -> None:
    text = af.items(numbers).skip(1000).skip(234).map(abs).explain()
    assert text.splitlines()[0].split("  ") == [
        "items(numbers).skip(1000).skip(234)", "drawn one after the other, from item 1,234 on",
    ]  # fmt: skip
