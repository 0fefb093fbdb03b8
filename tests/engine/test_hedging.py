"""Calls beside a slow one: the call that returns first counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.attempts.hedging import MOST_BESIDE, SHARE, Hedging
from asyncfeed.testing import run_virtual
from tests.engine.failing import Drawn, draw
from tests.engine.outside import timers_set
from tests.searching import SEEDS


def drawn(
    fn: Callable[..., Awaitable[Any]], seed: int | None = None, items: Any = range(200), **options: Any
) -> Drawn:
    return run_virtual(draw(af.items(items).map(fn, **options)), seed=seed)


class Tail:
    """A store with a slow tail: a call takes 20 ms, and some calls take a second more."""

    def __init__(self, share: float, seed: int = 0) -> None:
        self.random = Random(seed)
        self.share = share
        self.calls: Counter[int] = Counter()
        self.running: Counter[int] = Counter()
        self.cancelled = 0
        self.took: list[float] = []

    async def __call__(self, x: int) -> int:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.calls[x] += 1
        self.running[x] += 1
        assert self.running[x] <= 1 + MOST_BESIDE
        try:
            slow = self.random.random() < self.share
            await asyncio.sleep(0.02 * self.random.uniform(0.9, 1.1) + (1.0 if slow else 0.0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running[x] -= 1
        self.took.append(loop.time() - began)
        return -x


@pytest.mark.parametrize("hedge", [0.08, "auto"])
def test_a_slow_tail_is_cut_off_for_few_more_calls(hedge: Any) -> None:
    """2 % of the calls take a second more: with calls beside them, the 99th percentile is far below that."""
    count = 3000
    for seed in SEEDS:
        tail = Tail(0.02, seed)
        result = drawn(tail, seed, range(count), hedge=hedge, concurrency=32)
        assert result.items == [-x for x in range(count)]
        assert sum(tail.calls.values()) <= 1.05 * count + 8
        assert 2 <= max(tail.calls.values()) <= 1 + MOST_BESIDE
        assert tail.cancelled == sum(tail.calls.values()) - count, "the call that did not count was cancelled"
        assert sorted(tail.took)[int(0.99 * count)] < 0.15


def test_no_second_call_is_made_while_nobody_knows_what_is_slow() -> None:
    tail = Tail(1.0)
    assert drawn(tail, items=range(20), hedge="auto", concurrency=4).error is None
    assert max(tail.calls.values()) == 1


def test_a_store_that_is_slow_as_a_whole_gets_no_more_than_its_share() -> None:
    """Every call is slow, so every call is worth a second one: only one in twenty gets it."""
    tail = Tail(1.0)
    count = 1000
    assert drawn(tail, items=range(count), hedge=0.1, concurrency=16).error is None
    assert sum(tail.calls.values()) <= (1 + SHARE) * count


def test_a_call_that_began_before_anybody_knew_what_is_slow_is_made_once_more_when_it_is_known() -> None:
    """A short run would otherwise lose the whole time of its first slow call."""
    began: list[float] = []

    async def fetch(x: int) -> int:
        if x == 0:
            began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1000 if x == 0 and len(began) == 1 else 0.02)
        return x

    assert drawn(fetch, items=range(100), hedge="auto", concurrency=8).items == list(range(100))
    assert began[1] - began[0] < 0.2


def test_a_call_is_made_again_if_the_one_beside_it_is_slow_too() -> None:
    began: list[float] = []

    async def fetch(x: int) -> int:
        if x == 100:
            began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1000 if x == 100 and len(began) <= MOST_BESIDE else 0.02)
        return x

    assert drawn(fetch, items=range(200), hedge=0.1, concurrency=8).error is None
    assert [each - began[0] for each in began] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_a_call_that_may_not_be_made_now_is_made_when_enough_others_were() -> None:
    """The share of calls that may be made was used up when it became slow."""
    calls: Counter[int] = Counter()

    async def fetch(x: int) -> int:
        calls[x] += 1
        await asyncio.sleep(1000 if x in {0, 10} and calls[x] == 1 else 0.02)
        return x

    result = drawn(fetch, items=range(400), hedge=0.03, concurrency=3, ordered=False)
    assert sorted(result.items) == list(range(400))
    assert calls[0] == calls[10] == 2


@pytest.mark.parametrize("first", ["returns", "fails", "hangs"])
@pytest.mark.parametrize("second", ["returns", "fails", "hangs"])
def test_whichever_call_ends_first(first: str, second: str) -> None:
    """If the second call fails, the first goes on. If the first fails, that is the outcome of the attempt."""
    calls: Counter[int] = Counter()

    async def fetch(x: int) -> str:
        calls[x] += 1
        how = (first if calls[x] == 1 else second) if x == 30 else "at once"
        number = calls[x]
        if how == "at once":
            return how
        await asyncio.sleep(1000 if how == "hangs" or number > 2 else 2 if number == 1 else 0.5)
        if how == "fails":
            raise ValueError(f"call {number}")
        return f"call {number}"

    result = drawn(fetch, items=range(31), hedge=1.0, timeout=10.0, concurrency=1)
    assert calls[30] == 2
    if second == "returns":
        assert result.items[30:] == ["call 2"]
    elif first == "returns":
        assert result.items[30:] == ["call 1"]
    elif first == "fails":
        assert str(result.error) == "call 1"
    else:
        assert isinstance(result.error, af.TimedOut)


def test_what_a_retry_calls_again_may_be_called_a_second_time_too() -> None:
    calls: Counter[int] = Counter()

    async def fetch(x: int) -> int:
        calls[x] += 1
        if x == 30:
            if calls[x] == 1:
                raise ConnectionError
            await asyncio.sleep(1000 if calls[x] == 2 else 0.1)
        return calls[x]

    result = drawn(fetch, items=range(31), hedge=1.0, retry=af.Retry(), concurrency=1)
    assert result.items[30] == 3


@pytest.mark.parametrize("leave_at", [0.5, 1.0, 1.05, 1.1, 3.0])
def test_a_feed_that_is_left_ends_both_calls(leave_at: float) -> None:
    running = 0

    async def fetch(x: int) -> int:
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(0 if x < 100 else 1000)
        finally:
            running -= 1
        return x

    async def main() -> None:
        async with af.items(range(200)).map(fetch, hedge=1.0, concurrency=3, timeout=1.1).open() as feed:
            for _ in range(100):
                await anext(feed)
            waiting = asyncio.create_task(anext(feed))
            await asyncio.sleep(leave_at)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert running == 0
        assert timers_set() == []

    for seed in SEEDS:
        run_virtual(main, seed=seed)


def test_a_loop_that_was_busy_makes_no_call_slow() -> None:
    """The second call is made after as much time again as the loop was busy for."""
    began: list[float] = []

    async def fetch(x: int) -> int:
        loop = asyncio.get_running_loop()
        if x == 30:
            began.append(loop.time())
            if len(began) == 1:
                loop.call_later(0.5, lambda: setattr(loop, "_now", loop.time() + 3.0))  # a callback takes 3 s
                await asyncio.sleep(1000)
        return x

    assert drawn(fetch, items=range(31), hedge=1.0, concurrency=1).error is None
    assert began[1] - began[0] == pytest.approx(3.5 + 2.5)


def test_a_function_on_threads_cannot_be_called_a_second_time() -> None:
    with pytest.raises(af.PipelineError, match="map: hedge is for async functions"):
        af.items([1]).map(abs, hedge="auto")
    with pytest.raises(af.PipelineError, match='map: hedge must be a number of seconds above 0, or "auto", not 0'):
        af.items([1]).map(asyncio.sleep, hedge=0)


@given(st.lists(st.floats(0.001, 10), min_size=64, max_size=400), st.integers(0, 400))
def test_what_is_slow_lies_above_most_calls(seconds: list[float], calls: int) -> None:
    hedging = Hedging("auto")
    for each in seconds:
        hedging.note(each)
    known = seconds[: len(seconds) // 32 * 32]
    assert sum(each > hedging.delay for each in known) <= 0.05 * len(known)
    for _ in range(calls):
        hedging.begin()
    allowed = 0
    while hedging.allows():
        allowed += 1
    assert allowed <= SHARE * calls
