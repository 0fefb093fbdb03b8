"""`batch(timeout=)`: a sample waits for others only for some time, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import PipelineError
from asyncfeed.testing import run_virtual

LIMIT = 1 << 20


def trickle(*gaps: float) -> Any:
    """Return a source of 0, 1, 2, ... that come after these seconds."""

    async def source() -> AsyncIterator[int]:
        for number, gap in enumerate(gaps):
            await asyncio.sleep(gap)
            yield number

    return source


def timed(pipeline: af.Pipeline[Any], *, seed: int, train: float = 0) -> list[tuple[float, list[int]]]:
    """Return the batches, and when each came, for a consumer that takes `train` seconds for each."""

    async def main() -> list[tuple[float, list[int]]]:
        start, came = asyncio.get_running_loop().time(), []
        async with pipeline.open(memory_limit=LIMIT) as feed:
            async for batch in feed:
                came.append((round(asyncio.get_running_loop().time() - start, 6), batch.tolist()))
                await asyncio.sleep(train)
        return came

    return run_virtual(main, seed=seed)


def test_the_samples_that_are_there_are_a_batch_when_the_first_has_waited_long_enough(seed: int) -> None:
    pipeline = af.items(trickle(1, 1, 1, 5, 1)).batch(10, timeout=2.5)
    assert timed(pipeline, seed=seed) == [(3.5, [0, 1, 2]), (9.0, [3, 4])]


def test_a_batch_that_is_full_does_not_wait(seed: int) -> None:
    pipeline = af.items(trickle(1, 1, 1, 1, 1, 1, 1)).batch(3, timeout=2.5)
    assert timed(pipeline, seed=seed) == [(3, [0, 1, 2]), (6, [3, 4, 5]), (7, [6])]


def test_the_time_begins_anew_with_the_first_sample_of_each_batch(seed: int) -> None:
    pipeline = af.items(trickle(1, 1.5, 1.5, 1.5, 1.5)).batch(2, timeout=2)
    assert timed(pipeline, seed=seed) == [(2.5, [0, 1]), (5.5, [2, 3]), (7, [4])]


def test_a_consumer_that_is_slower_than_the_stream_gets_full_batches(seed: int) -> None:
    """As soon as the queues are full, which hold as many batches as without a time."""
    pipeline = af.items(trickle(*[0.1] * 1000)).batch(4, timeout=0.2).prefetch(1)
    sizes = [len(batch) for _, batch in timed(pipeline, seed=seed, train=2)]
    assert sizes[150:-1] == [4] * len(sizes[150:-1])
    assert sum(sizes) == 1000


def test_each_epoch_has_batches_of_its_own(seed: int) -> None:
    pipeline = af.items(trickle(1, 1, 1)).repeat(2).batch(2, timeout=10)
    assert [batch for _, batch in timed(pipeline, seed=seed)] == [[0, 1], [2, 0], [1, 2]]
    again = af.items(trickle(1, 1, 1)).batch(2, timeout=10).repeat(2)
    assert [batch for _, batch in timed(again, seed=seed)] == [[0, 1], [2], [0, 1], [2]]


@given(
    gaps=st.lists(st.sampled_from([0, 0, 0.01, 0.5, 3]), max_size=40),
    size=st.integers(1, 7),
    timeout=st.sampled_from([0.005, 0.1, 1, 100]),
    train=st.sampled_from([0, 0.02, 2]),
    seed=st.integers(0, 1 << 20),
)
def test_every_sample_comes_once_and_in_order(
    gaps: list[float], size: int, timeout: float, train: float, seed: int
) -> None:
    async def double(x: int) -> int:
        await asyncio.sleep((x * 7919) % 13 / 1000)
        return 2 * x

    pipeline = af.items(trickle(*gaps)).map(double).batch(size, timeout=timeout)
    batches = [batch for _, batch in timed(pipeline, seed=seed, train=train)]
    assert [x for batch in batches for x in batch] == [2 * x for x in range(len(gaps))]
    assert all(0 < len(batch) <= size for batch in batches)


@given(
    gaps=st.lists(st.sampled_from([0, 0.01, 0.5, 3]), min_size=1, max_size=40),
    size=st.integers(2, 7),
    seed=st.integers(0, 1 << 20),
)
def test_no_sample_waits_longer_than_the_time_for_a_consumer_that_waits(
    gaps: list[float], size: int, seed: int
) -> None:
    came = np.cumsum(gaps)
    for when, batch in timed(af.items(trickle(*gaps)).batch(size, timeout=1), seed=seed):
        assert when - came[batch[0]] <= 1 + 1e-6


def test_a_long_time_changes_nothing(seed: int) -> None:
    for count in (0, 1, 7, 8):
        with_time = af.items(range(count)).batch(4, timeout=1e6)
        assert timed(with_time, seed=seed) == timed(af.items(range(count)).batch(4), seed=seed)


def test_a_failure_ends_the_run_after_the_batches_before_it(seed: int) -> None:
    def fn(x: int) -> int:
        if x == 4:
            raise ValueError("no")
        return x

    async def main() -> Sequence[list[int]]:
        got = []
        pipeline = af.items(trickle(1, 1, 1, 1, 1, 1)).map(fn).batch(3, timeout=2.5)
        async with pipeline.open(memory_limit=LIMIT) as feed:
            with pytest.raises(ValueError, match="no"):
                async for batch in feed:
                    got.append(batch.tolist())
            await asyncio.sleep(100)
        return got

    assert run_virtual(main, seed=seed) == [[0, 1, 2]]


def test_a_failure_may_be_left_out(seed: int) -> None:
    def fn(x: int) -> int:
        if x % 2:
            raise ValueError("no")
        return x

    pipeline = af.items(trickle(1, 1, 1, 1, 1)).map(fn, on_error="skip", skip_limit=9).batch(3, timeout=2.5)
    assert timed(pipeline, seed=seed) == [(3.5, [0, 2]), (5, [4])]


def test_a_take_behind_it_ends_the_run(seed: int) -> None:
    async def endless() -> AsyncIterator[int]:
        for number in range(1 << 60):
            await asyncio.sleep(1)
            yield number

    pipeline = af.items(endless).batch(10, timeout=2.5).take(2)
    assert timed(pipeline, seed=seed) == [(3.5, [0, 1, 2]), (6.5, [3, 4, 5])]


def test_a_run_may_be_left_while_it_waits(seed: int) -> None:
    async def main() -> None:
        async with af.items(trickle(1, 1, 100)).batch(10, timeout=50).open(memory_limit=LIMIT) as feed:
            waiting = asyncio.create_task(anext(feed))
            await asyncio.sleep(10)
            waiting.cancel()
            await asyncio.wait([waiting])

    run_virtual(main, seed=seed)


def test_files_are_read_before_they_wait_for_each_other(tmp_path: Path) -> None:
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.full(3, number))
    batches = list(af.files(f"{tmp_path}/*.npy").load(af.npy).batch(2, timeout=60))
    assert [batch.tolist() for batch in batches] == [[[0] * 3, [1] * 3], [[2] * 3, [3] * 3], [[4] * 3]]


def test_pad_may_follow(seed: int) -> None:
    rows = af.items(trickle(1, 1, 1)).map(lambda n: np.arange(n + 1)).batch(2, timeout=1.5).pad()
    assert [batch for _, batch in timed(rows, seed=seed)] == [[[0, 0], [0, 1]], [[0, 1, 2]]]


def test_the_number_of_batches_is_not_known_and_what_makes_no_sense_is_refused() -> None:
    pipeline = af.items(range(5)).batch(2, timeout=1.5)
    assert pipeline.size() is None
    assert repr(pipeline) == "items(range(0, 5)).batch(2, timeout=1.5)"
    assert "at the latest after 1.5 s" in pipeline.explain()
    for wrong in (0, -1, float("inf"), float("nan"), True, "1"):
        with pytest.raises(PipelineError, match="timeout must be a number of seconds"):
            af.items(range(5)).batch(2, timeout=wrong)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="leave out one"):
        af.items(range(5)).batch(2, timeout=1, drop_remainder=True)
