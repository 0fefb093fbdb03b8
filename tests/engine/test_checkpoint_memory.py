"""What is recorded for a state stays small, and holds nothing of the user's data."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import asyncfeed as af
from asyncfeed.axes import Axes
from asyncfeed.position import Positions
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Algorithm, Step
from tests.engine.inside import recorded, recorded_at_most


class Sample:
    """An item that can be watched."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize("build", [
    lambda rows: rows.shuffle(buffer=20),
    lambda rows: rows.batch(7, collate=list),
    lambda rows: rows.flat_map(lambda sample: [sample]).shuffle(buffer=5),
    lambda rows: rows.map(lambda sample: sample, ordered=False).shuffle(buffer=5),
    lambda rows: af.zip(rows.filter(bool), rows.filter(bool)).shuffle(buffer=5),
])  # fmt: skip
def test_a_feed_that_was_closed_keeps_no_item(build: Any) -> None:
    """Also if the feed itself is kept, and has given a state."""
    seen: list[weakref.ref[Sample]] = []

    def sample(number: int) -> Sample:
        made = Sample(number)
        seen.append(weakref.ref(made))
        return made

    pipeline = build(af.items(range(100)).map(sample))
    _, state = _cut(pipeline)
    feed = pipeline.open(state=state)
    next(feed)
    feed.close()
    gc.collect()
    assert [each() for each in seen if each() is not None] == []
    assert feed.state_dict()["asyncfeed"] == 1


def _cut(pipeline: Any) -> tuple[Any, Any]:
    with pipeline.open() as feed:
        next(feed)
        return None, feed.state_dict()


def test_the_records_of_a_long_run_stay_short() -> None:
    pipeline = af.items(range(200_000)).shuffle(buffer=100).batch(2).shuffle(buffer=3)
    most = 0
    with pipeline.open() as feed:
        for number, _ in enumerate(feed):
            if number % 1000 == 0:
                most = max(most, recorded(feed))
    assert 0 < most < 20_000


def test_a_run_that_delivers_nothing_records_no_more_than_a_bound() -> None:
    """Then it has no state, and says so."""
    pipeline = af.items(range(40_000)).batch(1).filter(lambda batch: int(batch[0]) >= 39_990)
    with recorded_at_most(10), pipeline.open() as feed:
        next(feed)
        assert recorded(feed) <= 20
        with pytest.raises(af.StateError, match="delivered"):
            feed.state_dict()
        assert len(list(feed)) == 9


@dataclass(frozen=True)
class Pairs(Node):
    """A stage of the user's, whose algorithm does not say what a state needs."""

    method: ClassVar[str] = "pairs"

    def steps(self) -> Sequence[Step]:
        """Return one step."""
        return [InPairs()]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`."""
        return upstream


class InPairs(Algorithm):
    """Keeps an item until the next one comes."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def push(self, items: list[Any], positions: Positions) -> tuple[list[Any], Positions]:
        """Return all items."""
        return items, positions

    def flush(self) -> tuple[list[Any], Positions]:
        """Return nothing."""
        return [], ()


@pytest.mark.parametrize("build", [
    lambda rows: rows.then(Pairs()),
    lambda rows: rows.map(lambda batch: batch, ordered=False).scan(lambda total, batch: (total + 1, batch), 0),
    lambda rows: rows.flat_map(lambda batch: [batch], ordered=False).batch(1).scan(lambda n, batch: (n, batch), 0),
    lambda rows: rows.batch(1, timeout=1000.0).scan(lambda n, batch: (n, batch), 0),
])  # fmt: skip
def test_a_pipeline_without_states_says_so_and_records_nothing(build: Any) -> None:
    with build(af.items(range(10_000)).shuffle(buffer=10).batch(1)).open() as feed:
        for _ in range(5000):
            next(feed)
        assert recorded(feed) == 0
        with pytest.raises(af.StateError, match="scan|pairs"):
            feed.state_dict()
        assert len(list(feed)) == 5000


def test_an_item_that_a_shard_repeats_is_delivered_once_more() -> None:
    """One item is both the only one of a part, and the one that completes its last round."""
    pipeline = af.items(range(3)).repeat(1).filter(lambda _: True).shard(0, 2)
    for count in range(3):
        with pipeline.open() as feed:
            before = [next(feed) for _ in range(count)]
            state = feed.state_dict()
        assert before + list(pipeline.open(state=state)) == [0, 2]
    pipeline = af.items(range(1)).repeat(1).filter(lambda _: True).shard(1, 2).repeat(2)
    for count in range(3):
        with pipeline.open() as feed:
            before = [next(feed) for _ in range(count)]
            state = feed.state_dict()
        assert before + list(pipeline.open(state=state)) == [0, 0]
