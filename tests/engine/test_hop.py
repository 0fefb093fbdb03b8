"""How many items go to a thread at once, and how many threads are worth having."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncfeed.engine import hop
from asyncfeed.engine.channel import SPAN
from asyncfeed.engine.crew import Crew
from asyncfeed.engine.hop import LATE, MANY, SHARED, Hops
from asyncfeed.machine import usable_cores
from asyncfeed.stages.base import Work

US = 1e-6


class Clock:
    """Threads that say how long a call took, and run nothing."""

    ending = False

    def __init__(self, wall: float, cpu: float) -> None:
        self.told = wall, cpu

    async def run(self, what: str, fn: Any, items: list[Any], places: Any, *, lane: Any) -> Any:
        return items, *self.told


def hops(wall: float, cpu: float, *, unit: int = 1) -> Hops:
    return Hops(Clock(wall, cpu), Work(abs, "thread"), "map(abs)", unit)  # type: ignore[arg-type]


def after(each: Hops, working: int = 1, rounds: int = 20) -> tuple[int, bool]:
    """Return the group size, and whether more threads may help, after some hops of one item."""
    each.lane.width = each.lane.busy = working
    for _ in range(rounds):
        asyncio.run(each.run([1], None))
    return each.group(6400, [], 1.0), each.slow


@pytest.mark.parametrize(
    ("wall", "expected"),
    [
        (4 * US, (SPAN, False)),
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
    """About 2 ms a hop; more than one thread only where an item waits longer than 100 us."""
    size, slow = after(hops(wall, 0.0))
    assert abs(size - expected[0]) <= 1
    assert slow is expected[1]


def test_it_starts_with_one_item_and_one_thread_and_doubles() -> None:
    """Nothing is known before the first hop."""
    each = hops(US, US)
    assert (each.group(9, [], 1.0), each.slow) == (1, False)
    assert [after(each, rounds=1)[0] for _ in range(4)] == [2, 4, 8, 16]


def test_a_slow_item_shrinks_the_group_at_once() -> None:
    """On the way down there is nothing to try."""
    each = hops(US, US)
    after(each)
    each._threads.told = 0.01, 0.0  # type: ignore[attr-defined]
    assert after(each, rounds=1) == (1, True)


def test_one_hop_that_was_held_up_brings_no_threads() -> None:
    """The next one tells; where it took far too long nobody need ask again."""
    each = hops(10 * US, 10 * US)
    after(each)
    each._threads.told = 110 * US, 0.0  # type: ignore[attr-defined]
    assert not after(each, rounds=1)[1]
    assert after(each, rounds=1)[1]
    each._threads.told = 10 * US, 0.0  # type: ignore[attr-defined]
    assert after(each, rounds=1)[1]
    assert not after(each, rounds=1)[1]
    each._threads.told = 1000 * US, 0.0  # type: ignore[attr-defined]
    assert after(each, rounds=1)[1]


def test_a_batch_is_as_slow_as_its_samples() -> None:
    """32 samples of 10 us are not one item of 320 us: one thread reads them best."""
    assert not after(hops(320 * US, 320 * US, unit=32))[1]
    assert after(hops(3300 * US, 0.0, unit=32))[1]
    assert after(hops(1700 * US, 1700 * US, unit=32))[1]


def test_waiting_for_the_gil_does_not_pass_for_a_slow_item() -> None:
    """Eight threads that fight each measure eight times the work; that must not keep them all."""
    assert not after(hops(240 * US, 30 * US), working=8)[1]
    assert after(hops(5000 * US, 30 * US), working=8)[1]


@pytest.mark.parametrize(
    ("wall", "cpu", "threads", "most"),
    [(5000, 5000, 2, 2), (5000, 2500, 2, 8), (5000, 500, 10, 40), (5000, 10, MANY, 2000)],
)
def test_it_begins_with_as_many_threads_as_a_core_keeps_up_with(
    wall: float, cpu: float, threads: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits nine tenths of the time leaves room for nine others; who never waits needs a core each."""
    monkeypatch.setattr(hop, "usable_cores", lambda: 2)
    each = hops(wall * US, cpu * US)
    after(each)
    assert (each.worth, each.most) == (threads, most)


def test_where_nothing_waits_any_more_the_search_ends_with_a_thread_for_each_core() -> None:
    """A first call that reads what it needs waits; those after it do not, and two threads are not tried for one."""
    loop = asyncio.new_event_loop()
    crew = Crew(1, loop, lambda: None, loop.time)
    crew.suit(2, 8, anew=True)
    assert crew.tuner is not None
    crew.tuner.limit = crew.limit = 1
    crew.suit(2, 6, anew=False)
    assert (crew.limit, crew.tuner.most) == (1, 6)
    crew.suit(2, 2, anew=False)
    assert (crew.limit, crew.tuner) == (2, None)
    crew.suit(2, 8, anew=False)
    assert (crew.limit, crew.tuner is not None) == (2, True)
    loop.close()


def test_among_many_threads_waiting_is_not_forgotten() -> None:
    """A hundred that read from a store keep each other from the GIL; a call still waits as long as it did alone."""
    each = hops(5000 * US, 500 * US)
    after(each)
    assert each.most == 20 * usable_cores()
    each._threads.told = 64 * 500 * US, 500 * US  # type: ignore[attr-defined]
    after(each, working=64)
    assert each.most == 20 * usable_cores()
    after(each, working=2)
    assert each.most > 20 * usable_cores()


def test_a_group_is_at_most_a_megabyte() -> None:
    """By what the results weigh, not the items."""
    each = hops(US, US)
    after(each)
    assert each.group(64, [1000] * 64, 100.0) == 10
    assert each.group(64, [1000] * 64, 5000.0) == 1


@pytest.mark.parametrize(("count", "size"), [(4, 4), (5, 3), (6, 3), (3, 3), (2, 2), (1, 1), (0, 0)])
def test_a_group_leaves_no_small_rest(count: int, size: int) -> None:
    """Four items where a hop is worth three go in one; a hop for the last would cost as much as for all."""
    each = hops(650 * US, 650 * US, unit=32)
    after(each)
    assert each.group(count, [], 1.0) == size


def test_hops_are_larger_where_several_threads_compute() -> None:
    """8 ms and 4 MB: the loop, which they all wait for, has less to do. Not where they wait for something else."""
    each = hops(500 * US, 500 * US)
    assert after(each)[0] == SHARED * 4
    assert each.group(64, [1000] * 64, 1000.0) == SHARED
    assert after(hops(500 * US, 100 * US))[0] == 4


def test_a_hop_ends_with_the_run() -> None:
    """Stopping waits for the item that a thread is at, not for those behind it."""
    clock = Clock(0, 0)

    def take(item: int) -> int:
        clock.ending = item == 3
        return item

    each = Hops(clock, Work(take, "thread"), "map(take)", 1)  # type: ignore[arg-type]
    assert each.call(list(range(10)), None) == [0, 1, 2, 3]


def test_a_hop_whose_items_turn_slow_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty items of 10 ms are not kept waiting for each other because the ones before took nothing."""
    now = [0.0]
    monkeypatch.setattr(hop, "perf_counter", lambda: now[0])

    def take(item: int) -> int:
        now[0] += 0.010 if item >= 10 else 0.0
        return -item

    each = Hops(Clock(0, 0), Work(take, "thread"), "map(take)", 1)  # type: ignore[arg-type]
    assert each.call(list(range(60)), None) == [-item for item in range(11)]
    assert each.call([99], None) == [-99]
    assert LATE * hop.HOP_SECONDS < 0.010
