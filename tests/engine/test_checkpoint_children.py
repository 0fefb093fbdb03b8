"""States of stages that make several items of one, and of those that carry something from item to item."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.failing import Oops


class Called:
    """A function that counts for which items it is called. Item n has n % 4 children."""

    def __init__(self) -> None:
        self.items: Counter[int] = Counter()

    def __call__(self, item: int) -> Iterator[tuple[int, int]]:
        self.items[item] += 1
        for number in range(item % 4):
            yield item, number


def cut(pipeline: af.Pipeline[Any], count: int) -> tuple[list[Any], Any]:
    """Return some items and the state after them, when nothing more is under way."""

    async def main() -> tuple[list[Any], Any]:
        async with pipeline.open() as feed:
            items = [await anext(feed) for _ in range(count)]
            await asyncio.sleep(100)
            return items, feed.state_dict()

    return run_virtual(main())


FLAT = {
    "flat_map": lambda rows, fn: rows.flat_map(fn, concurrency=3),
    "unordered": lambda rows, fn: rows.flat_map(fn, concurrency=3, ordered=False),
    "interleave": lambda rows, fn: rows.interleave(fn, cycle=3, block=2),
}


@pytest.mark.parametrize("behind", [
    lambda rows: rows,
    lambda rows: rows.batch(2, collate=list),
    lambda rows: rows.shuffle(buffer=5, seed=1),
])  # fmt: skip
@pytest.mark.parametrize("how", FLAT)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 6, 11, 12])
def test_no_item_is_expanded_again_whose_children_were_all_received(how: str, behind: Any, count: int) -> None:
    called = Called()
    pipeline = behind(FLAT[how](af.items(range(16)), called))
    before, state = cut(pipeline, count)
    called.items.clear()
    after = list(pipeline.open(state=state))

    def flat(items: list[Any]) -> list[Any]:
        return [each for item in items for each in (item if isinstance(item, list) else [item])]

    received = Counter(item for item, _ in flat(before))
    finished = {item for item, number in received.items() if number == item % 4}
    assert sorted(flat(before) + flat(after)) == [
        (item, number) for item in range(16) for number in range(item % 4)
    ]
    assert not finished & set(called.items)
    assert max(called.items.values(), default=0) <= 2  # once for what was held, once for what comes


@pytest.mark.parametrize("how", FLAT)
def test_an_item_that_failed_fails_again_in_the_next_run(how: str) -> None:
    def fails(item: int) -> Iterator[int]:
        yield 10 * item
        if item == 2:
            raise Oops(item)
        yield 10 * item + 1

    pipeline = FLAT[how](af.items(range(5)), fails)

    async def draw() -> tuple[list[int], Any]:
        items = []
        async with pipeline.open() as feed:
            with pytest.raises(Oops):
                while True:
                    items.append(await anext(feed))
            return items, feed.state_dict()

    before, state = run_virtual(draw())
    with pipeline.open(state=state) as feed, pytest.raises(Oops):
        for item in feed:
            before.append(item)
    assert len(before) == len(set(before))


@pytest.mark.parametrize("count", range(13))
def test_what_scan_carries_is_made_again_from_the_start_of_its_epoch(count: int) -> None:
    called: list[int] = []

    def running(total: int, item: int) -> tuple[int, int]:
        called.append(item)
        return total + item, total + item

    pipeline = af.items([1, 2, 3]).shuffle(seed=1).repeat(2).scan(running, 0).repeat(2)
    expected = list(pipeline)
    before, state = cut(pipeline, count)
    called.clear()
    assert before + list(pipeline.open(state=state)) == expected
    assert len(called) == 12 - max(0, count - 1) // 6 * 6


def test_scan_begins_in_an_earlier_epoch_if_a_buffer_holds_items_of_it() -> None:
    pipeline = af.items([1, 2, 3]).scan(lambda total, item: (total + item, total + item), 0).repeat(4)
    shuffled = pipeline.shuffle(buffer=5, seed=3)
    expected = list(shuffled)
    for count in range(13):
        before, state = cut(shuffled, count)
        assert before + list(shuffled.open(state=state)) == expected


def test_a_merge_goes_on_in_its_epoch_if_the_last_one_was_left_early() -> None:
    """The next epoch has begun, and nothing of it was delivered."""
    one, two = af.items(range(100)).filter(lambda _: True), af.items(range(100, 200)).filter(lambda _: True)
    pipeline = af.mix(one, two, seed=4).map(lambda item, rng: (item, int(rng.integers(100))), rng=True)
    whole = [list(epoch) for epoch in pipeline.epochs(3)]
    epochs = pipeline.epochs(3)
    first = next(epochs)
    assert [next(first), next(first)] == whole[0][:2]
    next(epochs)
    state = epochs.feed.state_dict()
    assert [list(epoch) for epoch in pipeline.epochs(3, state=state)] == whole[1:]
    epochs.feed.close()


@pytest.mark.parametrize("count", range(7))
def test_an_item_that_fails_after_some_children_fails_behind_them_again(count: int) -> None:
    def fails(item: int) -> Iterator[int]:
        yield item
        yield item + 1
        raise Oops(item)

    pipeline = af.items([10]).flat_map(fails).flat_map(lambda item: [item] * 3)
    items, state = cut(pipeline, count)
    with pipeline.open(state=state) as feed, pytest.raises(Oops):
        for item in feed:
            items.append(item)
    assert items == [10, 10, 10, 11, 11, 11]
