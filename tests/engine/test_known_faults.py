"""What the search in `test_model.py` has found and nobody has mended yet: each at its smallest.

A test that begins to pass here fails, as it is strict: then it belongs beside the others of its kind, and the
search may draw such pipelines again (`drawn.may_follow`, and what `test_model.py` leaves out).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.failing import Oops, draw, raises_later
from tests.engine.inside import memory_used


async def nothing() -> AsyncIterator[int]:
    """End, after a while."""
    await asyncio.sleep(1)
    for x in ():
        yield x


async def hours(x: int = 1) -> AsyncIterator[int]:
    await asyncio.sleep(7200)
    yield x


async def at_once(x: int) -> int:
    return x


async def itself(x: int) -> AsyncIterator[int]:
    yield x


async def later(x: Any) -> Any:
    await asyncio.sleep(0.001)
    return x


async def three() -> AsyncIterator[int]:
    for x in range(3):
        yield x


async def three_and_fail() -> AsyncIterator[int]:
    for x in range(3):
        yield x
    raise Oops


@pytest.mark.xfail(
    raises=AssertionError,
    reason="a failure that is on its way when a `take` has enough, or with which a longer input of a `zip` ends, goes on",
)
@pytest.mark.parametrize(
    "pipeline",
    [
        af.items(range(20)).filter(raises_later(Oops, 5)).take(4),
        af.items(range(20)).map(raises_later(Oops, 5)).filter(later).take(4),
        af.zip(af.items(three), af.items(three_and_fail), strict=False),
        af.zip(af.items(three_and_fail), af.items(three).map(later), strict=False),
    ],
    ids=["take", "take far from it", "shorter first", "shorter last"],
)
def test_a_failure_that_nobody_wants_is_not_raised_if_epochs_follow(pipeline: af.Pipeline[Any]) -> None:
    """Without a `repeat` it is not, and with one it depends on how far was read ahead."""
    without = run_virtual(draw(pipeline))
    assert without.error is None
    for seed in range(20):
        drawn = run_virtual(draw(pipeline.repeat(2)), seed=seed)
        assert (drawn.items, drawn.error) == (2 * without.items, None)


@pytest.mark.xfail(
    raises=AssertionError,
    reason="`zip` has an item of each input, or its end, before it looks whether the first has ended or failed",
)
@pytest.mark.parametrize("first", [af.items(nothing), af.items(nothing).map(later)])
def test_a_zip_whose_first_input_has_ended_waits_for_no_other(first: af.Pipeline[int]) -> None:
    """Python's own asks the second only if the first has an item; here the run lasts as long as the second likes."""

    async def main() -> float:
        async for _ in af.zip(first, af.items(hours), strict=False):
            pass
        return asyncio.get_running_loop().time()

    assert run_virtual(main) < 10


@pytest.mark.xfail(
    raises=AssertionError,
    reason="what the consumer took last is booked with the next thing the loop does, and what a run drops at its end never",
)
@pytest.mark.parametrize("most", [50, 7])
def test_a_feed_that_is_closed_uses_no_memory(most: int) -> None:
    """`stats().memory_used` is what is in flight now."""

    async def main() -> int:
        async with af.items(range(50)).map(at_once).open() as feed:
            for _ in range(most):
                await anext(feed)
        return feed.stats().memory_used

    assert run_virtual(main) == 0


@pytest.mark.xfail(
    raises=AssertionError,
    reason="`concat` abandons an input whose stream has ended only when all inputs have; until `PickStep` it did at once",
)
def test_an_input_of_a_concat_that_is_cut_is_closed_before_the_next_one_ends() -> None:
    """What is above the `take` reads on until its queues are full, and holds that and what it has opened."""
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


@pytest.mark.xfail(
    raises=AssertionError,
    reason="`abandon` gives back neither what algorithms hold on the way out nor the chunk a flat_map takes items from",
)
@pytest.mark.parametrize(
    "pipeline",
    [
        af.items(range(500)).map(later, concurrency=1).shuffle(buffer=4).take(2),
        af.zip(af.items([1]), af.items(range(200)).map(at_once).flat_map(itself), strict=False),
    ],
    ids=["buffer", "flat_map"],
)
def test_what_ends_early_gives_back_what_it_holds(pipeline: af.Pipeline[Any]) -> None:
    """What follows in a `concat` has the less of the memory limit, the more such inputs went before."""

    async def main() -> int:
        go_on = asyncio.Event()

        async def rest() -> Any:
            await go_on.wait()
            yield 0

        async with af.concat(pipeline, af.items(rest)).open() as feed:
            drawing = asyncio.ensure_future(_all(feed))
            await asyncio.sleep(10)
            used = memory_used(feed)
            go_on.set()
            await drawing
        return used

    assert run_virtual(main) == 0


async def _all(feed: af.Feed[Any]) -> list[Any]:
    return [item async for item in feed]


class Heavy:
    """An item that says how much it weighs."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@pytest.mark.xfail(
    raises=AssertionError,
    reason="a result is expected to weigh as many times its item as those before did, however light these items were",
)
def test_a_light_item_with_a_heavy_result_does_not_make_the_next_seem_huge() -> None:
    """All weigh 30 KB, but for the first item; the run is said to have held 900 MB."""
    items = [Heavy(1), *(Heavy(30_000) for _ in range(20))]
    with af.items(items).map(lambda _: Heavy(30_000)).open(memory_limit=10_000_000) as feed:
        assert len(list(feed)) == 21
        assert feed.stats().memory_peak <= 10_000_000
