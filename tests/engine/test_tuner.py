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
from asyncfeed.testing import run_virtual
from tests.engine.inside import Tuner, turn_clock
from tests.searching import sampled


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


@sampled(4)
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
def test_a_function_that_never_waits_needs_no_crowd(step: float) -> None:
    """Twenty thousand items, on fast and slow machines, and at most three tasks more than with one call at a time."""

    async def at_once(item: int) -> int:
        return item

    async def tasks_made(concurrency: Any) -> int:
        made = 0

        def counting(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            nonlocal made
            made += 1
            return asyncio.Task(coroutine, loop=loop, **options)

        asyncio.get_running_loop().set_task_factory(counting)
        async with af.items(range(20_000)).map(at_once, concurrency=concurrency).open() as feed:
            assert len([item async for item in feed]) == 20_000
        return made

    now = itertools.count(0.0, step)
    with turn_clock(lambda: next(now)):
        assert run_virtual(tasks_made("auto")) <= run_virtual(tasks_made(1)) + 3


def test_stats_say_what_auto_has_found() -> None:
    """Each stage that calls a function, also two that are written the same, during the run and after it."""

    async def main() -> tuple[tuple[str, int], ...]:
        store = Store(limit=6)
        numbers = af.items(range(4000)).map(store.read)
        twice = numbers.map(abs, concurrency=3).prefetch(1).map(abs, concurrency=3)
        async with twice.prefetch(1).map(abs).batch(8).open() as feed:
            assert [count for _, count in feed.stats().concurrency] == [32, 3, 3, 1]
            _ = [batch async for batch in feed]
        return feed.stats().concurrency

    found, *asked = run_virtual(main)
    assert asked == [("map(abs, concurrency=3)", 3), ("map(abs, concurrency=3)", 3), ("map(abs).batch(8)", 1)]
    assert 1 <= found[1] <= 40


class Trainer:
    """Takes batches and trains on each for `step` seconds; counts the calls in flight, and how long it waits."""

    def __init__(self, read: Any, *, concurrency: Any = "auto", size: int = 32, **options: Any) -> None:
        self.read = read
        self.size = size
        self.options = {"concurrency": concurrency, **options}
        self.now = self.peak = 0
        self.peaks: list[int] = []
        """The largest number of calls in flight, in each phase of the run."""
        self.waits: list[float] = []
        """The share of the time that was spent waiting, in each phase."""
        self.rates: list[float] = []
        self.found = 0

    async def _count(self, x: int) -> int:
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            await self.read(x)
        finally:
            self.now -= 1
        return x

    def train(self, *phases: tuple[int, float]) -> Trainer:
        """Train for so many batches with steps of so many seconds, one phase after the other."""

        async def main() -> None:
            clock = asyncio.get_running_loop().time
            pipeline = af.items(range(self.size)).repeat().map(self._count, **self.options).batch(self.size)
            async with pipeline.open() as feed:
                for count, step in phases:
                    started, waited, self.peak = clock(), 0.0, self.now
                    for _ in range(count):
                        before = clock()
                        await anext(feed)
                        waited += clock() - before
                        await asyncio.sleep(step)
                    self.peaks.append(self.peak)
                    self.waits.append(waited / (clock() - started))
                    self.rates.append(count * self.size / (clock() - started))
                self.found = feed.stats().concurrency[0][1]

        run_virtual(main)
        return self


def steady() -> Any:
    return lambda _: asyncio.sleep(0.05)


def bimodal() -> Any:
    draws = random.Random(1)
    return lambda _: asyncio.sleep(0.4 if draws.random() < 0.1 else 0.01)


def tailed() -> Any:
    draws = random.Random(1)
    return lambda _: asyncio.sleep(1.0 if draws.random() < 0.02 else 0.03)


def drifting() -> Any:
    """From a hundredth of a second to a tenth, over the first 15,000 calls."""
    calls = itertools.count()
    return lambda _: asyncio.sleep(0.01 + min(0.09, next(calls) * 6e-6))


def failing() -> Any:
    draws = random.Random(1)

    async def read(_: int) -> None:
        fails = draws.random() < 0.3
        await asyncio.sleep(0.5 if fails else 0.02)
        if fails:
            raise OSError("not today")

    return read


class TestASlowTrainer:
    """A trainer that takes longer than the pipeline is kept busy by few calls: 320 items a second."""

    @sampled(3)
    @pytest.mark.parametrize(
        ("make", "size"), [(steady, 8), (steady, 256), (bimodal, 8), (bimodal, 32), (tailed, 32), (drifting, 32)]
    )
    def test_it_is_kept_busy_and_few_calls_are_in_flight(self, make: Any, size: int) -> None:
        """On average 5 to 32 are needed; a burst at the start is over when half of the batches are trained on."""
        batches = 30_000 // size
        done = Trainer(make(), size=size).train((batches // 2, size / 320), (batches // 2, size / 320))
        assert done.peaks[1] <= 128
        assert done.found <= 64
        assert done.waits[1] <= 0.03

    def test_items_that_fail_slowly_are_calls_too(self) -> None:
        """A third fails after half a second: 75 calls are needed, to get 320 good ones a second."""
        done = Trainer(failing(), on_error="skip", skip_limit=0.9).train((600, 0.1), (600, 0.1))
        assert done.peaks[1] <= 256
        assert done.waits[1] <= 0.05

    def test_a_short_burst_is_all_that_the_first_batch_gets(self) -> None:
        """With batches that the first calls bring, no more are tried."""
        assert max(Trainer(steady()).train((400, 0.1)).peaks) == 32

    def test_it_comes_back_when_the_trainer_is_fast_again(self) -> None:
        """After many slow steps without a reason to have many calls, fast ones get as many as they need."""
        phases = (600, 0.1), (1500, 0.0)
        auto, fixed = Trainer(steady()).train(*phases), Trainer(steady(), concurrency=512).train(*phases)
        assert auto.peaks[0] <= 64 and auto.found == 512
        assert auto.rates[1] >= 0.75 * fixed.rates[1]

    def test_a_trainer_that_pauses_now_and_then_keeps_its_calls(self) -> None:
        """Between the pauses it waits: what is needed there is not given up for them."""
        phases = [(400, 0.0), (1, 30.0)] * 8
        done = Trainer(steady()).train(*phases)
        assert done.found == 512
        assert min(done.rates[6::2]) >= 0.9 * max(done.rates[::2])


class TestTuner:
    """The rule itself, on rates that are exact."""

    def setup_method(self) -> None:
        self.hungry = 0.0

    def tuner(self, start: int, most: int) -> Tuner:
        return Tuner(start, most, lambda: self.hungry)

    def drive(
        self,
        tuner: Tuner,
        rate: Any,
        seconds: float,
        *,
        start: float = 0.0,
        idle: float = 0.0,
        hungry: float = 1.0,
    ) -> list[int]:
        """Let callers begin items at `rate(limit)` a second; return the limits that were used.

        `idle` is the share of the callers' time that they rest, and `hungry` that of its time that the consumer waits.
        """
        limits, begun, now, rested = [tuner.limit], 0.0, start, 0.0
        while now < start + seconds:
            now += 0.001
            begun += rate(tuner.limit) * 0.001
            rested += idle * tuner.limit * 0.001
            self.hungry += hungry * 0.001
            tuner.look(int(begun), now, rested)
            if idle:
                tuner.ease(int(begun), now, rested)
            if limits[-1] != tuner.limit:
                limits.append(tuner.limit)
        return limits

    def test_it_grows_in_big_steps_while_that_pays(self) -> None:
        assert self.drive(self.tuner(16, 512), lambda limit: 50 * limit, 1.0)[:4] == [16, 64, 256, 512]

    def test_it_returns_to_the_knee(self) -> None:
        limits = self.drive(self.tuner(16, 512), lambda limit: 50 * min(limit, 90), 3.0)
        assert limits[:3] == [16, 64, 256]
        assert 90 <= limits[3] <= 110

    def test_it_never_leaves_its_bounds(self) -> None:
        limits = self.drive(self.tuner(4, 8), lambda limit: 1000 / limit, 60.0)
        assert set(limits) <= set(range(1, 9))
        assert limits[-1] == 1

    def test_it_learns_nothing_while_its_callers_rest(self) -> None:
        assert self.drive(self.tuner(16, 512), lambda limit: 50 * limit, 5.0, idle=0.5) == [16]

    def test_it_tries_no_more_while_the_consumer_has_enough(self) -> None:
        assert self.drive(self.tuner(16, 512), lambda limit: 50 * limit, 5.0, hungry=0.04) == [16]

    def test_it_goes_back_to_twice_what_is_at_work_while_the_consumer_has_enough(self) -> None:
        limits = self.drive(self.tuner(256, 256), lambda limit: 400, 60.0, idle=0.9, hungry=0.0)
        assert limits[:2] == [256, 128]
        assert limits[-1] == 1  # nine of ten rest, however few there are

    def test_it_keeps_its_callers_where_the_consumer_waits(self) -> None:
        """They rest because nothing comes in."""
        assert self.drive(self.tuner(256, 256), lambda limit: 400, 60.0, idle=0.9, hungry=0.2) == [256]

    def test_what_was_eased_and_is_needed_is_eased_more_slowly(self) -> None:
        tuner = self.tuner(128, 128)

        def until_eased() -> float:
            begun, rested, now = 0, 0.0, self.now
            before = tuner.limit
            while tuner.limit >= before:
                self.now += 0.001
                begun, rested = begun + 1, rested + 0.9 * tuner.limit * 0.001
                tuner.ease(self.begun + begun, self.now, self.rested + rested)
            self.begun, self.rested = self.begun + begun, self.rested + rested
            return self.now - now

        def until_back() -> None:
            while tuner.limit < 128:
                self.now += 0.001
                self.hungry += 0.001
                self.begun += tuner.limit
                tuner.look(self.begun, self.now, self.rested)

        self.now, self.begun, self.rested = 0.0, 0, 0.0
        first = until_eased()
        until_back()
        assert until_eased() >= 1.9 * first

    def test_it_shrinks_where_fewer_do_as_much(self) -> None:
        limits = self.drive(self.tuner(256, 256), lambda limit: 50 * min(limit, 20), 300.0)
        assert limits[-1] < 60
