"""A failure behind the end of its epoch: nobody has asked for it, so nobody hears of it, however many epochs follow."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.failing import Oops, draw, raises_later
from tests.searching import sampled

Stream = af.Pipeline[Any]


async def later(x: Any) -> Any:
    await asyncio.sleep(0.001)
    return x


async def three() -> AsyncIterator[int]:
    for x in range(3):
        yield x


async def three_and_fail() -> AsyncIterator[int]:
    for x in range(3):
        yield x
    raise Oops


async def three_and_fail_later() -> AsyncIterator[int]:
    for x in range(3):
        await asyncio.sleep(0.001)
        yield x
    await asyncio.sleep(0.001)
    raise Oops


def three_and_fail_on_a_thread() -> Iterator[int]:
    yield from range(3)
    raise Oops


def fails(x: int) -> int:
    if x == 3:
        raise Oops
    return x


def lists(x: int) -> list[int]:
    return [fails(x)]


def yields(x: int) -> Iterator[int]:
    yield fails(x)


async def yields_later(x: int) -> AsyncIterator[int]:
    await asyncio.sleep(0.001)
    yield fails(x)


def yields_and_fails(x: int) -> Iterator[int]:
    yield x
    fails(x + 1)


FAILING: dict[str, Stream] = {
    "async iterator": af.items(three_and_fail),
    "slow async iterator": af.items(three_and_fail_later),
    "iterator": af.items(three_and_fail_on_a_thread),
    "async map": af.items(range(20)).map(raises_later(Oops, 3)),
    "async map of one": af.items(range(4)).map(raises_later(Oops, 3), concurrency=1),
    "map": af.items(range(20)).map(fails),
    "filter": af.items(range(20)).filter(lambda x: fails(x) >= 0),
    "list": af.items(range(20)).flat_map(lists),
    "lazy list": af.items(range(20)).flat_map(yields),
    "async list": af.items(range(20)).flat_map(yields_later),
    "end of a list": af.items(range(20)).flat_map(yields_and_fails),
    "first input": af.zip(af.items(three_and_fail), af.items(itertools.count), strict=False).map(min),
    "strict zip": af.zip(af.items(three).map(later), af.items(range(4))).map(min),
    "part of a concat": af.concat(
        af.items(range(2)), af.items(range(2, 9)).map(raises_later(Oops, 3)), af.items([9])
    ),
}
"""Streams of 0, 1, 2 and a failure."""
FAR: dict[str, Callable[[Stream], Stream]] = {
    "next to it": lambda stream: stream,
    "stages between": lambda stream: stream.filter(later_true).prefetch(2).filter(at_once).flat_map(lambda x: [x]),
    "merge between": lambda stream: af.zip(stream, af.items(range(50)).map(later), strict=False).map(min),
}
ENOUGH: dict[str, Callable[[Stream], Stream]] = {
    "take": lambda stream: stream.filter(lambda _: True).take(3),
    "shorter zip": lambda stream: af.zip(af.items(three).map(later), stream, strict=False).map(min),
    "shorter zip at once": lambda stream: af.zip(af.items(three), stream, strict=False).map(min),
}


async def later_true(x: Any) -> bool:
    return bool(await later(x) == x)


def at_once(x: Any) -> bool:
    return x is not None


@sampled(80)
@pytest.mark.parametrize("enough", ENOUGH)
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("failing", FAILING)
def test_a_failure_behind_the_end_of_an_epoch_is_not_raised(
    failing: str, far: str, enough: str, seed: int
) -> None:
    """However far was read ahead: it is not without a `repeat`, and so it is not with one."""
    pipeline = ENOUGH[enough](FAR[far](FAILING[failing]))
    for repeated, items in (
        (pipeline, [0, 1, 2]),
        (pipeline.repeat(3), 3 * [0, 1, 2]),
        (pipeline.repeat().take(7), [0, 1, 2, 0, 1, 2, 0]),
        (pipeline.repeat(2).map(later).repeat(2), 4 * [0, 1, 2]),
    ):
        drawn = run_virtual(draw(repeated), seed=seed)
        assert (drawn.items, drawn.error) == (items, None)


@sampled(40)
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("failing", FAILING)
def test_a_failure_before_the_end_of_an_epoch_is_raised(failing: str, far: str, seed: int) -> None:
    """By a `take` of one item more, in the first epoch or a later one."""
    pipeline = FAR[far](FAILING[failing]).filter(lambda _: True).take(4)
    for repeated in (pipeline, pipeline.repeat(2), pipeline.repeat().take(5)):
        drawn = run_virtual(draw(repeated), seed=seed)
        assert drawn.items == [0, 1, 2]
        assert isinstance(drawn.error, Oops | af.PipelineError)
        assert drawn.failure is not None
        assert drawn.failure.epoch == 0


def test_a_failure_of_the_first_input_comes_before_the_end_of_the_second(seed: int) -> None:
    """Python's `zip` asks the first before it can know that the second has ended."""
    pipeline = af.zip(af.items(three_and_fail), af.items(three).map(later), strict=False)
    for repeated in (pipeline, pipeline.repeat(2)):
        drawn = run_virtual(draw(repeated), seed=seed)
        assert len(drawn.items) == 3
        assert isinstance(drawn.error, Oops)


def test_a_failure_is_raised_in_the_epoch_in_which_it_is_wanted(seed: int) -> None:
    """Each epoch of the shorter input is longer than that before: in the third it asks for the item that fails."""
    lengths = itertools.count(2)
    growing = af.items(lambda: iter(range(next(lengths))))
    drawn = run_virtual(draw(af.zip(growing, FAILING["async map"], strict=False).map(min).repeat()), seed=seed)
    assert drawn.items == [0, 1, 0, 1, 2] + [0, 1, 2]
    assert drawn.failure is not None
    assert drawn.failure.epoch == 2


@pytest.mark.parametrize("wait", [0, 1])
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_a_failure_in_the_rest_of_an_epoch_that_was_left_is_not_raised(most: int, wait: float, seed: int) -> None:
    """However slowly the consumer draws; it is if the consumer asks for the item that fails."""

    async def main() -> list[int]:
        drawn: list[int] = []
        async with FAILING["async map"].epochs(3) as epochs:
            async for epoch in epochs:
                async for item in epoch:
                    await asyncio.sleep(wait)
                    drawn.append(item)
                    if item == most - 1:
                        break
        return drawn

    if most < 4:
        assert run_virtual(main, seed=seed) == 3 * list(range(most))
    else:
        with pytest.raises(Oops):
            run_virtual(main, seed=seed)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_failure_in_the_rest_of_an_epoch_that_was_left_on_a_thread_is_not_raised(most: int) -> None:
    """The same with a background thread."""
    drawn: list[int] = []
    with FAILING["map"].epochs(50) as epochs:
        for epoch in epochs:
            for item in epoch:
                drawn.append(item)
                if item == most - 1:
                    break
    assert drawn == 50 * list(range(most))


def test_an_item_that_failed_just_before_a_stop_is_no_failure_to_close(caplog: pytest.LogCaptureFixture) -> None:
    """The thread that draws sees the stop after the failure. Nobody wants either."""
    closed = threading.Event()

    class Source:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise Oops

        def close(self) -> None:
            feed.stop()
            time.sleep(0.2)  # until the loop has told this thread
            closed.set()

    feed = af.items(lambda: Source()).open()
    with feed, pytest.raises(af.ClosedError):
        next(feed)
    assert closed.wait(10)
    assert "closing" not in caplog.text
