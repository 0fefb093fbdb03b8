"""Eager tasks (Python 3.12): on such a loop `create_task` runs the task at once, up to its first wait."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.tasks import start_task
from asyncfeed.testing import cancel_everywhere, run_virtual
from tests.eager import HAS_EAGER_TASKS, eagerly
from tests.engine.failing import Oops
from tests.engine.witness import BUILDS, Ledger, later

pytestmark = pytest.mark.skipif(not HAS_EAGER_TASKS, reason="eager tasks need Python 3.12")


async def at_once(x: int) -> int:
    return x


def three(x: int) -> list[int]:
    return [x] * 3


async def stream() -> AsyncIterator[int]:
    for x in range(600):
        yield x


NUMBERS = list(range(600))
PIPELINES: dict[str, tuple[af.Pipeline[Any], list[Any]]] = {
    "map that never waits": (af.items(NUMBERS).map(at_once), NUMBERS),
    "map that waits": (af.items(NUMBERS).map(later), NUMBERS),
    "map with a fixed concurrency, batch": (
        af.items(NUMBERS).map(at_once, concurrency=16).batch(8).unbatch(),
        NUMBERS,
    ),
    "two maps": (af.items(NUMBERS).map(at_once).map(at_once), NUMBERS),
    "map on threads, batch": (af.items(NUMBERS).map(abs).batch(8).unbatch(), NUMBERS),
    "map that takes the largest concurrency": (af.items(NUMBERS).map(at_once, concurrency=512), NUMBERS),
    "an async source": (af.items(stream).map(at_once, concurrency=3), NUMBERS),
    "a sync source": (af.items(lambda: iter(NUMBERS)).map(at_once), NUMBERS),
    "filter": (af.items(NUMBERS).filter(later), NUMBERS[1:]),
    "flat_map": (af.items(NUMBERS).flat_map(three, concurrency=5), [x for x in NUMBERS for _ in range(3)]),
    "repeat": (af.items(NUMBERS).map(at_once).repeat(3), 3 * NUMBERS),
    "prefetch": (af.items(NUMBERS).map(at_once).prefetch(2).map(later), NUMBERS),
    "zip": (af.zip(af.items(stream).map(at_once), af.items(NUMBERS).map(at_once)).map(max), NUMBERS),
    "concat": (af.concat(af.items(stream), af.items(NUMBERS).map(at_once)), NUMBERS + NUMBERS),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_pipeline_delivers_the_same_with_eager_tasks(kind: str, seed: int) -> None:
    """Whichever call of the engine starts a task, nothing of it runs inside."""
    pipeline, expected = PIPELINES[kind]

    async def main() -> list[Any]:
        async with pipeline.open() as feed:
            return [int(item) async for item in feed]

    assert run_virtual(eagerly(main), seed=seed) == expected


@pytest.mark.parametrize("concurrency", [1, 2, 512, "auto"])
def test_a_task_that_starts_eagerly_may_draw_first(concurrency: Any, seed: int) -> None:
    """The feed is opened by a bare `async for`, in a task that runs inside `create_task`."""

    async def draw() -> list[int]:
        return [item async for item in af.items(range(40)).map(at_once, concurrency=concurrency)]

    async def main() -> list[int]:
        tasks = [asyncio.create_task(draw()) for _ in range(3)]
        return list(itertools.chain(*await asyncio.gather(*tasks)))

    assert run_virtual(eagerly(main), seed=seed) == 3 * list(range(40))


@pytest.mark.parametrize("kind", ["map", "batch"])
def test_several_eager_consumers_get_each_item_once(kind: str, seed: int) -> None:
    """Some of them are cancelled on the way: what they would have got goes to the others."""

    async def main() -> Counter[int]:
        got: Counter[int] = Counter()
        pipeline = af.items(range(120)).map(later, concurrency=7)
        if kind == "batch":
            pipeline = pipeline.batch(3).unbatch()
        async with pipeline.open() as feed:

            async def consume() -> None:
                async for item in feed:
                    got[int(item)] += 1
                    if item % 4 == 0:
                        await asyncio.sleep(0.001)

            consumers = [asyncio.create_task(consume()) for _ in range(6)]
            for each in consumers[:3]:
                await asyncio.sleep(0.004)
                each.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
        return got

    assert run_virtual(eagerly(main), seed=seed) == Counter(range(120))


@pytest.mark.parametrize("kind", BUILDS)
def test_cancelling_an_eager_consumer_at_any_await_ends_everything(kind: str) -> None:
    """The cancellation reaches the consumer, no task is left, and every source is closed."""
    source = Ledger()

    async def consume() -> None:
        async with BUILDS[kind](source).open() as feed:
            for _ in range(4):
                await anext(feed)

    def check(turn: int) -> None:
        assert source.settled(), f"cancelled at turn {turn}: {source.opened} opened, {source.closed} closed"

    assert cancel_everywhere(lambda: eagerly(consume), check, seed=1) > 10
    assert source.settled()


@pytest.mark.parametrize("fails_at", [0, 1, 37])
def test_a_failure_is_delivered_at_its_place_with_eager_tasks(fails_at: int, seed: int) -> None:
    """Also the very first item, whose function would have run before the stage knew what waits for it."""

    async def fails(x: int) -> int:
        if x == fails_at:
            raise Oops(x)
        return x

    async def main() -> list[int]:
        got = []
        async with af.items(range(60)).map(fails).open() as feed:
            with pytest.raises(Oops):
                async for item in feed:
                    got.append(item)
        return got

    assert run_virtual(eagerly(main), seed=seed) == list(range(fails_at))


class TestStartTask:
    """The one call that starts tasks."""

    @staticmethod
    def run(main: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]], *, eager: bool) -> None:
        async def with_loop() -> None:
            await main(asyncio.get_running_loop())

        run_virtual(eagerly(with_loop) if eager else with_loop)

    @pytest.mark.parametrize("eager", [False, True])
    @pytest.mark.parametrize("grouped", [False, True])
    def test_nothing_runs_before_it_returns(self, eager: bool, grouped: bool) -> None:
        ran: list[str] = []

        async def note() -> None:
            ran.append("task")
            await asyncio.sleep(0)

        async def main(loop: asyncio.AbstractEventLoop) -> None:
            async with asyncio.TaskGroup() as group:
                task = start_task(group if grouped else loop, note(), loop=loop, name="a name")
                ran.append("caller")
                assert task.get_name() == "a name"
                await task
            assert ran == ["caller", "task"]

        self.run(main, eager=eager)

    @pytest.mark.parametrize("eager", [False, True])
    def test_cancelled_before_its_first_step_it_leaves_no_coroutine_behind(self, eager: bool) -> None:
        async def main(loop: asyncio.AbstractEventLoop) -> None:
            coroutine = at_once(1)
            task = start_task(loop, coroutine, loop=loop, name="")
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert coroutine.cr_frame is None  # closed: it does not complain that nobody awaited it

        self.run(main, eager=eager)

    def test_a_factory_that_is_not_eager_is_used_too(self) -> None:
        made: list[str] = []

        async def main(loop: asyncio.AbstractEventLoop) -> None:
            def factory(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
                made.append("task")
                return asyncio.Task(coroutine, loop=loop, **options)

            loop.set_task_factory(factory)
            task = start_task(loop, at_once(1), loop=loop, name="")
            assert await task == 1
            cancelled = start_task(loop, coroutine := at_once(1), loop=loop, name="")
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert coroutine.cr_frame is None
            assert made == ["task", "task"]

        self.run(main, eager=False)


class TestTaskSafe:
    """`threadsafe` of an async generator steps it in tasks of its own."""

    def test_a_generator_that_draws_from_itself_is_told_so(self) -> None:
        """The step is known before it runs, or it would wait for the lock that its own draw holds."""

        async def main() -> None:
            async def draws_from_itself() -> AsyncIterator[int]:
                yield await anext(shared)

            shared = af.threadsafe(draws_from_itself())
            with pytest.raises(ValueError, match="already executing"):
                await anext(shared)

        run_virtual(eagerly(main))

    def test_eager_tasks_share_an_async_generator(self, seed: int) -> None:
        async def main() -> list[int]:
            shared, got = af.threadsafe(stream()), []

            async def consume() -> None:
                async for item in shared:
                    got.append(item)
                    await asyncio.sleep(item % 3 / 1000)

            consumers = [asyncio.create_task(consume()) for _ in range(4)]
            await asyncio.sleep(0.01)
            consumers[0].cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            return got

        assert sorted(run_virtual(eagerly(main), seed=seed)) == NUMBERS
