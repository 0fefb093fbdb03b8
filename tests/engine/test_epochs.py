"""Epochs as they run: cut short, repeated, without items, and without growing."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.searching import sampled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import numpy as np


def noise(item: Any, rng: np.random.Generator) -> tuple[Any, float]:  # noqa: ANN401
    return item, float(rng.random())


async def most(item: Any) -> bool:  # noqa: ANN401
    """Keep two of three, each after a time of its own."""
    number = item[0] if isinstance(item, tuple) else item
    await asyncio.sleep((number * 7919) % 13 / 1000)
    return number % 3 != 0


def none(item: object) -> bool:
    return False


def twenty() -> Iterator[int]:
    yield from range(20)


async def collect(pipeline: af.Pipeline[Any], **options: Any) -> list[str]:  # noqa: ANN401
    async with pipeline.open(**options) as feed:
        return [str(item) async for item in feed]


SIZED, STREAM = af.items(range(20)), af.items(twenty)

CUT_SHORT = [
    SIZED.shuffle(seed=1).map(noise, rng=True).filter(most).repeat().take(47),
    SIZED.shuffle(seed=1).filter(most).batch(4).repeat().take(9),
    SIZED.shuffle(seed=1).filter(most).repeat(5).take(47),
    STREAM.shuffle(buffer=5).filter(most).map(noise, rng=True).repeat().take(30),
    STREAM.filter(most).repeat().shuffle(buffer=5).take(30).repeat(2).take(50),
    af.zip(STREAM.filter(most).map(noise, rng=True).repeat(), af.items(range(31)), strict=False),
    af.zip(STREAM.shuffle(buffer=3).filter(most), STREAM.filter(most)).map(noise, rng=True).repeat().take(40),
    af.concat(STREAM.filter(most).map(noise, rng=True), SIZED.shuffle()).repeat().take(70),
]


@sampled(3)
@pytest.mark.parametrize("pipeline", CUT_SHORT, ids=str)
def test_epochs_that_are_cut_short_are_the_same_on_any_schedule(pipeline: af.Pipeline[Any]) -> None:
    """How far the source has read when it hears of the cut decides nothing."""
    runs = {tuple(run_virtual(collect(pipeline.repeat(3)), seed=seed)) for seed in range(12)}
    assert len(runs) == 1


@pytest.mark.parametrize("pipeline", CUT_SHORT, ids=str)
def test_a_run_is_that_epoch_of_a_repeat_also_where_a_take_cuts_short(pipeline: af.Pipeline[Any]) -> None:
    runs = [run_virtual(collect(pipeline, epoch=epoch), seed=epoch) for epoch in range(3)]
    assert sum(runs, []) == run_virtual(collect(pipeline.repeat(3)), seed=7)
    assert runs[0] != runs[1] != runs[2]


@pytest.mark.parametrize("merge", [af.concat, lambda a, b: af.zip(a, b, strict=False)], ids=["concat", "zip"])
def test_merged_streams_stay_together_where_a_take_cuts_their_epochs_short(merge: Any, seed: int) -> None:  # noqa: ANN401
    """One input hears of it a few epochs later than the other."""
    slow = STREAM.filter(most)
    for take in (0, 1, 25, 70):
        pipeline = merge(STREAM, slow).repeat().take(take).repeat(3)
        by_the_book = [str(item) for item in list(merge(STREAM, slow).repeat(10))[:take]] * 3
        assert run_virtual(collect(pipeline), seed=seed) == by_the_book


# -- an endless repeat of nothing


@pytest.mark.parametrize(
    ("pipeline", "what"),
    [
        (af.items([]).repeat(), r"items\(\[\]\) has no items"),
        (af.items(twenty).filter(none).repeat(), r"items\(twenty\)\.filter\(none\) has no items"),
        (SIZED.filter(none).repeat().batch(3), r"items\(range\(0, 20\)\)\.filter\(none\) has no items"),
        (SIZED.skip(20).repeat(), r"items\(range\(0, 20\)\)\.skip\(20\) has no items"),
        (STREAM.skip(30).map(noise, rng=True).repeat(), r"\.skip\(30\)\.map\(noise, rng=True\) has no items"),
        (SIZED.batch(30, drop_remainder=True).repeat(), r"batch\(30, drop_remainder=True\) has no items"),
        (SIZED.flat_map(lambda _: []).repeat(2).repeat().take(5), r"\.repeat\(2\) has no items"),
        (af.zip(STREAM, SIZED.filter(none), strict=False).repeat(), r"has no items"),
        (af.zip(SIZED, SIZED.filter(none).repeat(), strict=False), r"filter\(none\) has no items"),
    ],
    ids=str,
)
def test_an_endless_repeat_of_nothing_is_an_error(pipeline: af.Pipeline[Any], what: str, seed: int) -> None:
    """It says which stages let nothing through, and takes one epoch to find out."""
    with pytest.raises(af.PipelineError, match=what + r".*repeat\(\) would never end"):
        run_virtual(collect(pipeline), seed=seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stage", [lambda p: p.filter(most), lambda p: p.batch(2), lambda p: p])
def test_an_endless_repeat_may_go_around_another_that_is_cut(stage: Any, seed: int) -> None:  # noqa: ANN401
    """Steps per epoch, for ever: epochs end within a pass, some of them without a new item."""
    passes = stage(af.items(range(4)).repeat().take(6))
    endless, twice = passes.repeat().take(5), passes.repeat(2).take(5)
    assert run_virtual(collect(endless), seed=seed) == run_virtual(collect(twice), seed=seed)


@pytest.mark.parametrize(
    "pipeline",
    [
        SIZED.filter(most).repeat().take(5).repeat(4).take(18),
        SIZED.filter(most).repeat().take(0).repeat(3),
        STREAM.filter(most).repeat().skip(100).take(3).repeat(3),
        SIZED.repeat().filter(none).take(0),
        af.zip(STREAM.filter(most).repeat(), STREAM, strict=False).repeat(3),
    ],
    ids=str,
)
def test_an_epoch_that_was_cut_short_before_its_first_item_is_no_error(
    pipeline: af.Pipeline[Any], seed: int
) -> None:
    run_virtual(collect(pipeline), seed=seed)


@pytest.mark.parametrize("source", [SIZED, STREAM], ids=["sized", "stream"])
def test_a_source_whose_items_are_all_left_out_can_be_stopped(source: af.Pipeline[int]) -> None:
    """It gives way to the loop, although no queue ever fills."""

    async def main() -> str:
        async with source.repeat().skip(10**15).open() as feed:
            drawing = asyncio.ensure_future(anext(feed))
            for _ in range(50):
                await asyncio.sleep(0)
            feed.stop("enough")
            with pytest.raises(af.ClosedError, match="enough"):
                await drawing
        return "stopped"

    assert asyncio.run(main()) == "stopped"


@pytest.mark.parametrize(
    "stage",
    [
        lambda p: p,
        lambda p: p.map(lambda x: x),
        lambda p: p.filter(most, ordered=False),
        lambda p: p.flat_map(lambda x: [x]),
        lambda p: p.prefetch(3).batch(2).map(len).flat_map(range),
    ],
    ids=["nothing", "map", "filter", "flat_map", "several"],
)
def test_an_input_without_items_does_not_run_ahead_for_ever(stage: Any, seed: int) -> None:  # noqa: ANN401
    """While the other input of a `concat` takes its time, the epochs that pass are bounded."""
    passes = 0

    def nothing() -> Iterator[int]:
        nonlocal passes
        passes += 1
        return iter(())

    async def slow(item: int) -> int:
        await asyncio.sleep(1)
        return item

    pipeline = af.concat(stage(af.items(nothing)), STREAM.map(slow, concurrency=1)).repeat().take(5)
    assert run_virtual(collect(pipeline), seed=seed) == ["0", "1", "2", "3", "4"]
    assert passes < 1500


# -- memory


async def one() -> AsyncIterator[int]:
    yield 0


async def three() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@pytest.mark.parametrize("source", [af.items(range(1)), af.items(one)], ids=["sized", "stream"])
def test_what_tells_an_item_its_epoch_does_not_grow(source: af.Pipeline[int]) -> None:
    """Nothing is noted as epochs go by: an object for each of 20,000 would show.

    What is queued at the end differs by some thousand objects, so fewer epochs would not show that.
    """

    async def main() -> int:
        async with source.repeat().open() as feed:
            used = []
            for items in (4000, 20_000):
                for _ in range(items):
                    await anext(feed)
                gc.collect()
                used.append(sys.getallocatedblocks())
            return used[1] - used[0]

    assert run_virtual(main) < 10_000


@pytest.mark.parametrize("source", [af.items(range(3)), af.items(three)], ids=["sized", "stream"])
@pytest.mark.parametrize("epoch", [0, 1, 10**6, 10**12])
def test_an_item_knows_its_epoch_and_its_place_however_many_epochs_went_before(
    source: af.Pipeline[int], epoch: int
) -> None:
    with source.map(lambda x: 1 / (x - 2)).open(epoch=epoch) as feed:
        with pytest.raises(ZeroDivisionError):
            list(feed)
        assert feed.failure is not None
        assert (feed.failure.epoch, feed.failure.ordinal, feed.failure.key) == (epoch, 2, "number 2")
