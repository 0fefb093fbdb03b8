"""How many items go to a thread at once, and how many threads are worth having."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.machine import usable_cores
from asyncfeed.reading.reader import Waits
from tests.engine.inside import (
    CHUNK,
    KERNEL_THREADS,
    MANY,
    SHARED,
    Groups,
    WorkerPool,
    cores,
    counted_groups,
    group_clocks,
)

US = 1e-6


def after(each: Groups, working: int = 1, rounds: int = 20) -> tuple[int, bool]:
    """Return the group size, and whether more threads may help, after some groups of one item."""
    each.measure(rounds, working=working)
    return each.size(), each.slow


@pytest.mark.parametrize(
    ("wall", "expected"),
    [
        (4 * US, (CHUNK, False)),
        (20 * US, (100, False)),
        (40 * US, (50, False)),
        (100 * US, (20, False)),
        (125 * US, (16, True)),
        (5000 * US, (1, True)),
    ],
)
def test_groups_are_worth_two_milliseconds_and_slow_items_get_threads(
    wall: float, expected: tuple[int, bool]
) -> None:
    """About 2 ms a group; more than one thread only where an item waits longer than 100 us."""
    size, slow = after(Groups(wall, 0.0))
    assert abs(size - expected[0]) <= 1
    assert slow is expected[1]


def test_it_starts_with_one_item_and_one_thread_and_doubles() -> None:
    """Nothing is known before the first group."""
    each = Groups(US, US)
    assert (each.size(9), each.slow) == (1, False)
    assert [after(each, rounds=1)[0] for _ in range(4)] == [2, 4, 8, 16]


def test_a_slow_item_shrinks_the_group_at_once() -> None:
    """On the way down there is nothing to try."""
    each = Groups(US, US)
    after(each)
    each.take(0.01, 0.0)
    assert after(each, rounds=1) == (1, True)


def test_one_hop_that_was_held_up_brings_no_threads() -> None:
    """The next one tells; where it took far too long nobody need ask again."""
    each = Groups(10 * US, 10 * US)
    after(each)
    each.take(110 * US, 0.0)
    assert not after(each, rounds=1)[1]
    assert after(each, rounds=1)[1]
    each.take(10 * US, 0.0)
    assert after(each, rounds=1)[1]
    assert not after(each, rounds=1)[1]
    each.take(1000 * US, 0.0)
    assert after(each, rounds=1)[1]


def test_a_batch_is_as_slow_as_its_samples() -> None:
    """32 samples of 10 us are not one item of 320 us: one thread reads them best."""
    assert not after(Groups(320 * US, 320 * US, unit=32))[1]
    assert after(Groups(3300 * US, 0.0, unit=32))[1]
    assert after(Groups(1700 * US, 1700 * US, unit=32))[1]


def test_waiting_for_the_gil_does_not_pass_for_a_slow_item() -> None:
    """Eight threads that fight each measure eight times the work; that must not keep them all."""
    assert not after(Groups(240 * US, 30 * US), working=8)[1]
    assert after(Groups(5000 * US, 30 * US), working=8)[1]


@pytest.mark.parametrize(
    ("wall", "cpu", "threads", "most"),
    [(5000, 5000, 2, 2), (5000, 2500, 2, 8), (5000, 500, 10, 40), (5000, 10, MANY, 2000)],
)
def test_it_begins_with_as_many_threads_as_a_core_keeps_up_with(
    wall: float, cpu: float, threads: int, most: int
) -> None:
    """Who waits nine tenths of the time leaves room for nine others; who never waits needs a core each."""
    with cores(2):
        each = Groups(wall * US, cpu * US)
    after(each)
    assert (each.threads, each.most_threads) == (threads, most)


def test_where_nothing_waits_any_more_the_search_ends_with_a_thread_for_each_core() -> None:
    """A first call that reads what it needs waits; those after it do not, and two threads are not tried for one."""
    loop = asyncio.new_event_loop()
    pool = WorkerPool(1, loop, lambda: None, loop.time)
    pool.set_range(2, 8, anew=True)
    assert pool.tuner is not None
    pool.tuner.limit = pool.limit = 1
    pool.set_range(2, 6, anew=False)
    assert (pool.limit, pool.tuner.most) == (1, 6)
    pool.set_range(2, 2, anew=False)
    assert (pool.limit, pool.tuner) == (2, None)
    pool.set_range(2, 8, anew=False)
    assert (pool.limit, pool.tuner is not None) == (2, True)
    loop.close()


def test_among_many_threads_waiting_is_not_forgotten() -> None:
    """A hundred that read from a store keep each other from the GIL; a call still waits as long as it did alone."""
    each = Groups(5000 * US, 500 * US)
    after(each)
    assert each.most_threads == 20 * usable_cores()
    each.take(64 * 500 * US, 500 * US)
    after(each, working=64)
    assert each.most_threads == 20 * usable_cores()
    after(each, working=2)
    assert each.most_threads > 20 * usable_cores()


def test_a_group_is_at_most_a_megabyte() -> None:
    """By what the results weigh, not the items."""
    each = Groups(US, US)
    after(each)
    assert each.size(64, [1000] * 64, 100.0) == 10
    assert each.size(64, [1000] * 64, 5000.0) == 1


@pytest.mark.parametrize(("count", "size"), [(4, 4), (5, 3), (6, 3), (3, 3), (2, 2), (1, 1), (0, 0)])
def test_a_group_leaves_no_small_rest(count: int, size: int) -> None:
    """Four items where a group is worth three go in one; a group for the last would cost as much as for all."""
    each = Groups(650 * US, 650 * US, unit=32)
    after(each)
    assert each.size(count) == size


def test_hops_are_larger_where_several_threads_compute() -> None:
    """8 ms and 4 MB: the loop, which they all wait for, has less to do. Not where they wait for something else."""
    each = Groups(500 * US, 500 * US)
    assert after(each)[0] == SHARED * 4
    assert each.size(64, [1000] * 64, 1000.0) == SHARED
    assert after(Groups(500 * US, 100 * US))[0] == 4


def test_a_second_thread_reads_while_the_kernel_reads_for_the_first() -> None:
    """It does so without the GIL. Threads that read by themselves compete for it."""
    with cores(4):
        each = Groups(160 * US, 150 * US, unit=32, waits=Waits.KERNEL)
        assert (each.quick_threads, after(each)[1], each.quick_threads) == (1, False, KERNEL_THREADS)
        each.waits = Waits.NONE
        assert (after(each)[1], each.quick_threads) == (False, 1)
    with cores(1):
        each = Groups(160 * US, 150 * US, unit=32, waits=Waits.KERNEL)
        assert (after(each)[1], each.quick_threads) == (False, 1)


def test_large_results_are_read_by_one_thread() -> None:
    """Copying them is bound by the memory, and each thread would hold a group."""
    with cores(4), group_clocks(lambda: 0.0):
        each = Groups(160 * US, 150 * US, unit=32, waits=Waits.KERNEL)
        after(each)
        assert (each.call([100_000] * 10), each.quick_threads) == (10, KERNEL_THREADS)
        assert (each.call([1_000_000] * 3), each.quick_threads) == (3, 1)
        assert (each.call([100_000] * 10), each.quick_threads) == (10, KERNEL_THREADS)


@pytest.mark.parametrize("waits", [Waits.NONE, Waits.KERNEL])
def test_groups_are_larger_beside_a_trainer_that_keeps_the_gil(waits: Waits) -> None:
    """A group waits for the GIL a few times, 5 ms each, however large it is. A second thread would wait, too."""
    with cores(2):
        each = Groups(5150 * US, 150 * US, unit=32, waits=waits)
    crowded, _ = after(each)
    assert each.quick_threads == 1
    each.take(160 * US, 150 * US)
    after(each)
    assert crowded == pytest.approx(SHARED * after(each)[0], rel=0.1)
    assert not each.slow
    slow = Groups(5150 * US, 150 * US, unit=32)
    assert after(slow) == (1, True)


def test_results_that_were_made_together_are_kept_if_they_took_long() -> None:
    """A call that waited for the GIL is not made again for most of its items."""
    calls: list[list[int]] = []
    now = 0.0

    class Data:
        def __len__(self) -> int:
            return 300

        def __getitem__(self, at: int) -> int:
            calls.append([at])
            return at

        def __getitems__(self, places: list[int]) -> list[int]:
            nonlocal now
            calls.append(places)
            if len(calls) % 7 == 0:
                now += 1.0
            return places

    with group_clocks(lambda: now, lambda: 0.0):
        assert list(af.items(Data(), concurrency=1)) == list(range(300))
    assert max(map(len, calls)) > 8
    assert sum(calls, []) == list(range(300))


def test_a_group_ends_with_the_run() -> None:
    """Stopping waits for the item that a thread is at, not for those behind it."""
    calls: list[int] = []
    go_on = threading.Event()

    async def main() -> None:
        loop, reached = asyncio.get_running_loop(), asyncio.Event()

        def take(item: int) -> int:
            calls.append(item)
            if item == 200:
                loop.call_soon_threadsafe(reached.set)
                go_on.wait(20)
            return item

        async with af.items(range(10_000)).map(take, concurrency=1).prefetch(10_000).open() as feed:
            drawing = asyncio.ensure_future(anext(feed))
            await reached.wait()
            closing = asyncio.ensure_future(feed.aclose())
            for _ in range(100):
                await asyncio.sleep(0)
            go_on.set()
            await asyncio.wait([drawing, closing])

    with group_clocks(lambda: 0.0):  # no call takes any time, so groups are large
        asyncio.run(main())
    assert calls == list(range(201))


def test_a_group_whose_items_turn_slow_ends_early() -> None:
    """They do not wait for each other because the ones before took nothing: each is delivered at once."""
    now = 0.0
    delivered = [threading.Event() for _ in range(60)]
    before: list[bool] = []

    def take(item: int) -> int:
        nonlocal now
        if item >= 40:
            now += 100.0
        if item > 40:
            before.append(all(before) and delivered[item - 1].wait(10))
        return -item

    with group_clocks(lambda: now), af.items(range(60)).map(take, concurrency=1).open() as feed:
        for item in feed:
            delivered[-item].set()
    assert before == [True] * 19
    assert all(each.is_set() for each in delivered)


# -- waits for the GIL


def test_waiting_for_the_gil_is_not_waiting_for_io() -> None:
    """Each thread more would make the GIL slower to get. One stage had 256 threads beside one that runs Python."""
    beside_python = Groups(27e-3, 1e-3)
    beside_python.wait(lag=5e-3, times=6)
    assert after(beside_python)[1] is True  # 1 ms of work is worth a second thread
    assert beside_python.most_threads == usable_cores()
    quick = Groups(27e-3, 20 * US)
    quick.wait(lag=5e-3, times=6)
    assert after(quick) == (100, False)


@pytest.mark.parametrize(("lag", "times", "blocks"), [(60 * US, 2, 0), (5e-3, 1, 0), (20e-3, 2, 8)])
def test_waits_that_are_longer_than_those_of_the_loop_are_for_something_else(
    lag: float, times: int, blocks: int
) -> None:
    """A function that sleeps, or asks a server. And what reads blocks waits for a disk."""
    asks = Groups(20e-3, 20 * US)
    asks.wait(lag, times, blocks)
    assert after(asks)[1] is True
    assert asks.most_threads > 10 * usable_cores()


def test_a_wait_in_which_other_threads_computed_is_believed_after_some_groups() -> None:
    """The loop got the GIL at once, because another program had the core of the thread that runs Python."""
    beside = Groups(20 * US, 20 * US)
    beside.wait(60 * US, 4, elsewhere=3e-3)
    beside.measure()
    for _ in range(10):
        beside.take(20e-3, 20 * US)
        assert after(beside, rounds=3)[1] is False
        beside.take(20 * US, 20 * US)
        beside.measure(1)
    beside.take(20e-3, 20 * US)
    assert after(beside, rounds=4)[1] is True


def test_a_wait_in_which_no_other_thread_computed_is_believed_at_once() -> None:
    alone = Groups(20e-3, 20 * US)
    alone.wait(60 * US, 2, elsewhere=1e-3)
    assert after(alone, rounds=1)[1] is True
    reads = Groups(20e-3, 20 * US)
    reads.wait(60 * US, 2, blocks=8, elsewhere=20e-3)
    assert after(reads, rounds=1)[1] is True


def test_a_loop_that_got_the_gil_at_once_does_not_make_whole_switch_intervals_look_like_io() -> None:
    """The loop was lucky, or has just begun beside threads that compute. Each wait for the GIL takes 5 ms at most."""
    beside = Groups(20e-3, 20 * US)
    beside.wait(60 * US, 4, elsewhere=20e-3)
    assert after(beside)[1] is False
    sleeps = Groups(21e-3, 20 * US)
    sleeps.wait(60 * US, 4, elsewhere=21e-3)
    assert after(sleeps)[1] is True


def test_a_few_blocks_do_not_make_a_group_slow() -> None:
    """They belong to a directory, or to one file of a hundred."""
    group = Groups(20e-3, 20 * US, unit=100)
    group.wait(20e-3, 2, blocks=8)
    assert after(group)[1] is False
    group.wait(20e-3, 2, blocks=800)
    assert after(group)[1] is True


def test_among_many_threads_a_wait_for_the_gil_brings_no_more() -> None:
    """Eight threads wait for each other and for the trainer. Their waits would make them 256."""
    each = Groups(5000 * US, 1250 * US)
    after(each)
    assert each.most_threads == 8 * usable_cores()
    each.take(200e-3, 1250 * US)
    each.wait(lag=30e-3, times=50, elsewhere=200e-3)
    after(each, working=8)
    assert each.most_threads == 8 * usable_cores()
    each.wait(lag=30e-3, times=1)
    after(each, working=8)
    assert each.most_threads > 8 * usable_cores()


def test_groups_are_larger_beside_threads_that_run_python() -> None:
    """A group waits for the GIL a few times, however large it is."""
    group = Groups(40e-3, 160 * US, unit=32)
    group.wait(lag=20e-3, times=8, elsewhere=40e-3)
    crowded, slow = after(group)
    group.take(160 * US, 160 * US)
    assert crowded == pytest.approx(SHARED * after(group)[0], rel=0.1)
    assert not slow


def test_members_of_a_list_are_not_called_one_by_one_because_of_the_gil() -> None:
    """A call for one member that took 25 ms says little, if the thread has waited for the GIL."""
    group = Groups(25e-3, 100 * US)
    group.wait(lag=25e-3, times=5, elsewhere=25e-3)
    assert group.measure_members(called=1) == 16
    group.wait(lag=60 * US, times=1)
    assert group.measure_members(called=1) == 1


def test_a_group_that_waited_for_the_gil_does_not_end_early() -> None:
    """To hand the rest over takes several such waits: batches came one sample at a time, beside four threads."""
    now = 0.0
    group = Groups(US, US)

    def take(_: int) -> bytes:
        nonlocal now
        now += 12e-3
        return b""

    with group_clocks(lambda: now):
        group.wait(lag=0.0, times=1)
        assert group.call([1] * 20, take) == 1
        group.wait(lag=25e-3, times=1)
        assert group.call([1] * 20, take) == 10


def test_a_first_call_that_only_computes_does_not_make_a_stage_slow() -> None:
    """It imports a library, say."""
    stage = Groups(0.5, 0.4)
    stage.wait(lag=0.1, times=1)
    stage.measure(1)
    assert not stage.slow
    stage.take(20 * US, 20 * US)
    assert after(stage)[1] is False


def test_a_quick_group_among_many_threads_does_not_end_the_search_for_their_number() -> None:
    """Threads that sleep hold the GIL at the same time when they wake. So some groups only seem to compute."""
    sleeps = Groups(20e-3, 20 * US)
    sleeps.measure(20)
    for _ in range(50):
        sleeps.take(20 * US, 20 * US)
        sleeps.measure(10, working=64)
        assert sleeps.slow
        sleeps.take(20e-3, 20 * US)
        sleeps.measure(1, working=64)
    sleeps.take(20 * US, 20 * US)
    sleeps.measure(100, working=64)
    assert not sleeps.slow


@pytest.mark.parametrize(("threads", "batches"), [(1, 60), (2, 20), (4, 5)])
def test_a_segment_gets_no_more_threads_beside_threads_that_run_python(
    tmp_path: Path, threads: int, batches: int
) -> None:
    """It got 60 to 128 threads on two cores."""
    for number in range(128):
        np.save(tmp_path / f"{number}.npy", np.zeros(1000, np.float32))
    stop = threading.Event()

    def runs_python() -> None:
        while not stop.is_set():
            pass

    burners = [threading.Thread(target=runs_python) for _ in range(threads)]
    for burner in burners:
        burner.start()
    most = 0
    try:
        pipeline = af.files(f"{tmp_path}/*.npy").repeat().load(af.npy).map(lambda sample: sample * 2).batch(16)
        with pipeline.open() as feed:
            for _ in range(batches):
                next(feed)
                most = max(most, *(width for _, width in feed.stats().concurrency))
    finally:
        stop.set()
        for burner in burners:
            burner.join()
    assert most <= 8 * usable_cores()


# -- asyncfeed's own functions, which the loop calls itself


@pytest.mark.parametrize("nbytes", [64, 1000, 4000, 20_000])
def test_samples_of_any_size_are_measured_in_groups(nbytes: int) -> None:
    """Chunks of more than 64 KB were called item by item, and sent on item by item: ten times the work."""
    samples = [np.full(nbytes, number % 200, np.uint8) for number in range(1000)]
    with counted_groups() as groups:
        batches = list(af.items(samples).bucket(boundaries=[100_000], size=50))
    np.testing.assert_array_equal(np.concatenate(batches), np.stack(samples))
    assert groups() < 1000 * max(1000, nbytes) // 16_384 + 50


def test_items_that_weigh_nothing_are_called_in_groups() -> None:
    """What `split` keeps of a stream was decided for one item after the other."""
    with counted_groups() as groups:
        kept = list(af.items(lambda: iter(range(2000))).split(0.5, 0.5, seed=1)[0])
    assert 0 < len(kept) < 2000
    assert groups() < 500


def test_batches_of_some_kilobytes_are_stacked_in_groups() -> None:
    with counted_groups() as groups:
        batches = list(af.arrays(np.zeros((3200, 100), np.float32)).batch(32))
    assert len(batches) == 100
    assert groups() <= 50
