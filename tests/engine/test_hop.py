"""How many items go to a thread at once, and how many threads are worth having."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncfeed.engine.channel import SPAN
from asyncfeed.engine.hop import Hops
from asyncfeed.stages.base import Work

US = 1e-6


class Clock:
    """Threads that say how long a call took, and run nothing."""

    def __init__(self, wall: float, cpu: float) -> None:
        self.told = wall, cpu

    async def run(self, what: str, fn: Any, items: list[Any], places: Any) -> Any:
        return items, *self.told


def hops(wall: float, cpu: float, *, unit: int = 1, concurrency: Any = "auto") -> Hops:
    work = Work(abs, "thread", concurrency=concurrency)
    return Hops(Clock(wall, cpu), work, "map(abs)", 8, unit)  # type: ignore[arg-type]


def after(each: Hops, working: int = 1, rounds: int = 20) -> tuple[int, int]:
    """Return the group size and the number of threads after some hops of one item."""
    for _ in range(rounds):
        asyncio.run(each.run([1], None, working))
    return each.group([1] * 1000, 0, 0.0), each.limit


@pytest.mark.parametrize(
    ("wall", "expected"),
    [(2 * US, (SPAN, 1)), (10 * US, (100, 1)), (40 * US, (25, 1)), (100 * US, (10, 8)), (5000 * US, (1, 8))],
)
def test_groups_are_worth_a_millisecond_and_slow_items_get_threads(wall: float, expected: tuple[int, int]) -> None:
    """About 1 ms a hop; more than one thread only where an item takes longer than 50 us."""
    size, limit = after(hops(wall, 0.0))
    assert abs(size - expected[0]) <= 1
    assert limit == expected[1]


def test_it_starts_with_one_item_and_one_thread_and_doubles() -> None:
    """Nothing is known before the first hop."""
    each = hops(US, US)
    assert (each.group([1] * 9, 0, 0.0), each.limit) == (1, 1)
    assert [after(each, rounds=1)[0] for _ in range(4)] == [2, 4, 8, 16]


def test_a_slow_item_shrinks_the_group_at_once() -> None:
    """On the way down there is nothing to try."""
    each = hops(US, US)
    after(each)
    each._threads.told = 0.01, 0.0  # type: ignore[attr-defined]
    assert after(each, rounds=1) == (1, 8)


def test_a_batch_is_as_slow_as_its_samples() -> None:
    """32 samples of 10 us are not one item of 320 us: one thread reads them best."""
    assert after(hops(320 * US, 320 * US, unit=32))[1] == 1
    assert after(hops(3200 * US, 0.0, unit=32))[1] == 8


def test_waiting_for_the_gil_does_not_pass_for_a_slow_item() -> None:
    """Eight threads that fight each measure eight times the work; that must not keep them all."""
    assert after(hops(240 * US, 30 * US), working=8)[1] == 1
    assert after(hops(5000 * US, 30 * US), working=8)[1] == 8


def test_a_group_is_at_most_a_megabyte() -> None:
    """By what the results weigh, not the items."""
    each = hops(US, US)
    after(each)
    assert each.group([b"x" * 1000] * 64, 0, 100.0) == 10
    assert each.group([b"x" * 1000] * 64, 0, 5000.0) == 1


def test_an_asked_concurrency_is_kept() -> None:
    """Whoever asks for eight threads has them."""
    assert hops(US, US, concurrency=8).limit == 8
    assert after(hops(US, US, concurrency=8))[1] == 8
