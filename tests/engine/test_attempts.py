"""Calls of async functions that are made again, and calls that are cancelled because they take too long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.failing import draw
from tests.engine.outside import timers_set
from tests.searching import SEEDS

ITEMS = range(40)


class Flaky:
    """Fails for some items, some times; counts the calls, and how many run at a time."""

    def __init__(self, fails: Callable[[int], int], how: Callable[[], BaseException] = ConnectionError) -> None:
        self.fails = fails
        self.how = how
        self.calls: Counter[int] = Counter()
        self.running = self.most = 0

    async def __call__(self, x: int) -> int:
        self.calls[x] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep((x * 7919) % 13 / 1000)
            if self.calls[x] <= self.fails(x):
                raise self.how()
            return -x
        finally:
            self.running -= 1


def drawn(fn: Callable[..., Awaitable[Any]], seed: int | None = None, items: Any = ITEMS, **options: Any) -> Any:
    return run_virtual(draw(af.items(items).map(fn, **options)), seed=seed)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_fails_and_then_succeeds_is_delivered_once_and_in_order(ordered: bool) -> None:  # noqa: FBT001
    for seed in SEEDS:
        flaky = Flaky(lambda x: x % 4)
        result = drawn(flaky, seed, retry=af.Retry(attempts=4), ordered=ordered, concurrency=5)
        assert result.error is None
        assert (result.items if ordered else sorted(result.items, reverse=True)) == [-x for x in ITEMS]
        assert flaky.calls == {x: 1 + x % 4 for x in ITEMS}
        assert flaky.most <= 5


def test_the_last_error_is_raised_itself_and_tells_of_the_attempts_before() -> None:
    flaky = Flaky(lambda x: 9 if x == 3 else 0, lambda: ConnectionResetError("reset by peer"))
    result = drawn(flaky, retry=af.Retry(attempts=3), concurrency=2)
    assert result.items == [0, -1, -2]
    assert type(result.error) is ConnectionResetError
    assert flaky.calls[3] == 3
    notes = "\n".join(result.error.__notes__)
    assert "asyncfeed: attempt 3, " in notes
    assert "before it: 1: ConnectionResetError: reset by peer" in notes
    assert "; 2: ConnectionResetError: reset by peer" in notes
    assert "item number 3" in notes


def test_what_no_attempt_can_mend_is_raised_at_once() -> None:
    flaky = Flaky(lambda x: x == 3, FileNotFoundError)
    result = drawn(flaky, retry=af.Retry())
    assert type(result.error) is FileNotFoundError
    assert flaky.calls[3] == 1
    assert not any("attempt 1" in each for each in result.error.__notes__)


def test_an_item_whose_attempts_all_fail_can_be_skipped() -> None:
    flaky = Flaky(lambda x: 9 if x == 3 else 0)
    result = drawn(flaky, retry=af.Retry(attempts=3), on_error="skip", skip_limit=1)
    assert result.items == [-x for x in ITEMS if x != 3]
    assert flaky.calls[3] == 3


def test_a_call_that_hangs_is_cancelled_and_made_again() -> None:
    calls: Counter[int] = Counter()
    cancelled = []

    async def hangs(x: int) -> int:
        calls[x] += 1
        if x == 3 and calls[x] < 3:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(calls[x])
                raise
        return x

    for seed in SEEDS:
        calls.clear()
        cancelled.clear()
        result = drawn(hangs, seed, timeout=10.0, retry=af.Retry(seconds=100))
        assert (result.items, cancelled, calls[3]) == ([*ITEMS], [1, 2], 3)


def test_a_call_that_hangs_is_an_error_that_says_for_how_long() -> None:
    async def hangs(x: int) -> int:
        return await asyncio.get_running_loop().create_future() if x == 3 else x

    result = drawn(hangs, timeout=2.5)
    assert result.items == [0, 1, 2]
    assert isinstance(result.error, af.TimedOut)
    assert isinstance(result.error, TimeoutError)
    assert result.error.kind == "timeout"
    assert str(result.error) == "no result within 2.5 s"
    assert result.error.attempts == ()


def test_a_call_that_hangs_at_each_attempt_tells_of_them_as_data() -> None:
    async def hangs(x: int) -> int:
        return await asyncio.get_running_loop().create_future()

    result = drawn(hangs, timeout=2.5, retry=af.Retry(attempts=3), concurrency=1)
    assert isinstance(result.error, af.TimedOut)
    assert [each.number for each in result.error.attempts] == [1, 2]
    assert result.error.attempts[0].seconds == 2.5


@pytest.mark.parametrize("times", [[0.5, 9.0, 0.1, 3.0, 30.0, 0.2], [30.0, 0.1], [9.9] * 5, [0.1, 10.1]], ids=str)
def test_each_call_has_its_whole_time_and_no_more(times: list[float]) -> None:
    """One timer serves all calls, whichever began first."""

    async def main() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        ended = []

        async def takes(seconds: float) -> float:
            began = loop.time()
            try:
                await asyncio.sleep(seconds)
            finally:
                ended.append((seconds, round(loop.time() - began, 6)))
            return seconds

        pipeline = af.items(times * 7).map(
            takes, timeout=10.0, concurrency=3, on_error="skip", skip_limit=1000, ordered=False
        )
        async with pipeline.open() as feed:
            assert sorted([x async for x in feed]) == sorted(x for x in times * 7 if x < 10)
        return ended

    for seed in SEEDS:
        assert all(took == min(10.0, seconds) for seconds, took in run_virtual(main, seed=seed))


def test_a_function_that_lets_no_cancellation_out_is_taken_at_its_word() -> None:
    async def stubborn(x: int) -> int:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return -x
        return x

    assert drawn(stubborn, items=range(5), timeout=1.0).items == [0, -1, -2, -3, -4]


def test_a_function_that_turns_the_cancellation_into_an_error_has_that_error() -> None:
    async def turns(x: int) -> int:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise KeyError(x) from None
        return x

    result = drawn(turns, items=range(5), timeout=1.0)
    assert isinstance(result.error, KeyError)


@pytest.mark.parametrize("leave_at", [0.0, 0.05, 0.5, 1.0, 5.0])
def test_a_feed_that_is_left_ends_attempts_delays_and_timers(leave_at: float) -> None:
    """Whether a call runs, waits for its next attempt, or has just come to its deadline."""

    async def fails(x: int) -> int:
        await asyncio.sleep(0.3 if x % 2 else 100)
        raise ConnectionError

    async def main() -> None:
        pipeline = af.items(ITEMS).map(fails, timeout=1.0, retry=af.Retry(attempts=1000, seconds=1e6))
        async with pipeline.open() as feed:
            waiting = asyncio.create_task(anext(feed))
            await asyncio.sleep(leave_at)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert timers_set() == []

    for seed in SEEDS:
        run_virtual(main, seed=seed)


def test_every_attempt_has_the_same_random_numbers() -> None:
    calls: Counter[int] = Counter()
    seen: list[float] = []

    async def augment(x: int, rng: np.random.Generator) -> float:
        calls[x] += 1
        number = float(rng.random())
        seen.append(number)
        if calls[x] == 1:
            raise ConnectionError
        return number

    result = drawn(augment, items=range(3), rng=True, retry=af.Retry(), concurrency=1)
    assert seen[::2] == seen[1::2] == result.items


def test_the_statistics_count_calls_that_were_made_again() -> None:
    calls: Counter[int] = Counter()

    async def fetch(x: int) -> int:
        calls[x] += 1
        if calls[x] <= x % 3:
            raise ConnectionError
        return x

    async def main() -> Any:
        async with af.items(ITEMS).map(fetch, retry=af.Retry(attempts=3)).open() as feed:
            _ = [x async for x in feed]
            return feed.stats().slow_paths

    count = sum(x % 3 for x in ITEMS)
    stage = "map(fetch, retry=Retry(attempts=3))"
    assert run_virtual(main) == ((f"{stage}, called again after ConnectionError", count),)
