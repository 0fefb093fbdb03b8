"""Feeds of all kinds beside each other: each gives what it gives alone, and its end disturbs no other one."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.machine import usable_cores
from asyncfeed.testing import run_virtual
from tests.engine.outside import NAME, threads_ended
from tests.searching import sampled

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Broken(Exception):
    """What a function raises."""


def double(x: Any) -> Any:
    return x * 2


def noise(x: int, rng: np.random.Generator) -> float:
    return x + float(rng.random())


def sleepy(x: int) -> int:
    time.sleep(0.0005)
    return x


async def fetched(x: int) -> int:
    await asyncio.sleep(0.01 * (x % 3))
    return x + 1


def breaks(x: int) -> int:
    if x == 23:
        raise Broken(x)
    return x


def skipped(x: int) -> int:
    if x % 7 == 3:
        raise Broken(x)
    return x


Kind = Callable[[list[str]], af.Pipeline[Any]]
KINDS: dict[str, Kind] = {
    "files": lambda paths: af.files(paths).shuffle(seed=3).load(af.npy).map(double).batch(4),
    "numbers": lambda _: af.items(range(90)).map(double).batch(4),
    "random": lambda _: af.items(range(60)).shuffle(seed=1).map(noise, rng=True).batch(5),
    "slow": lambda _: af.items(range(60)).map(sleepy).batch(6),
    "one at a time": lambda _: af.items(range(60)).map(sleepy, concurrency=1).batch(6),
    "async": lambda _: af.items(range(50)).map(fetched).filter(lambda x: x % 5 > 0).batch(3),
    "children": lambda _: af.items(range(40)).flat_map(lambda x: [x] * (x % 3)).batch(5),
    "stream": lambda _: af.items(lambda: iter(range(50))).map(double).shuffle(buffer=8, seed=2).batch(3),
    "skips": lambda _: af.items(range(50)).map(skipped, on_error="skip", skip_limit=20).batch(4),
    "breaks": lambda _: af.items(range(50)).map(breaks).batch(5),
    "mixed": lambda _: af.mix(af.items(range(30)).map(double), af.items(range(100, 140)), seed=4).batch(4),
}


def drawn(draw: Callable[[], Any]) -> list[Any]:
    """Return the items, and the name of the error at the end if there is one."""
    found: list[Any] = []
    try:
        while True:
            found.append(np.asarray(draw()).tolist())
    except StopIteration:
        pass
    except Broken:
        found.append("Broken")
    return found


async def drawn_on_loop(feed: af.Feed[Any], most: int) -> list[Any]:
    """Return at most so many items, and the name of the error at the end if there is one."""
    found: list[Any] = []
    try:
        while len(found) < most:
            found.append(np.asarray(await anext(feed)).tolist())
    except StopAsyncIteration:
        pass
    except Broken:
        found.append("Broken")
    return found


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    for number in range(40):
        np.save(folder / f"{number:02}.npy", np.full(100, number))
    return sorted(map(str, folder.iterdir()))


@pytest.fixture
def alone(paths: list[str]) -> dict[str, list[Any]]:
    """What each kind gives when no other feed runs."""
    found = {}
    for kind, make in KINDS.items():
        with make(paths).open() as feed:
            found[kind] = drawn(lambda feed=feed: next(feed))
    return found


@pytest.fixture
def little_memory() -> Iterator[None]:
    af.limits(memory=20_000)
    yield
    af.limits(memory="default")


async def use(kind: str, paths: list[str], expected: list[Any], rng: random.Random) -> None:
    """Use a feed in one of the ways in which people do, and check what it gives."""
    pipeline = KINDS[kind](paths)
    most = rng.randint(0, len(expected))
    way = rng.choice(["whole", "whole", "closes", "cancelled", "dropped", "thread", "loop", "resumed"])
    if way == "whole":
        async with pipeline.open() as feed:
            assert await drawn_on_loop(feed, 10**6) == expected
    elif way == "closes":
        async with pipeline.open() as feed:
            assert await drawn_on_loop(feed, most) == expected[:most]
    elif way == "cancelled":
        task = asyncio.ensure_future(use_for_ever(pipeline))
        await asyncio.sleep(rng.random() * 0.02)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, Broken)):
            await task
    elif way == "dropped":
        assert await drawn_on_loop(pipeline.open(), min(most, 2)) == expected[: min(most, 2)]
    elif way == "thread":
        assert await asyncio.to_thread(of_a_thread, pipeline) == expected
    elif way == "loop":
        assert await asyncio.to_thread(asyncio.run, of_another_loop(pipeline)) == expected
    else:
        async with pipeline.open() as feed:
            before = await drawn_on_loop(feed, most)
            if "Broken" in before:
                return
            state = feed.state_dict()
        async with pipeline.open(state=state) as feed:
            assert before + await drawn_on_loop(feed, 10**6) == expected


async def use_for_ever(pipeline: af.Pipeline[Any]) -> None:
    while True:
        async with pipeline.open() as feed:
            async for _ in feed:
                await asyncio.sleep(0.001)


def of_a_thread(pipeline: af.Pipeline[Any]) -> list[Any]:
    with pipeline.open() as feed:
        return drawn(lambda: next(feed))


async def of_another_loop(pipeline: af.Pipeline[Any]) -> list[Any]:
    async with pipeline.open() as feed:
        return await drawn_on_loop(feed, 10**6)


@sampled(8)
@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("case", range(20))
def test_each_of_many_feeds_gives_what_it_gives_alone(
    case: int, virtual: bool, alone: dict[str, list[Any]], paths: list[str], little_memory: None
) -> None:
    """Whatever the others do: end, fail, are cancelled, closed, dropped or resumed, on any loop, with little memory."""
    rng = random.Random(case)

    async def main() -> None:
        kinds = [rng.choice(list(KINDS)) for _ in range(rng.randint(2, 20))]
        uses = [use(kind, paths, alone[kind], random.Random(rng.random())) for kind in kinds]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for each in uses:
                group.create_task(each)

    if virtual:
        run_virtual(main(), seed=case)
    else:
        asyncio.run(main())
    assert threads_ended()


def test_a_feed_that_has_nothing_to_do_has_no_thread() -> None:
    """So a hundred feeds whose trainers are slow have few."""

    async def feed(number: int) -> AsyncIterator[int]:
        async with af.items(range(2000)).map(double).batch(2).open() as opened:
            async for batch in opened:
                yield int(batch[0])
                await asyncio.sleep(0.01)

    async def first_batches(number: int) -> list[int]:
        found: list[int] = []
        async for each in feed(number):
            found.append(each)
            if len(found) == 20:
                return found
        raise AssertionError

    async def main() -> int:
        tasks = [asyncio.ensure_future(first_batches(number)) for number in range(100)]
        most = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.01)
            most = max(most, sum(1 for each in threading.enumerate() if NAME.match(each.name)))
        assert all(task.result() == list(range(0, 80, 4)) for task in tasks)
        return most

    with_cores = 33  # eight, and one for each four feeds
    assert asyncio.run(main()) <= with_cores


def test_context_variables_of_one_feed_are_never_seen_by_another_one() -> None:
    def of_tenant(x: int) -> str:
        before = tenant.get()
        tenant.set(f"{before} {x}")
        return before

    async def train(name: str) -> set[str]:
        tenant.set(name)
        async with af.items(range(300)).map(of_tenant).open() as feed:
            return {each async for each in feed}

    async def main() -> list[set[str]]:
        return await asyncio.gather(*(train(f"tenant {number}") for number in range(8)))

    for number, seen in enumerate(asyncio.run(main())):
        assert all(each == f"tenant {number}" or each.startswith(f"tenant {number} ") for each in seen)


def test_a_feed_says_that_its_calls_waited_for_those_of_others() -> None:
    def compute(x: int) -> int:
        until = time.thread_time() + 0.0005
        while time.thread_time() < until:
            pass
        return x

    async def train(feeds: int, ready: list[int]) -> tuple[af.FeedStats, str]:
        async with af.items(range(10**6)).map(compute).batch(4).open() as feed:
            for _ in range(20):
                await anext(feed)
            ready.append(1)
            while len(ready) < feeds:  # so that all of them run until the last one has its batches
                await anext(feed)
            return feed.stats(), feed.explain()

    async def main(feeds: int) -> list[tuple[af.FeedStats, str]]:
        ready: list[int] = []
        return await asyncio.gather(*(train(feeds, ready) for _ in range(feeds)))

    others = usable_cores() + 9
    said = asyncio.run(main(others + 1))
    assert max(stats.other_feeds for stats, _ in said) >= others // 2
    assert all(stats.turns_waited > 0 for stats, _ in said)
    text = "its calls waited for their turns for {:.2f} s: "
    assert any(text.format(stats.turns_waited) in explained for stats, explained in said)
    ((alone, explained),) = asyncio.run(main(1))
    assert alone.other_feeds == 0
    assert "turns" not in explained
