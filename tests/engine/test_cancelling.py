"""Cancelling the consumer, wherever it stands: it is cancelled, nothing is lost to others, everything ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import cancel_everywhere, run_virtual
from tests.conftest import Run
from tests.engine.failing import Oops
from tests.engine.inside import handoff_locked
from tests.engine.outside import until
from tests.engine.witness import BUILDS, Ledger, later

# -- cancelling the consumer


@pytest.mark.parametrize("kind", BUILDS)
@pytest.mark.parametrize("seed", range(2))
def test_cancelling_the_consumer_at_any_await_ends_everything(kind: str, seed: int) -> None:
    """The cancellation reaches the consumer, no task is left, and every source is closed."""
    source = Ledger()

    async def consume() -> None:
        async with BUILDS[kind](source).open() as feed:
            for _ in range(4):
                await anext(feed)

    def check(turn: int) -> None:
        assert source.settled(), f"cancelled at turn {turn}: {source.opened} opened, {source.closed} closed"

    assert cancel_everywhere(consume, check, seed=seed) > 10
    assert source.settled()


@pytest.mark.parametrize("kind", BUILDS)
def test_cancelling_a_bare_async_for_ends_everything(kind: str) -> None:
    """Without `async with`, the feed is dropped with the cancelled frame."""
    source = Ledger()

    async def consume() -> None:
        drawn = 0
        async for _ in BUILDS[kind](source):
            drawn += 1
            if drawn == 4:
                return

    async def main() -> None:
        task = asyncio.ensure_future(consume())
        await asyncio.sleep(0.002)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.001)

    for seed in range(10):
        run_virtual(main, seed=seed)
        assert source.settled()


def test_a_cancelled_draw_leaves_the_items_to_the_other_consumers(seed: int) -> None:
    """Of two tasks one is cancelled wherever it stands: the other gets all the rest, in order."""

    async def main() -> None:
        for turns in range(40):
            async with af.items(range(12)).map(later, concurrency=3).open() as feed:
                got: list[int] = []

                async def consume(feed: af.Feed[int] = feed, got: list[int] = got) -> None:
                    async for item in feed:
                        got.append(item)

                one, other = asyncio.ensure_future(consume()), asyncio.ensure_future(consume())
                for _ in range(turns):
                    await asyncio.sleep(0)
                one.cancel()
                await asyncio.wait([one, other])
                assert sorted(got) == list(range(12))

    run_virtual(main, seed=seed)


def test_a_closed_draw_leaves_the_items_to_the_other_consumers(seed: int) -> None:
    """A coroutine that waits for an item, and is closed at any turn instead of being cancelled, loses no wake-up."""

    async def main() -> None:
        for turns in range(40):
            async with af.items(range(12)).map(later, concurrency=3).open() as feed:
                first = feed.__anext__()
                first.send(None)
                others = [asyncio.ensure_future(anext(feed)) for _ in range(12)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                first.close()
                assert sorted(await asyncio.gather(*others)) == list(range(12))

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("woken", [False, True])
def test_the_garbage_collector_may_close_a_draw_inside_the_outlet(woken: bool) -> None:
    """It may come at any allocation, so also while its own thread has the lock."""
    go_on = asyncio.Event()

    async def one() -> Any:
        await go_on.wait()
        yield 7
        await asyncio.Event().wait()

    async def main() -> int:
        async with af.items(one).open() as feed:
            first = feed.__anext__()
            woken_by = first.send(None)
            other = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(0)
            if woken:
                go_on.set()
                await until(woken_by.done)
            with handoff_locked(feed):
                first.close()
            go_on.set()
            return await other

    assert run_virtual(main) == 7


def test_wait_for_on_a_draw_loses_nothing(seed: int) -> None:
    """A draw that is given up is made again, and gets the item the first would have got."""

    async def main() -> list[int]:
        got: list[int] = []
        given_up = 0
        async with af.items(range(30)).map(later, concurrency=1).open() as feed:
            while True:
                try:
                    got.append(await asyncio.wait_for(anext(feed), 0.003))
                except TimeoutError:
                    given_up += 1
                except StopAsyncIteration:
                    assert given_up > 5
                    return got

    assert run_virtual(main, seed=seed) == list(range(30))


def test_nothing_is_kept_of_a_draw_that_was_given_up() -> None:
    """A consumer may look in again and again while nothing comes."""

    async def never() -> Any:
        await asyncio.Event().wait()
        yield 0

    def futures() -> int:
        return sum(type(each) is asyncio.Future for each in gc.get_objects())

    async def main() -> None:
        async with af.items(never).open() as feed:

            async def given_up(times: int) -> int:
                for _ in range(times):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(feed), 0.003)
                gc.collect()
                return futures()

            before = await given_up(3)
            assert await given_up(50) <= before + 3

    run_virtual(main)


def test_cancelling_keeps_the_count_of_uncancel(run: Run) -> None:
    """`asyncio.timeout` around a draw sees its own cancellation, and the task is as before."""

    async def slow(x: int) -> int:
        await asyncio.sleep(0.05)
        return x

    async def main() -> None:
        task = asyncio.current_task()
        async with af.items(range(3)).map(slow).open() as feed:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(feed)
            assert task.cancelling() == 0
            assert await anext(feed) == 0
        assert task.cancelling() == 0

    run(main)


def test_a_failing_stage_cancels_no_task_of_the_users(run: Run) -> None:
    """Neither a task group around the feed nor the other tasks in it are touched (PEP 789)."""

    def fails(x: int) -> int:
        raise Oops(x)

    async def main() -> str:
        done: list[str] = []

        async def bystander() -> None:
            await asyncio.sleep(0.02)
            done.append("bystander")

        async with asyncio.TaskGroup() as group:
            group.create_task(bystander())
            async with af.items([1]).map(fails).open() as feed:
                with pytest.raises(Oops):
                    await anext(feed)
            assert asyncio.current_task().cancelling() == 0
            await asyncio.sleep(0.01)
            done.append("body")
        return " ".join(sorted(done))

    assert run(main) == "body bystander"


def test_a_run_cancelled_before_its_first_step_wakes_its_consumer(run: Run) -> None:
    """As when something cancels all tasks of the loop right after a draw began."""

    async def main() -> None:
        async def draw() -> None:
            async for _ in af.items(range(10**9)):
                pass

        before = asyncio.all_tasks()
        drawing = asyncio.ensure_future(draw())
        before.add(drawing)
        while not (begun := asyncio.all_tasks() - before):
            await asyncio.sleep(0)
        for task in begun:
            task.cancel()
        with pytest.raises(af.ClosedError):
            await drawing

    run(main)


def test_a_loop_that_ends_ends_its_feeds() -> None:
    """`asyncio.run` returning, or cancelled, with a live feed closes its sources."""
    source = Ledger()
    kept: list[af.Feed[Any]] = []

    async def leaves() -> None:
        kept.append(af.zip(af.items(source.later), af.items(source.sync)).open())
        await anext(kept[-1])

    async def is_cancelled() -> None:
        await leaves()
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        await asyncio.Event().wait()

    asyncio.run(leaves())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(is_cancelled())
    assert source.settled()
    for feed in kept:
        with pytest.raises(af.ClosedError):
            next(feed)
