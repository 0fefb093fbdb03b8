"""concurrency="auto" finds what a store is worth, in virtual time: within a tenth of the best fixed number."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import deque
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.engine import work_async
from asyncfeed.engine.tuner import Tuner
from asyncfeed.engine.work import WorkStep
from asyncfeed.testing import run_virtual


class Store:
    """Answers after `latency` seconds, spread by `sigma`, now and then after half a second.

    It sends `rate` answers a second at most, works on `limit` requests at a time, and slows down when there are
    more than `crowd`. After `at` requests it becomes what `then` says.
    """

    def __init__(
        self,
        *,
        latency: float = 0.02,
        sigma: float = 0.0,
        tail: float = 0.0,
        rate: float = math.inf,
        limit: float = math.inf,
        crowd: float = math.inf,
        at: int | None = None,
        then: dict[str, float] | None = None,
    ) -> None:
        self.latency, self.sigma, self.tail = latency, sigma, tail
        self.rate, self.limit, self.crowd = rate, limit, crowd
        self._at, self._then = at, then or {}
        self._asked = self._working = 0
        self._free = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._random = random.Random(1)

    async def read(self, key: int) -> int:
        self._asked += 1
        if self._asked == self._at:
            vars(self).update(self._then)
            self._admit()
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._admit()
        await turn
        await asyncio.sleep(self._takes())
        self._working -= 1
        self._admit()
        return key

    def _admit(self) -> None:
        while self._queue and self._working < self.limit:
            self._working += 1
            self._queue.popleft().set_result(None)

    def _takes(self) -> float:
        now = asyncio.get_running_loop().time()
        seconds = 0.5 if self._random.random() < self.tail else self.latency
        seconds *= math.exp(self._random.gauss(0, self.sigma)) * max(1.0, self._working / self.crowd) ** 2
        if self.rate < math.inf:
            self._free = max(now, self._free) + 1 / self.rate
            seconds += self._free - now
        return seconds


def speed(concurrency: Any, count: int, store: dict[str, Any]) -> float:
    """Return how many items a second a store is asked for, over a whole run."""

    async def main() -> float:
        pipeline = af.items(range(count)).map(Store(**store).read, concurrency=concurrency)
        async with pipeline.batch(32).open() as feed:
            got = [item async for batch in feed for item in batch.tolist()]
        assert got == list(range(count))
        return asyncio.get_running_loop().time()

    return count / run_virtual(main)


@pytest.mark.parametrize(
    ("count", "store", "fixed"),
    [
        pytest.param(60_000, {}, [512], id="no limit"),
        pytest.param(40_000, {"latency": 0.2}, [512], id="far away"),
        pytest.param(60_000, {"sigma": 0.5, "tail": 0.01}, [512], id="a long tail"),
        pytest.param(10_000, {"rate": 2000}, [32, 64, 128], id="bandwidth"),
        pytest.param(20_000, {"limit": 100}, [64, 128, 256], id="a request limit"),
        pytest.param(4_000, {"limit": 6}, [4, 8, 16], id="a low request limit"),
        pytest.param(15_000, {"crowd": 40}, [16, 32, 64], id="easily overrun"),
        pytest.param(20_000, {"crowd": 40, "sigma": 0.5}, [16, 32, 64], id="easily overrun, noisy"),
        pytest.param(60_000, {"at": 30_000, "then": {"latency": 0.1}}, [512], id="further away half way"),
        pytest.param(90_000, {"latency": 0.1, "at": 45_000, "then": {"latency": 0.02}}, [512], id="nearer half way"),
        pytest.param(20_000, {"limit": 100, "at": 10_000, "then": {"limit": 20}}, [32, 128], id="a lower limit half way"),
        pytest.param(30_000, {"limit": 20, "at": 5_000, "then": {"limit": 200}}, [32, 256], id="a higher limit half way"),
        pytest.param(15_000, {"rate": 500, "at": 5_000, "then": {"rate": 5000}}, [16, 128], id="more bandwidth half way"),
        pytest.param(30_000, {"crowd": 200, "at": 20_000, "then": {"crowd": 30}}, [32, 256], id="overrun half way"),
    ],
)  # fmt: skip
def test_auto_is_within_a_tenth_of_the_best(count: int, store: dict[str, Any], fixed: list[int]) -> None:
    """`fixed` are the numbers around the best one; the search itself is part of the run."""
    best = max(speed(each, count, store) for each in fixed)
    assert speed("auto", count, store) >= 0.9 * best


@pytest.mark.parametrize("step", [0.0, 1e-4, 1e-3], ids="in {:g} s".format)
def test_a_function_that_never_waits_needs_no_crowd(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty thousand items, on fast and slow machines, and nothing to gain from calling more workers."""
    workers, now = 0, itertools.count(0.0, step)
    call = WorkStep._call

    def counting(self: WorkStep) -> None:
        nonlocal workers
        workers += 1
        call(self)

    async def at_once(item: int) -> int:
        return item

    async def main() -> int:
        async with af.items(range(20_000)).map(at_once).open() as feed:
            return len([item async for item in feed])

    monkeypatch.setattr(WorkStep, "_call", counting)
    monkeypatch.setattr(work_async, "perf_counter", lambda: next(now))
    assert run_virtual(main) == 20_000
    assert workers <= 4


def test_stats_say_what_auto_has_found() -> None:
    """Each stage that calls a function, also two that are written the same, during the run and after it."""

    async def main() -> tuple[tuple[str, int], ...]:
        store = Store(limit=6)
        numbers = af.items(range(4000)).map(store.read)
        async with numbers.map(abs, concurrency=3).map(abs, concurrency=3).batch(8).open() as feed:
            assert [count for _, count in feed.stats().concurrency] == [32, 3, 3]
            _ = [batch async for batch in feed]
        return feed.stats().concurrency

    found, *asked = run_virtual(main)
    assert asked == [("map(abs, concurrency=3)", 3)] * 2
    assert 1 <= found[1] <= 40


class TestTuner:
    """The rule itself, on rates that are exact."""

    @staticmethod
    def drive(tuner: Tuner, rate: Any, seconds: float, *, start: float = 0.0, idle: float = 0.0) -> list[int]:
        """Let callers begin items at `rate(limit)` a second; return the limits that were used."""
        limits, begun, now, rested = [tuner.limit], 0.0, start, 0.0
        while now < start + seconds:
            now += 0.001
            begun += rate(tuner.limit) * 0.001
            rested += idle * tuner.limit * 0.001
            tuner.look(int(begun), now, rested)
            if limits[-1] != tuner.limit:
                limits.append(tuner.limit)
        return limits

    def test_it_grows_in_big_steps_while_that_pays(self) -> None:
        assert self.drive(Tuner(16, 512), lambda limit: 50 * limit, 1.0)[:4] == [16, 64, 256, 512]

    def test_it_returns_to_the_knee(self) -> None:
        limits = self.drive(Tuner(16, 512), lambda limit: 50 * min(limit, 90), 3.0)
        assert limits[:3] == [16, 64, 256]
        assert 90 <= limits[3] <= 110

    def test_it_never_leaves_its_bounds(self) -> None:
        limits = self.drive(Tuner(4, 8), lambda limit: 1000 / limit, 60.0)
        assert set(limits) <= set(range(1, 9))
        assert limits[-1] == 1

    def test_it_learns_nothing_while_its_callers_rest(self) -> None:
        assert self.drive(Tuner(16, 512), lambda limit: 50 * limit, 5.0, idle=0.5) == [16]

    def test_it_shrinks_where_fewer_do_as_much(self) -> None:
        limits = self.drive(Tuner(256, 256), lambda limit: 50 * min(limit, 20), 300.0)
        assert limits[-1] < 60
