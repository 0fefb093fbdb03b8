"""One SHA-256 of all batches: the same at any concurrency, on any schedule, loop, thread, Python and machine.

The digest is written down here. If it changes, the order or the random numbers of every user change, and saved
states go on elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import CHUNK, background_loops, chunks_of
from tests.searching import sampled

DIGEST = "5f9088d6fc1e7460265be4310fb51f002f077c1783f377617821159101cb3812"
EPOCHS = 3
LENGTHS = [1, 2, 17, CHUNK]
CONCURRENCY = [1, 2, 3, 5, 8, 13, 32, 64, 127, 256]

try:
    import uvloop
except ModuleNotFoundError:  # it does not run on Windows
    uvloop = None


async def turns(number: int) -> None:
    """Wait for a while: each item another one."""
    for _ in range(number * 7919 % 5):
        await asyncio.sleep(0)


async def noise(number: int, rng: np.random.Generator) -> tuple[int, float]:
    await turns(number)
    return number, rng.random()


def more_noise(item: tuple[int, float], rng: np.random.Generator) -> tuple[int, float, float]:
    return *item, rng.random()


async def keep(item: tuple[int, float, float]) -> bool:
    await turns(item[0] + 1)
    return item[0] % 5 != 2


async def children(item: tuple[int, float, float]) -> AsyncIterator[tuple[int, float, float, int]]:
    for child in range(item[0] % 3):
        await turns(item[0] + child)
        yield *item, child


def pipeline(concurrency: int) -> af.Pipeline[Any]:
    """Return batches that went through every kind of stage whose order, or numbers, could depend on the timing."""
    return (
        af.items(range(100))
        .shuffle(seed=3)
        .map(noise, rng=True, concurrency=concurrency)
        .shuffle(buffer=20, seed=5)
        .map(more_noise, rng=True, concurrency=concurrency)
        .filter(keep, concurrency=concurrency)
        .flat_map(children, concurrency=concurrency)
        .batch(7)
        .prefetch(2)
    )


class Digest:
    """The digest of the batches so far, and of where each epoch ended."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, batch: tuple[np.ndarray, ...]) -> None:
        for column in batch:
            self._sha.update(np.ascontiguousarray(column, "<f8").tobytes())

    def end(self, number: int) -> None:
        self._sha.update(f"end of epoch {number}".encode())

    def value(self) -> str:
        return self._sha.hexdigest()


async def drawn_on_a_loop(concurrency: int) -> str:
    digest = Digest()
    async for epoch in pipeline(concurrency).epochs(EPOCHS):
        async for batch in epoch:
            digest.add(batch)
        digest.end(epoch.number)
    return digest.value()


def drawn_on_a_thread(concurrency: int) -> str:
    digest = Digest()
    for epoch in pipeline(concurrency).epochs(EPOCHS):
        for batch in epoch:
            digest.add(batch)
        digest.end(epoch.number)
    return digest.value()


@sampled(16)
@pytest.mark.parametrize("seed", range(100))
def test_on_any_schedule_at_any_concurrency(seed: int) -> None:
    with chunks_of(LENGTHS[seed % len(LENGTHS)]):
        assert run_virtual(drawn_on_a_loop(CONCURRENCY[seed // 4 % len(CONCURRENCY)]), seed=seed) == DIGEST


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if uvloop is not None:
    LOOPS["uvloop"] = uvloop.new_event_loop


@pytest.mark.parametrize("concurrency", [1, 7, 256])
@pytest.mark.parametrize("loop", LOOPS)
def test_on_the_consumers_loop(loop: str, concurrency: int) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert runner.run(drawn_on_a_loop(concurrency)) == DIGEST


@pytest.mark.parametrize("concurrency", [1, 7, 256])
@pytest.mark.parametrize("loop", LOOPS)
def test_on_a_thread(loop: str, concurrency: int) -> None:
    with background_loops(LOOPS[loop]):
        assert drawn_on_a_thread(concurrency) == DIGEST


def test_across_a_checkpoint() -> None:
    """Each batch is drawn by a feed of its own, which goes on from the state after the batch before."""
    digest, state, ended = Digest(), None, 0
    while ended < EPOCHS:
        with pipeline(4).epochs(EPOCHS, state=state) as epochs:
            for epoch in epochs:
                for batch in epoch:
                    digest.add(batch)
                    break
                else:
                    digest.end(epoch.number)
                    ended += 1
                    continue
                state = epochs.feed.state_dict()
                break
    assert digest.value() == DIGEST
