"""concurrency="auto" makes no more calls than the consumer could need, and as many as it needs; in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import Demand, Shown, Tuner
from tests.searching import sampled

Read = Callable[[int], Awaitable[object]]


def constant() -> Read:
    return lambda _: asyncio.sleep(0.02)


def bimodal() -> Read:
    draws = random.Random(1)
    return lambda _: asyncio.sleep(0.15 if draws.random() < 0.1 else 0.01)


def drifting() -> Read:
    """From 10 ms to 30 ms, over the first 10,000 calls."""
    calls = itertools.count()
    return lambda _: asyncio.sleep(0.01 + min(0.02, next(calls) * 2e-6))


def failing() -> Read:
    """One of ten fails, after 100 ms."""
    draws = random.Random(1)

    async def read(_: int) -> None:
        fails = draws.random() < 0.1
        await asyncio.sleep(0.1 if fails else 0.015)
        if fails:
            raise OSError("not today")

    return read


SECONDS = 0.024
"""What a call of these takes on average, or up to a fifth less."""
READS = [constant, bimodal, drifting, failing]
SIZES = [1, 32, 256, 1024]


class Run:
    """A run over batches of `size`, where a trainer trains on each for the seconds in `steps`.

    It ends when the last step does.
    """

    def __init__(self, read: Read, size: int, steps: list[float], concurrency: Any = "auto") -> None:
        self.read = read
        self.now = self.peak = 0
        """The number of calls in flight, and the highest until now."""
        self.waits: list[float] = []
        """The seconds that the trainer waited for each batch."""
        self.found = self.seconds = 0.0
        run_virtual(lambda: self._train(size, steps, concurrency))

    async def _count(self, x: int) -> int:
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            await self.read(x)
        finally:
            self.now -= 1
        return x

    async def _train(self, size: int, steps: list[float], concurrency: Any) -> None:
        clock = asyncio.get_running_loop().time
        options = {"concurrency": concurrency, "on_error": "skip", "skip_limit": 0.5}
        async with af.items(range(4096)).repeat().map(self._count, **options).batch(size).open() as feed:
            for step in steps:
                before = clock()
                await anext(feed)
                self.waits.append(clock() - before)
                await asyncio.sleep(step)
            self.found = feed.stats().concurrency[0][1]
            self.seconds = clock()


@sampled(4)
@pytest.mark.parametrize("make", READS)
@pytest.mark.parametrize("size", SIZES)
def test_a_trainer_that_needs_16_calls_has_at_most_64_in_flight(make: Any, size: int) -> None:
    """From the first batch on, if a step lasts up to a second; and it waits for the first batches only."""
    step = size * SECONDS / 16
    run = Run(make(), size, [step] * max(12, 5000 // size))
    assert run.peak <= 64 * max(1.0, step)
    assert sum(run.waits[max(1, 64 // size) :]) <= 0.01 * run.seconds + 0.15  # as long as the slowest call


@sampled(2)
@pytest.mark.parametrize("make", READS)
def test_a_trainer_that_needs_150_calls_gets_them(make: Any) -> None:
    """It waits no longer once it has taken a few batches."""
    run = Run(make(), 256, [256 * SECONDS / 150] * 60)
    assert run.peak <= 600
    assert sum(run.waits[20:]) <= 0.02 * run.seconds


@sampled(4)
@pytest.mark.parametrize("make", READS)
@pytest.mark.parametrize("size", SIZES)
def test_a_trainer_that_always_waits_loses_a_second_in_all(make: Any, size: int) -> None:
    """Beside the best fixed number, with the search; so 95 % are reached in 20 s, and more afterwards."""
    steps = [0.0] * (12_288 // size)
    auto, best = Run(make(), size, steps), Run(make(), size, steps, 512)
    assert auto.found == best.found or auto.found >= 256
    assert auto.seconds - best.seconds <= 1.0


@sampled(1)
@pytest.mark.parametrize("size", SIZES)
def test_a_trainer_that_always_waits_gets_95_percent_of_the_best(size: int) -> None:
    """From a store that serves 64 at a time, in runs of 25 s, with the search."""

    def store() -> Read:
        served = asyncio.Semaphore(64)

        async def read(_: int) -> None:
            async with served:
                await asyncio.sleep(0.05)

        return read

    steps = [0.0] * (32_768 // size)
    best = min(Run(store(), size, steps, fixed).seconds for fixed in (64, 128))
    assert best / Run(store(), size, steps).seconds >= 0.95


def test_a_first_batch_that_takes_long_gets_more_calls() -> None:
    """4096 reads of 50 ms take 6.4 s with the 32 calls that it begins with, and at least 0.4 s with 512."""

    def far() -> Read:
        return lambda _: asyncio.sleep(0.05)

    auto, slowest = Run(far(), 4096, [0.0]), Run(far(), 4096, [0.0], 32)
    assert slowest.waits[0] >= 6.4
    assert auto.waits[0] <= 2.5


def test_a_long_first_step_is_forgotten() -> None:
    """The model is compiled in it; afterwards the trainer always waits."""
    steps = [5.0] + [0.0] * 150
    auto, best = Run(constant(), 256, steps), Run(constant(), 256, steps, 512)
    assert auto.found >= 256
    assert sum(auto.waits) - sum(best.waits) <= 0.5


class TestDemand:
    """The measurement itself."""

    def setup_method(self) -> None:
        self.shown = Shown(busy=0.0, taken=0, ready=0, waits=True)
        self.begun = 0
        self.demand = Demand(lambda: self.shown, lambda: self.shown.taken)

    def take(self, batches: int, *, size: int, step: float) -> None:
        """Take as many batches of `size` items, train on each, and come back for the next."""
        for _ in range(batches):
            self.begun += size
            self.demand.sent += size
            self.demand.note(self.begun)
            busy, taken, *_ = self.shown
            self.shown = Shown(busy + step, taken + 1, 0, waits=True)

    def test_before_the_first_batch_it_rises_with_what_was_begun(self) -> None:
        """Nobody knows how long a step lasts: a second is assumed."""
        assert [self.demand.rate(begun) for begun in (0, 100, 5000)] == [0, 100, 5000]

    def test_it_stays_so_during_the_first_step(self) -> None:
        self.take(1, size=100, step=0.0)
        self.shown = self.shown._replace(waits=False)
        assert self.demand.rate(120) == 120

    def test_it_is_the_size_of_a_batch_by_the_time_of_a_step(self) -> None:
        self.take(2, size=100, step=0.5)
        assert self.demand.rate(self.begun) == 200

    def test_a_consumer_that_comes_back_at_once_is_believed_more_each_time(self) -> None:
        rates = []
        for _ in range(4):
            self.take(1, size=100, step=0.0)
            rates.append(self.demand.rate(self.begun))
        assert rates == [100 * n * 16**n for n in (1, 2, 3, 4)]

    def test_steps_that_have_become_shorter_count_soon(self) -> None:
        self.take(50, size=100, step=1.0)
        assert self.demand.rate(self.begun) <= 125
        self.take(16, size=100, step=0.01)
        assert self.demand.rate(self.begun) >= 9_000

    def test_steps_that_have_become_longer_count_soon(self) -> None:
        self.take(50, size=100, step=0.01)
        self.take(17, size=100, step=1.0)
        assert self.demand.rate(self.begun) <= 125

    def test_a_batch_has_as_many_items_as_were_tried_for_it(self) -> None:
        """The calls for items that fail, or are left out, are needed too."""
        self.begun = self.demand.sent = 900  # of which none was good
        self.take(1, size=100, step=0.5)
        assert self.demand.rate(self.begun) == 2000


class TestABoundedSearch:
    """The rule itself, on rates that are exact: 50 items a second with each call."""

    def limits(self, can_take: Callable[[float], float]) -> list[int]:
        """Return the numbers that were used, up to the highest; the consumer could take `can_take(time)` items."""
        now = 0.0
        tuner = Tuner(16, 512, lambda: now, lambda _: can_take(now))
        limits, begun = [16], 0.0
        while now < 3.0:
            now += 0.001
            begun += 50 * tuner.limit * 0.001
            tuner.look(int(begun), now, 0.0)
            if max(limits) < tuner.limit:
                limits.append(tuner.limit)
        return limits

    @pytest.mark.parametrize(
        ("need", "used"), [(10, [16]), (20, [16, 32]), (32, [16, 64]), (300, [16, 64, 256, 512])]
    )
    def test_it_tries_at_most_twice_what_the_consumer_could_take(self, need: int, used: list[int]) -> None:
        assert self.limits(lambda _: 50 * need) == used

    def test_it_goes_on_when_the_consumer_could_take_more(self) -> None:
        assert self.limits(lambda now: 500 if now < 1 else 1000 if now < 2 else 1e6) == [16, 32, 128, 512]
