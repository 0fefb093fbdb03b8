"""What is in flight is bounded: calls by `concurrency`, items by count, everything by bytes."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import VirtualLoop, run_virtual
from tests.engine.inside import DYING
from tests.engine.outside import drawn_at_once


class Gauge:
    """Counts how many are inside at once."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.peak = max(self.peak, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


async def drain(pipeline: af.Pipeline[Any], **options: Any) -> list[Any]:
    async with pipeline.open(**options) as feed:
        return [item async for item in feed]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("asked", [1, 2, 7, 64])
def test_async_calls_reach_exactly_the_asked_concurrency(seed: int, asked: int, ordered: bool) -> None:
    """Never one more, and all of them where there is work."""
    gauge = Gauge()

    async def fetch(x: int) -> int:
        with gauge:
            await asyncio.sleep(1 + (x * 7919 + seed) % 5)
        return x

    got = run_virtual(drain(af.items(range(300)).map(fetch, concurrency=asked, ordered=ordered)), seed=seed)
    assert sorted(got) == list(range(300))
    assert gauge.peak == asked


def test_time_is_that_of_the_asked_concurrency() -> None:
    """100 calls of 1 s, 10 at a time, take 10 s; the first has a moment for itself, to be weighed."""

    async def fetch(x: int) -> int:
        await asyncio.sleep(1)
        return x

    async def main() -> float:
        await drain(af.items(range(100)).map(fetch, concurrency=10))
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == pytest.approx(10.0, abs=0.02)


@pytest.mark.parametrize("asked", [1, 3])
def test_thread_calls_never_exceed_the_asked_concurrency(asked: int) -> None:
    """Threads are counted as calls are."""
    gauge = Gauge()
    meet = threading.Barrier(asked)

    def work(x: int) -> int:
        with gauge:
            if x == 0:
                threading.Event().wait(0.005)  # a slow item, so that groups are of one item from here on
            if x in range(1, asked + 1):  # all must be in at once; the first item goes alone, to be weighed
                meet.wait(timeout=20)
            return x

    assert list(af.items(range(64)).map(work, concurrency=asked)) == list(range(64))
    assert gauge.peak == asked


def test_a_slow_item_does_not_stop_those_behind_it() -> None:
    """The reorder window is not the number of workers."""
    started: list[int] = []

    async def fetch(x: int) -> int:
        started.append(x)
        await asyncio.sleep(1000 if x == 5 else 1)
        return x

    async def main() -> int:
        async with af.items(range(1000)).map(fetch, concurrency=4).open() as feed:
            await anext(feed)
            await asyncio.sleep(500)
            return len(started)

    assert run_virtual(main) == 1000


def test_a_consumer_that_is_behind_stops_the_reading() -> None:
    """Nothing is read far ahead of a consumer that does not come."""
    started: list[int] = []

    async def fetch(x: int) -> int:
        started.append(x)
        await asyncio.sleep(0.001)
        return x

    async def main() -> int:
        async with af.items(range(100_000)).map(fetch, concurrency=4).batch(10).prefetch(2).open() as feed:
            await anext(feed)
            await asyncio.sleep(1000)
            return len(started)

    assert run_virtual(main) < 2000


def test_prefetch_holds_exactly_what_was_asked_for() -> None:
    """`prefetch(3)` lets three batches be ready, not more."""

    async def main() -> int:
        async with af.items(range(1000)).batch(2).prefetch(3).open() as feed:
            await asyncio.sleep(10)
            return len(drawn_at_once(feed))

    assert run_virtual(main) == 3


def test_what_is_there_goes_at_once() -> None:
    """A source that yields once a second delivers once a second, through every stage."""

    async def ticks() -> Any:
        for tick in range(5):
            await asyncio.sleep(1)
            yield tick

    async def plus(x: int) -> int:
        return x + 1

    async def main() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        pipeline = af.items(ticks).map(plus).filter(plus).flat_map(lambda x: [x]).batch(1)
        async with pipeline.open() as feed:
            return [(loop.time(), int(batch[0])) async for batch in feed]

    assert run_virtual(main) == [(float(t), t) for t in range(1, 6)]


def test_a_next_that_blocks_delays_nobody_else() -> None:
    """Items drawn before a `next()` that blocks are delivered while it blocks."""
    go_on = threading.Event()

    def source() -> Any:
        yield from range(10)
        go_on.wait(20)
        yield 10

    with af.items(source).map(lambda x: x).open() as feed:
        first = [next(feed) for _ in range(10)]
        go_on.set()
        assert [*first, *feed] == list(range(11))


class Big:
    """A megabyte that can be counted."""

    alive = 0
    peak = 0
    lock = threading.RLock()  # an object may die within it

    def __init__(self) -> None:
        self.nbytes = 1 << 20
        with Big.lock:
            Big.alive += 1
            Big.peak = max(Big.peak, Big.alive)
        weakref.finalize(self, Big.gone)

    @classmethod
    def gone(cls) -> None:
        with cls.lock:
            cls.alive -= 1


def _async_map() -> af.Pipeline[Any]:
    async def make(_: int) -> Big:
        await asyncio.sleep(0)
        return Big()

    return af.items(range(200)).map(make, concurrency=16)


def _thread_map() -> af.Pipeline[Any]:
    return af.items(range(200)).map(lambda _: Big(), concurrency=8)


def _two_maps() -> af.Pipeline[Any]:
    async def same(x: Big) -> Big:
        await asyncio.sleep(0)
        return x

    return _thread_map().map(same, concurrency=8).prefetch(100)


def _source() -> af.Pipeline[Any]:
    return af.items(lambda: (Big() for _ in range(200)))


def _async_source() -> af.Pipeline[Any]:
    async def make() -> Any:
        for _ in range(200):
            yield Big()

    return af.items(make).prefetch(100)


def _flat() -> af.Pipeline[Any]:
    return af.items(range(20)).flat_map(lambda _: (Big() for _ in range(10)))


def _merged() -> af.Pipeline[Any]:
    return af.concat(_async_map(), _thread_map())


@pytest.mark.parametrize("make", [_async_map, _thread_map, _two_maps, _source, _async_source, _flat, _merged])
@pytest.mark.parametrize("limit", [4, 10])
def test_nothing_exceeds_the_memory_limit(make: Callable[[], af.Pipeline[Any]], limit: int) -> None:
    """Objects that are really alive, and what the budget says, stay within the limit: and one with the user."""
    gc.collect()
    Big.alive = Big.peak = 0
    with make().open(memory_limit=limit << 20) as feed:
        for item in feed:
            del item
        assert feed.stats().memory_peak <= limit << 20
    # One the consumer has just been given, and one that is being made where its size was not known yet.
    assert Big.peak <= limit + 2 + DYING
    gc.collect()
    assert Big.alive == 0


@pytest.mark.parametrize("limit", [3, 5])
def test_hops_of_several_large_items_stay_within_the_limit(limit: int) -> None:
    """Where several threads compute, a group has 4 MB, but no more than a part of what the run may have."""

    def spin(_: int) -> Big:
        until = time.thread_time() + 0.0005
        while time.thread_time() < until:
            pass
        return Big()

    with af.items(range(200)).map(spin).open(memory_limit=limit << 20) as feed:
        assert sum(1 for _ in feed) == 200
        assert feed.stats().memory_peak <= limit << 20


def test_an_item_larger_than_the_limit_passes_alone() -> None:
    """A limit smaller than one item slows down; it does not stop."""
    gc.collect()
    Big.alive = Big.peak = 0
    with _async_map().open(memory_limit=1000) as feed:
        count = 0
        for item in feed:
            count += 1
            del item
    assert count == 200
    assert Big.peak <= 2


def test_a_batch_larger_than_the_limit_passes() -> None:
    """Items held by an unfinished batch do not lock out the one that completes it."""
    arrays = af.items(range(40)).map(lambda x: np.full(100_000, x)).batch(8)
    with arrays.open(memory_limit=1_000_000) as feed:
        assert [int(batch[-1, -1]) for batch in feed] == [7, 15, 23, 31, 39]


def test_reads_are_admitted_by_the_size_of_the_file(tmp_path: Path) -> None:
    """Files are counted before they are read."""
    for number in range(30):
        np.save(tmp_path / f"{number:02}.npy", np.full(125_000, number))
    with af.files(f"{tmp_path}/*.npy").load(af.npy, concurrency=8).open(memory_limit=5_000_000) as feed:
        assert [int(array[0]) for array in feed] == list(range(30))
        assert feed.stats().memory_peak <= 5_000_000


def test_branches_share_one_budget() -> None:
    """A branch that reads ahead does not starve the one that is needed next."""
    ahead = af.items(range(50)).map(lambda x: np.full(10_000, x))
    slow = af.items(range(50)).map(lambda x: np.full(10_000, x), concurrency=1)
    both = af.zip(ahead, slow)
    with both.open(memory_limit=200_000) as feed:
        assert all(int(a[0]) == int(b[0]) for a, b in feed)


def test_the_limit_is_printed_by_explain() -> None:
    """`explain` says what bounds a run."""
    assert "12,345 bytes" in af.items([1]).open(memory_limit=12_345).explain()


def test_order_is_the_same_on_every_schedule_and_concurrency() -> None:
    """One digest over concurrency, schedules and kinds of work."""

    async def jitter(x: int) -> int:
        await asyncio.sleep((x * 7919) % 97 / 1000)
        return x * x

    base = af.items(range(500)).shuffle(seed=3).repeat(2)
    expected = None
    for concurrency in (1, 2, 5, 64):
        for seed in range(5):
            got = run_virtual(drain(base.map(jitter, concurrency=concurrency)), seed=seed)
            expected = expected or got
            assert got == expected


def test_random_numbers_are_the_same_at_any_concurrency() -> None:
    """`rng=True` depends on seed, epoch and ordinal alone."""

    def noise(x: int, rng: np.random.Generator) -> float:
        return x + float(rng.random())

    async def async_noise(x: int, rng: np.random.Generator) -> float:
        await asyncio.sleep(x % 3 / 1000)
        return noise(x, rng)

    base = af.items(range(40)).shuffle(seed=1).repeat(3)
    one = list(base.map(noise, rng=True, seed=5, concurrency=1))
    assert list(base.map(noise, rng=True, seed=5, concurrency=8)) == one
    assert list(base.map(async_noise, rng=True, seed=5, concurrency=8)) == one
    assert len(set(one)) == len(one), "each epoch has numbers of its own"
    assert list(base.map(noise, rng=True, seed=6)) != one


def test_unordered_delivers_everything_once_and_keeps_to_epochs(seed: int) -> None:
    """`ordered=False` hands on what is there, but no item overtakes the end of an epoch that a stage sees."""

    async def jitter(x: int) -> int:
        await asyncio.sleep((x * 7919 + seed) % 13)
        return x

    per_epoch = af.items(range(10)).map(jitter, concurrency=4, ordered=False).batch(5).repeat(3)
    got = [batch.tolist() for batch in run_virtual(drain(per_epoch), seed=seed)]
    assert [sorted(got[at] + got[at + 1]) for at in (0, 2, 4)] == [list(range(10))] * 3


def test_a_virtual_loop_is_what_ran() -> None:
    """The tests above ran in virtual time."""

    async def main() -> bool:
        return isinstance(asyncio.get_running_loop(), VirtualLoop)

    assert run_virtual(main)


@pytest.mark.parametrize(("nbytes", "fewest", "most"), [(64, 32, 64), (1 << 20, 3, 9)])
def test_behind_a_slow_consumer_few_large_batches_are_ready(nbytes: int, fewest: int, most: int) -> None:
    """Memory that was not used before costs the system as much as filling it; nobody is waiting for the rest.

    Looked at after each of eight draws: batches are made in fours, so it depends on where one stands.
    """
    calls = 0

    async def make(_: object) -> np.ndarray:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.001)
        return np.zeros(nbytes, np.uint8)

    async def main() -> list[int]:
        ready = []
        async with af.items(range(5000)).batch(32).map(make, concurrency=1).open() as feed:
            for drawn in range(1, 25):
                await anext(feed)
                await asyncio.sleep(60)
                ready.append(calls - drawn)
        return ready[-8:]

    ready = run_virtual(main)
    assert fewest <= min(ready) <= max(ready) <= most
