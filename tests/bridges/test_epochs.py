"""`open(epoch=k)`: what the bridges rely on to make each iteration the next epoch. No framework needed."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

import asyncfeed as af
from asyncfeed.bridges.run_factory import RunFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


def six() -> Iterator[int]:
    yield from range(6)


def draw(item: Any, rng: np.random.Generator) -> tuple[Any, int]:  # noqa: ANN401
    return item, int(rng.integers(1 << 30))


SIZED, UNSIZED = af.items(range(6)), af.items(six)


@pytest.mark.parametrize(
    "pipeline",
    [
        SIZED.shuffle(seed=1),
        SIZED.map(draw, rng=True),
        SIZED.shuffle(seed=1).repeat(2).map(draw, rng=True),
        SIZED.repeat(2).shuffle(seed=1).map(draw, rng=True),
        UNSIZED.shuffle(buffer=3).map(draw, rng=True),
        UNSIZED.repeat(2).shuffle(buffer=3).map(draw, rng=True),
        UNSIZED.shuffle(buffer=3).repeat(3).map(draw, rng=True),
        af.zip(UNSIZED.map(draw, rng=True), SIZED.shuffle(seed=2)).map(draw, rng=True),
        af.zip(UNSIZED.repeat(2).map(draw, rng=True), SIZED.shuffle(seed=2).repeat(2)).map(draw, rng=True),
        af.concat(UNSIZED.repeat(2).map(draw, rng=True), SIZED.shuffle(seed=2)).map(draw, rng=True),
    ],
    ids=str,
)
def test_run_after_run_is_what_repeat_would_be(pipeline: af.Pipeline[Any]) -> None:
    runs = [list(pipeline.open(epoch=number)) for number in range(3)]
    assert list(chain(*runs)) == list(pipeline.repeat(3))
    assert len(set(map(str, runs))) == 3


def test_an_endless_repeat_counts_as_one_epoch() -> None:
    pipeline = SIZED.shuffle(seed=1).repeat()
    with pipeline.open(epoch=1) as feed:
        later = [next(feed) for _ in range(6)]
    assert later == list(pipeline.take(12))[6:]


def test_a_failure_names_the_epoch() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(af.items([1, 0]).map(lambda n: 1 // n).open(epoch=4))
    assert "ordinal 1 of epoch 4" in "\n".join(caught.value.__notes__)


def test_an_epoch_is_not_negative() -> None:
    with pytest.raises(af.PipelineError, match="epoch must not be negative"):
        SIZED.open(epoch=-1)


def test_an_offer_gives_the_run_that_was_looked_into_first() -> None:
    feeds: list[af.Feed[Any]] = []
    factory = RunFactory(SIZED.shuffle(seed=1), feeds.append, None)
    first = factory.peek()
    runs = [list(factory.open()[1]) for _ in range(2)]
    assert runs[0][0] == first
    assert list(chain(*runs)) == list(SIZED.shuffle(seed=1).repeat(2))
    assert len(feeds) == 2
