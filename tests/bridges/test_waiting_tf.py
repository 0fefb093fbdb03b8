"""What `stats()` says of a trainer in TensorFlow: who waits, and for how long."""

from __future__ import annotations

import time
from typing import Any

import pytest

import asyncfeed as af

TRAINS = 0.03


def trained(pipeline: Any, trains: float, **options: Any) -> af.FeedStats:
    """Draw ten batches of eight numbers, and train on each for so long."""
    feeds: list[af.Feed[Any]] = []
    dataset = pipeline.batch(200).to_tf(on_open=feeds.append, **options)
    time.sleep(10 * TRAINS)  # between the first item that is looked at and the training
    for _ in dataset:
        time.sleep(trains)
    return feeds[0].stats()


async def at_once(x: int) -> int:
    return x


@pytest.mark.parametrize("via", ["queue", "from_generator"])
def test_a_trainer_that_is_slower_is_waited_for(via: str) -> None:
    """The time lasts as long as the trainer, though the pipeline was done long before."""
    stats = trained(af.items(range(2000)).map(at_once), TRAINS, via=via)
    assert stats.batches == 10
    assert stats.consumer_waited < stats.seconds / 4
    assert stats.producer_waited > stats.seconds / 2
    assert stats.seconds + 0.001 > stats.consumer_waited + stats.producer_waited
    if via == "queue":  # TensorFlow asks one or two ahead
        assert stats.seconds > 7 * TRAINS


@pytest.mark.parametrize("via", ["queue", "from_generator"])
def test_a_trainer_that_is_faster_waits(via: str) -> None:
    """Nearly all the time, and no data waits. TensorFlow may draw late at first, when some batches are ready."""

    def slow(batch: Any) -> Any:
        time.sleep(TRAINS)
        return batch

    feeds: list[af.Feed[Any]] = []
    pipeline = af.items(range(80)).batch(2).map(slow, concurrency=1)
    for _ in pipeline.to_tf(on_open=feeds.append, via=via):
        pass
    stats = feeds[0].stats()
    assert stats.consumer_waited > stats.seconds * 0.7
    assert stats.producer_waited < stats.seconds / 4


def test_the_time_stands_still_when_the_iterator_is_gone() -> None:
    """Also one that was dropped in the middle."""
    feeds: list[af.Feed[Any]] = []
    iterator = iter(af.items(range(1000)).to_tf(on_open=feeds.append))
    next(iterator)
    del iterator
    assert feeds[0].stats().seconds == feeds[0].stats().seconds
