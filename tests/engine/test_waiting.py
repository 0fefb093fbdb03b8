"""What `stats()` says of who waits for whom, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import ASKED, NEITHER, READY, Bridge, Meter


def times(feed: af.Feed[int]) -> tuple[float, float, float]:
    stats = feed.stats()
    return stats.seconds, stats.consumer_waited, stats.producer_waited


@pytest.mark.parametrize(
    ("makes", "trains", "seconds", "trainer_waits", "data_waits"),
    [
        (1.0, 3.0, 31.0, 1.0, 26.0),
        (3.0, 1.0, 31.0, 21.0, 0.0),
        (2.0, 0.0, 20.0, 20.0, 0.0),
        (0.0, 2.0, 20.0, 0.0, 18.0),
    ],
)
def test_the_figures_say_which_side_is_the_slower(
    seed: int, makes: float, trains: float, seconds: float, trainer_waits: float, data_waits: float
) -> None:
    """Ten items: `seconds` are those of the trainer, waiting and busy, also after the pipeline has ended."""

    async def make(x: int) -> int:
        await asyncio.sleep(makes)
        return x

    async def main() -> tuple[float, float, float]:
        async with af.items(range(10)).map(make, concurrency=1).open(memory_limit=1 << 20) as feed:
            async for _ in feed:
                await asyncio.sleep(trains)
        return times(feed)

    assert run_virtual(main, seed=seed) == (seconds, trainer_waits, data_waits)
    assert 10 * trains + trainer_waits == seconds


def test_the_time_begins_with_the_first_draw_and_stands_still_after_the_end(seed: int) -> None:
    """A feed that is opened early, or asked later, is not judged by that."""

    async def main() -> None:
        async with af.items(range(3)).open(memory_limit=1 << 20) as feed:
            await asyncio.sleep(100)
            assert times(feed) == (0, 0, 0)
            async for _ in feed:
                await asyncio.sleep(1)
            await asyncio.sleep(100)
            assert times(feed) == (3, 0, 2)

    run_virtual(main, seed=seed)


def test_the_figures_are_of_now_while_a_wait_lasts(seed: int) -> None:
    """A wait need not end to be seen."""

    async def source() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(100)

    async def main() -> None:
        async with af.items(source).open(memory_limit=1 << 20) as feed:
            await anext(feed)
            task = asyncio.create_task(anext(feed))
            await asyncio.sleep(7)
            assert times(feed) == (7, 7, 0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await asyncio.sleep(5)
            assert times(feed) == (12, 7, 0)

    run_virtual(main, seed=seed)


def test_time_in_which_several_wait_counts_once(seed: int) -> None:
    """So the figure never exceeds the time there was."""

    async def slow(x: int) -> int:
        await asyncio.sleep(1)
        return x

    async def main() -> None:
        async with af.items(range(8)).map(slow, concurrency=1).open(memory_limit=1 << 20) as feed:

            async def draw() -> None:
                async for _ in feed:
                    pass

            await asyncio.gather(draw(), draw(), draw())
        assert times(feed) == (8, 8, 0)

    run_virtual(main, seed=seed)


def test_what_a_bridge_holds_is_ready_until_the_trainer_takes_it(seed: int) -> None:
    """The bridge has drawn all; its trainer has not, and sees the end later."""

    async def main() -> None:
        async with af.items(range(2)).open(memory_limit=1 << 20) as feed:
            await anext(feed)
            bridge = Bridge(feed)
            await anext(feed)
            with pytest.raises(StopAsyncIteration):
                await anext(feed)
            bridge.hold()
            await asyncio.sleep(5)
            bridge.let_go()
            await asyncio.sleep(2)
            bridge.end_seen()
            await asyncio.sleep(9)
        assert times(feed) == (7, 0, 5)

    run_virtual(main, seed=seed)


def test_the_clock_is_read_only_when_something_changes() -> None:
    """A consumer that always finds data costs no reading."""
    readings = []
    meter = Meter(lambda: readings.append(0) or len(readings))
    for state in (READY, READY):
        meter.turn(state)
    assert not readings
    meter.begin()
    for state in (READY, READY, READY, NEITHER, ASKED, ASKED, READY):
        meter.turn(state)
    assert len(readings) == 4
    assert meter.times() == (4, 1, 2)
