"""What is recorded for a state stays small, and holds nothing of the user's data."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import asyncfeed as af
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
