"""A feed that goes on calls nothing for what was delivered, and starts where it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.feed import session_of
from asyncfeed.state.envelope import seal, unseal
from asyncfeed.state.fingerprint import fingerprint
from asyncfeed.testing import run_virtual

COUNT = 60
FAR = 10**9


class Numbers:
    """A dataset that counts which rows are read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> int:
        if not 0 <= number < self.size:
            raise IndexError(number)
        self.read[number] += 1
        return number


def cut(pipeline: af.Pipeline[Any], count: int) -> tuple[list[Any], dict[str, Any]]:
    with pipeline.open() as feed:
        return [next(feed) for _ in range(count)], feed.state_dict()


@pytest.mark.parametrize("cut_at", [0, 1, 7, 19, 20])
@pytest.mark.parametrize("build", [
    lambda rows, fn: rows.map(fn).batch(3),
    lambda rows, fn: rows.shuffle(seed=3).map(fn).batch(3),
    lambda rows, fn: rows.map(fn).shuffle(buffer=10).batch(3),
    lambda rows, fn: rows.map(fn).filter(bool).batch(3),
    lambda rows, fn: rows.repeat(1).map(fn).batch(3).map(lambda batch: batch),
    lambda rows, fn: af.zip(rows.repeat(1).map(fn), af.items(range(COUNT))).map(lambda pair: pair[0]).batch(3),
])  # fmt: skip
def test_nothing_is_read_or_called_again_for_what_was_delivered(build: Any, cut_at: int) -> None:
    rows, called = Numbers(COUNT), Counter[int]()

    def fn(number: int) -> int:
        called[number] += 1
        return number + 1

    pipeline = build(af.items(rows), fn)
    before, state = cut(pipeline, cut_at)
    delivered = {number - 1 for batch in before for number in batch.tolist()}
    rows.read.clear()
    called.clear()
    after = [number - 1 for batch in pipeline.open(state=state) for number in batch.tolist()]
    assert sorted([*delivered, *after]) == list(range(COUNT))
    assert set(rows.read) == set(called) == set(range(COUNT)) - delivered
    assert set(called.values()) <= {1}


def test_only_the_item_that_was_half_consumed_is_expanded_again() -> None:
    called: list[int] = []

    def fn(number: int) -> list[int]:
        called.append(number)
        return [10 * number + child for child in range(4)]

    pipeline = af.items(range(20)).flat_map(fn, concurrency=1)
    before, state = cut(pipeline, 22)
    called.clear()
    assert before + list(pipeline.open(state=state)) == [
        10 * each + child for each in range(20) for child in range(4)
    ]
    assert called == list(range(5, 20))


def test_items_that_were_left_out_are_left_out_again_and_not_called() -> None:
    called: list[int] = []

    def fn(number: int) -> int:
        called.append(number)
        if number % 5 == 3:
            raise ValueError(number)
        return number

    pipeline = af.items(range(20)).map(fn, on_error="skip", skip_limit=10)
    before, state = cut(pipeline, 10)
    called.clear()
    after = list(pipeline.open(state=state))
    assert before + after == [number for number in range(20) if number % 5 != 3]
    assert min(called) > before[-1]


@pytest.mark.parametrize("build", [
    lambda rows: rows.shuffle(seed=3).batch(4),
    lambda rows: rows.shard(3, 7).shuffle(seed=3).batch(4),
    lambda rows: rows.map(lambda number, rng: number + rng.random(), rng=True).batch(4),
])  # fmt: skip
def test_a_source_by_number_starts_far_away_at_once(build: Any) -> None:
    """No item before is made, read or numbered."""
    rows = Numbers(8 * FAR)
    pipeline = build(af.items(rows))
    _, state = cut(pipeline, 0)
    known = fingerprint(pipeline.source, pipeline.stages)
    body = unseal(state, known)
    begun, _ = cut(pipeline, 1)
    del begun
    body = {**body, "passes": [], "stations": [{"passes": [], "next": FAR}, {"held": [], "numbers": {}}]}
    rows.read.clear()
    with pipeline.open(state=seal(known, body)) as feed:
        next(feed)
        assert feed.stats().batches == 1
    assert sum(rows.read.values()) < 10_000


def test_a_state_has_what_a_trainer_acknowledged_and_not_what_its_bridge_drew() -> None:
    train = af.items(range(10)).shuffle(buffer=4, seed=1).batch(2)
    batches = [batch.tolist() for batch in train]
    feed = train.open()
    session = session_of(feed)
    session.acknowledge(0)
    with feed:
        drawn = 0
        for trained, ahead in ((0, 2), (1, 3), (1, 5), (4, 5), (5, 5)):
            while drawn < ahead:
                next(feed)
                drawn += 1
            session.acknowledge(trained)
            with train.open(state=feed.state_dict()) as rest:
                assert [batch.tolist() for batch in rest] == batches[trained:]


def test_a_feed_that_was_closed_says_what_was_delivered_before() -> None:
    """What was read ahead is dropped by the end, and not delivered."""
    train = af.items(range(40)).batch(3)
    batches = [batch.tolist() for batch in train]

    async def draw() -> tuple[Any, dict[str, Any]]:
        async with train.open() as feed:
            first = await anext(feed)
            await asyncio.sleep(1)  # so batches are queued
        return first, feed.state_dict()

    first, state = run_virtual(draw())
    assert [each.tolist() for each in (first, *train.open(state=state))] == batches
