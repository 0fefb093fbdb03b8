"""Async functions share the loop: one that does not wait gives way, and nobody is forgotten over that."""

from __future__ import annotations

import asyncio
import itertools
import random

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import turn_clock
from tests.searching import sampled


@pytest.mark.parametrize("size", [1, 1000])
def test_a_function_that_never_waits_gives_others_the_loop(size: int) -> None:
    """After a millisecond or two, with three items here: not after a whole chunk of 512, nor once per worker.

    Another worker may have come to rest and be called within one pass of the loop: twice that.
    """
    now, calls, turns = [0.0], [0], [0]

    async def compute(x: object) -> object:
        now[0] += 0.0006
        calls[0] += 1
        return x

    async def other() -> None:
        while True:
            turns.append(calls[0])
            await asyncio.sleep(0)

    async def main() -> int:
        task = asyncio.create_task(other())
        async with af.items(np.zeros((5000, size))).map(compute).open() as feed:
            count = len([item async for item in feed])
        task.cancel()
        return count

    with turn_clock(lambda: now[0]):
        assert run_virtual(main) == 5000
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 6


def test_a_function_that_waits_now_and_then_has_all_the_workers() -> None:
    """One that computes for long between two waits, too: a colleague that was sent away is called again."""
    now, waiting, most = [0.0], [0], [0]

    async def compute(x: int) -> int:
        now[0] += 0.0005
        if x % 10 == 9:
            waiting[0] += 1
            most[0] = max(most[0], waiting[0])
            await asyncio.sleep(1)
            waiting[0] -= 1
        return x

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with af.items(range(4000)).map(compute, concurrency=20).open() as feed:
            assert [item async for item in feed] == list(range(4000))
        return loop.time()

    with turn_clock(lambda: now[0]):
        assert run_virtual(main) <= 25  # 400 waits of a second, 20 at a time
    assert most[0] == 20


@sampled(16)
@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_lost_whoever_gives_way(seed: int) -> None:
    """Two stages that wait or not, for items small and large, while the clock jumps at random."""
    chance = random.Random(seed)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += chance.choice([0.0, 0.0, 1e-5, 3e-4, 2e-3])
        return now

    waits = chance.choice([0.0, 0.02, 0.5, 1.0])
    size = chance.choice([1, 1000])
    ordered = chance.random() < 0.7
    first, second = chance.choice([1, 2, 20]), chance.choice([1, 7, "auto"])

    async def wait(x: np.ndarray) -> np.ndarray:
        if chance.random() < waits:
            await asyncio.sleep(chance.choice([0, 0.001, 0.1]))
        return x

    async def check(x: np.ndarray) -> np.ndarray:
        if x[0] % 97 == 13:
            raise ValueError(x[0])
        return await wait(x)

    async def main() -> list[float]:
        rows = af.items(np.arange(1500.0).repeat(size).reshape(-1, size))
        rows = rows.map(wait, concurrency=first, ordered=ordered)
        rows = rows.map(check, concurrency=second, on_error="skip", skip_limit=100)
        async with rows.open() as feed:
            return [x[0] async for x in feed]

    with turn_clock(clock):
        got = run_virtual(main, seed=seed)
    assert (got if ordered else sorted(got)) == [x for x in range(1500) if x % 97 != 13]
