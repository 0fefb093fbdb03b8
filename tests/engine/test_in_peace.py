"""What was begun is closed in peace, within the grace, in every way a run can end; and only then is an alarm due."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.conftest import Run
from tests.engine.failing import Oops
from tests.engine.outside import run_tasks


class Cursors:
    """Async generators that wait while they are closed, and functions on threads; all of them noted."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.interrupted: list[BaseException] = []
        self.calls = 0

    async def rows(self) -> AsyncIterator[int]:
        self.opened += 1
        try:
            for x in range(10**9):
                await asyncio.sleep(x % 3 / 1000)
                yield x
        finally:
            try:
                await asyncio.sleep(0)
                await asyncio.sleep(0.02)
            except BaseException as error:
                self.interrupted.append(error)
                raise
            self.closed += 1

    def on_thread(self, x: int) -> int:
        self.calls += 1
        try:
            time.sleep(0.002)
        finally:
            self.calls -= 1
        return x

    def settled(self) -> bool:
        return self.opened > 0 and (self.closed, self.interrupted, self.calls) == (self.opened, [], 0)


def fails(x: Any) -> Any:
    if x == 3:
        raise Oops
    return x


PIPELINES: dict[str, Callable[[Cursors], af.Pipeline[Any]]] = {
    "source": lambda cursors: af.items(cursors.rows),
    "thread map": lambda cursors: af.items(cursors.rows).map(cursors.on_thread),
    "flat_map": lambda cursors: af.items(range(10**9)).flat_map(lambda _: cursors.rows(), concurrency=3),
    "zip": lambda cursors: af.zip(af.items(cursors.rows), af.items(cursors.rows)).map(lambda pair: pair[0]),
    "concat": lambda cursors: af.concat(af.items(cursors.rows).take(2), af.items(cursors.rows)),
}

ENDS: dict[str, Callable[[af.Pipeline[Any]], Any]] = {}


def end(fn: Any) -> Any:
    ENDS[fn.__name__] = fn
    return fn


@end
async def taken(pipeline: af.Pipeline[Any]) -> None:
    async for _ in pipeline.take(3):
        pass


@end
async def taken_in_a_block(pipeline: af.Pipeline[Any]) -> None:
    async with pipeline.take(3).open() as feed:
        async for _ in feed:
            pass


@end
async def zipped_with_less(pipeline: af.Pipeline[Any]) -> None:
    async for _ in af.zip(pipeline, af.items(range(3)).filter(lambda _: True), strict=False):
        pass


@end
async def broken_off(pipeline: af.Pipeline[Any]) -> None:
    async for _ in pipeline:
        break


@end
async def broken_off_a_while_ago(pipeline: af.Pipeline[Any]) -> None:
    await broken_off(pipeline)
    for _ in range(5):
        await asyncio.sleep(0.001)


@end
async def kept(pipeline: af.Pipeline[Any]) -> None:
    asyncio.get_running_loop().kept = feed = pipeline.open()
    await anext(feed)


@end
async def closed(pipeline: af.Pipeline[Any]) -> None:
    feed = pipeline.open()
    await anext(feed)
    await feed.aclose()


@end
async def closed_without_waiting(pipeline: af.Pipeline[Any]) -> None:
    feed = pipeline.open()
    await anext(feed)
    feed.close()


@end
async def failing(pipeline: af.Pipeline[Any]) -> None:
    with pytest.raises(Oops):
        async for _ in pipeline.map(fails):
            pass


@end
async def failing_consumer(pipeline: af.Pipeline[Any]) -> None:
    with pytest.raises(Oops):
        async for _ in pipeline:
            raise Oops


@end
async def consumer_cancelled(pipeline: af.Pipeline[Any]) -> None:
    begun = asyncio.Event()

    async def draw() -> None:
        async for _ in pipeline:
            begun.set()

    task = asyncio.create_task(draw())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])


@end
async def cancelled_twice(pipeline: af.Pipeline[Any]) -> None:
    feed = pipeline.open()
    await anext(feed)
    (task,) = run_tasks()
    closing = asyncio.create_task(feed.aclose())
    for _ in range(4):
        await asyncio.sleep(0.001)
        closing.cancel()
        task.cancel()
    await asyncio.wait([closing])


@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("how", ENDS)
def test_a_generator_closes_in_peace(how: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """`asyncio.run` returns when every `finally` has run and no function of ours runs any more; nothing is logged."""
    cursors = Cursors()
    with caplog.at_level(logging.WARNING):
        asyncio.run(ENDS[how](PIPELINES[kind](cursors)))
    assert cursors.settled(), vars(cursors)
    assert caplog.records == []


@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("how", [how for how in ENDS if how != "kept"])
def test_a_generator_closes_in_peace_on_any_schedule(
    how: str, kind: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The same in an order of its own for each seed; nothing has to be awaited for it."""
    cursors = Cursors()
    with caplog.at_level(logging.WARNING):
        run_virtual(ENDS[how](PIPELINES[kind](cursors)), seed=seed)
    gc.collect()
    assert cursors.settled(), vars(cursors)
    assert caplog.records == []


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_generator_closes_in_peace_on_a_background_thread(kind: str) -> None:
    """A plain `for` that is left, or whose pipeline takes no more."""
    cursors = Cursors()
    for _ in PIPELINES[kind](cursors).take(3):
        pass
    for _ in PIPELINES[kind](cursors):
        break
    for thread in threading.enumerate():
        if thread.name.startswith("asyncfeed"):
            thread.join(10)
    assert cursors.settled(), vars(cursors)


def test_a_generator_that_takes_longer_than_the_grace_is_named_and_cancelled(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """After the grace, not before; and then the run does end."""
    times: list[float] = []

    async def rows() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            times.append(asyncio.get_running_loop().time())
            try:
                await asyncio.Event().wait()
            finally:
                times.append(asyncio.get_running_loop().time())

    async def main() -> None:
        async with af.items(rows).take(1).open(grace=0.05) as feed:
            async for _ in feed:
                pass

    with caplog.at_level(logging.WARNING, "asyncfeed"):
        run(main)
    assert times[1] - times[0] >= 0.049
    (record,) = caplog.records
    assert "0.05 s ago" in record.getMessage()
    assert "items(rows)" in record.getMessage()


def test_a_generators_own_time_out_works_while_it_closes(run: Run) -> None:
    """`asyncio.timeout` cancels the task that closes; that is no affair of the run's."""
    seen: list[str] = []

    async def rows() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                seen.append("timeout")

    async def main() -> None:
        async for _ in af.items(rows).take(1):
            pass
        async for _ in af.items(rows):
            break

    run(main)
    assert seen == ["timeout"] * 2


def test_the_most_natural_test_of_a_user_passes(seed: int) -> None:
    """A plain `async for` to the end, and one that is left, under `run_virtual`."""

    async def double(x: int) -> int:
        await asyncio.sleep(0.1)
        return 2 * x

    async def main() -> list[int]:
        pipeline = af.items(range(10)).map(double, concurrency=4)
        async for _ in pipeline:
            break
        return [x async for x in pipeline]

    assert run_virtual(main, seed=seed) == list(range(0, 20, 2))


def test_a_feed_that_is_kept_is_still_found_by_run_virtual(seed: int) -> None:
    """It was neither left nor closed: that is a leak of the test's."""
    kept = af.items(range(10**9)).open()

    async def main() -> None:
        await anext(kept)

    with pytest.raises(AssertionError, match="1 tasks are left"):
        run_virtual(main, seed=seed)
