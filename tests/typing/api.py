"""Usage that must type-check, and what it must be inferred as; read by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import numpy as np

import asyncfeed as af


async def fetch(x: int) -> str:
    return str(x)


def length(text: str) -> float:
    return float(len(text))


def noisy(x: int, rng: np.random.Generator) -> float:
    return x + rng.random()


async def words(text: str) -> AsyncIterator[str]:
    yield text


def numbers() -> Iterator[int]:
    yield 1


def total(samples: list[int]) -> float:
    return float(sum(samples))


class Dataset:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> str:
        return str(number)


class AsyncDataset:
    def __len__(self) -> int:
        return 3

    async def __getitem__(self, number: int) -> str:
        return str(number)


def check() -> None:
    ints = af.items(range(3))
    assert_type(ints, af.Pipeline[int])
    assert_type(af.items(numbers), af.Pipeline[int])
    assert_type(af.items([1], concurrency=2), af.Pipeline[int])
    assert_type(af.items(Dataset(), concurrency="auto", on_error="skip", skip_limit=0.1), af.Pipeline[str])
    assert_type(af.items(AsyncDataset()), af.Pipeline[str])
    assert_type(ints.map(fetch), af.Pipeline[str])
    assert_type(ints.map(fetch).map(length), af.Pipeline[float])
    assert_type(ints.map(noisy, rng=True), af.Pipeline[float])
    assert_type(ints.map(str, on="process"), af.Pipeline[str])
    assert_type(ints.map(noisy, rng=True, on="process", concurrency=4), af.Pipeline[float])
    assert_type(ints.filter(bool).take(3).skip(1).shuffle(buffer=3).prefetch(2), af.Pipeline[int])
    assert_type(ints.enumerate(), af.Pipeline[tuple[int, int]])
    assert_type(ints.map(fetch).flat_map(words), af.Pipeline[str])
    assert_type(ints.map(fetch).flat_map(str.split), af.Pipeline[str])
    assert_type(af.files("*.npy"), af.Pipeline[af.File])
    assert_type(ints.batch(3), af.Pipeline[Any])
    assert_type(ints.batch(3, drop_remainder=True, collate=total), af.Pipeline[float])
    assert_type(ints.batch(3, collate=list), af.Pipeline[list[int]])
    for item in ints:
        assert_type(item, int)
    with ints.map(fetch).open() as feed:
        assert_type(next(feed), str)
        assert_type(len(feed), int)
        assert_type(feed.stats().slow_paths, tuple[tuple[str, int], ...])
    assert_type(af.zip(ints, ints), af.Pipeline[tuple[Any, ...]])
    assert_type(af.queues.FIFOQueue(3, [int]).size(), int)


@af.threadsafe_generator
def shared_numbers(last: int) -> Iterator[int]:
    yield last


@af.threadsafe_generator
async def shared_words(text: str) -> AsyncIterator[str]:
    yield text


def check_sharing() -> None:
    assert_type(next(shared_numbers(3)), int)
    assert_type(next(af.threadsafe([1.5])), float)
    shared_numbers("3")  # type: ignore[arg-type]
    with af.Coordinator([StopIteration]) as coord, af.items(range(3)).open(coord=coord) as feed:
        assert_type(next(feed), int)
        assert_type(coord.wait_for_stop(1), bool)
        coord.request_stop("bad")  # type: ignore[arg-type]


async def check_sharing_async() -> None:
    assert_type(await anext(shared_words("a")), str)
    async with af.Coordinator() as coord:
        await coord.wait()


async def check_async() -> None:
    async with af.items(range(3)).map(fetch).open() as feed:
        async for item in feed:
            assert_type(item, str)


def check_mistakes() -> None:
    af.fils("*.npy")  # type: ignore[attr-defined]
    ints = af.items(range(3))
    ints.map(length)  # type: ignore[arg-type]
    ints.map(noisy)  # type: ignore[arg-type]
    ints.map(str, on="gpu")  # type: ignore[call-overload]
    ints.batch("3")  # type: ignore[call-overload]
    ints.shuffle(7)  # type: ignore[call-arg]
